"""A fine-tuned folder becomes a slot: on a body that it shares with other tasks if possible, else as a whole model."""

from __future__ import annotations

import copy
import gc
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from transformers import PreTrainedTokenizerBase

from headstart.adaptation.on_top import LayerSelection
from headstart.adaptation.on_top_network import OnTopModel
from headstart.checkpoint.load import load_tokenizer
from headstart.core import artifact, registry
from headstart.core.config import Section
from headstart.core.data import InputSpec
from headstart.core.errors import ArtifactError
from headstart.core.file_hashes import FileVersion
from headstart.core.log import logger
from headstart.stages.finetune.base_model import find_base
from headstart.stages.finetune.finished import Finetuned
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.stages.serve import adapter_weights
from headstart.stages.serve.adapter_weights import NotShareable
from headstart.stages.serve.bodies import SHAREABLE, SharedBody, Slot, WholeModel, fingerprint
from headstart.stages.serve.heads import Head, Skeleton
from headstart.tasks.embed import Embed
from headstart.tasks.sentence_vectors import STATIC
from headstart.tasks.source import CheckpointFolder, with_pad_token
from headstart.training import precision
from headstart.training.compilation import choose_attention

KINDS = ("classify", "multi_label", "tag", "embed")
"""The kinds of tasks that can be served."""
_ATTEMPTS = 3
_STACKED = {"lora": "LoRA", "adapters": "bottleneck adapters", "ia3": "(IA)³"}
_HEADS_ALONE = ("features", "linear_probe")
"""Adaptations that leave the body as it is."""
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja",
)  # fmt: skip

_REPORTS = (".html", ".md", "evaluation.json", "machines.json", "inputs.json", "recipe.yaml")
"""Endings of files that describe a run and are not read here; the recipe is in the manifest."""


@dataclass(frozen=True)
class _Base:
    """A checkpoint with the head of one class: the body, and what adapters do not contain of the head."""

    body: SharedBody
    skeleton: Skeleton
    tensors: dict[str, torch.Tensor]


class Opener:
    """Opens folders; bodies, tokenizers and skeletons of heads are kept and shared. Only one thread may open."""

    def __init__(self) -> None:
        """Start with nothing loaded."""
        self.bodies: dict[tuple[str, str], SharedBody] = {}
        self._parents: dict[tuple[str, str], set[str | None]] = {}
        """The content hashes of the checkpoints from which the tasks of each body were fine-tuned."""
        self._bases: dict[tuple[str | None, str, str], _Base] = {}
        self._folders: dict[tuple[str, str | None, Path], Path] = {}
        self._skeletons: dict[tuple[Any, str], Skeleton] = {}
        # Weak: a tokenizer stays in memory as long as a task that uses it.
        self._tokenizers: WeakValueDictionary[tuple[str, ...], PreTrainedTokenizerBase] = WeakValueDictionary()

    def open(self, name: str, folder: Path, known: Finetuned | None = None) -> Slot:
        """Verify a fine-tuned folder and load it; a body that is loaded already is shared.

        A run that replaces files while they are loaded would give the weights of one version the hash of another. So
        no file may have changed, by inode, size and time, between the verification and the end.

        Args:
            name: the name of the task.
            folder: the output of a run.
            known: the recipe and the task of this version of the folder, if they were read before.
        """
        for _ in range(_ATTEMPTS):
            announced = artifact.read_manifest(folder)
            names = sorted(announced["files"])
            before = _versions(folder, names)
            tokenizer = self._tokenizers.get(_tokenizer_key(announced))
            manifest = artifact.verify(folder, trusted=_unread(announced, tokenizer is not None))
            facts = FinetuneManifest.from_dict(manifest, folder)
            # The network is cached in what was read; it must not stay in memory with the recipe.
            finetuned = copy.copy(known) if known is not None else Finetuned(folder, facts)
            slot = self._open(name, folder, manifest, facts, finetuned)
            if sorted(manifest["files"]) == names and _versions(folder, names) == before:
                return slot
            known = None
        raise ArtifactError(f"{folder} changed while it was loaded", do="Try again when the run has finished")

    def release(self, parents: Collection[str | None], used: Collection[int]) -> None:
        """Free the bodies that no task needs any more.

        Args:
            parents: the content hashes of the checkpoints of all tasks that can be asked for.
            used: the ids of the bodies of the tasks in memory.
        """
        unused = [
            key for key, body in self.bodies.items() if id(body) not in used and not self._parents[key] & set(parents)
        ]
        for key in unused:
            body = self.bodies.pop(key)
            del self._parents[key]
            self._bases = {base_key: base for base_key, base in self._bases.items() if base.body is not body}
            logger.info("the body %s has no task any more and is released", body.key[:12])
            del body
        if unused:
            # The hooks of a body refer to its modules and these to the hooks: only the collector frees them, and only
            # if `assemble` has not hidden them from it.
            gc.unfreeze()
            gc.collect()
            gc.freeze()

    def _open(
        self, name: str, folder: Path, manifest: dict[str, Any], facts: FinetuneManifest, finetuned: Finetuned
    ) -> Slot:
        require_servable(folder, finetuned)
        identity = artifact.content_hash(manifest)
        number_format = precision.resolve(finetuned.recipe.training.precision, precision.default_device())
        known = facts_of(finetuned, facts)
        try:
            if facts.is_adapter:
                return self._open_adapter(name, finetuned, facts, identity, number_format, manifest, known)
            if known["adaptation"] in _HEADS_ALONE:
                return self._open_head(name, finetuned, identity, number_format, manifest, known, known["body"])
            if facts.trained_with:
                # No other folder than those of the same run can have its body.
                return self._open_head(name, finetuned, identity, number_format, manifest, known, None)
            raise NotShareable(f"the adaptation {known['adaptation']!r} changes the weights of the body")
        except NotShareable as reason:
            body = WholeModel(identity, number_format, finetuned.model)
            size = sum(parameter.nbytes for parameter in finetuned.model.parameters())
            sharing = f"a whole model of its own ({reason})"
            return Slot(name, identity, finetuned.task, self._spec(finetuned, manifest), body, sharing, size, known)

    def _open_adapter(
        self, name: str, finetuned: Finetuned, facts: FinetuneManifest, identity: str, number_format: str,
        manifest: dict[str, Any], known: dict[str, Any],
    ) -> Slot:  # fmt: skip
        method = known["adaptation"]
        if method not in _STACKED:
            raise NotShareable(f"the adaptation {method!r} is not computed for several tasks at once")
        if isinstance(finetuned.task, Embed) and finetuned.task.config.pooling == STATIC:
            raise NotShareable("static vectors read only the embeddings")
        base = self._base(finetuned, facts, number_format)
        weights, whole = adapter_weights.read(finetuned.folder, base.skeleton.prefix)
        base.body.require_fits(weights)
        inside = sorted(key for key in whole if key not in base.skeleton.names)
        if inside and base.skeleton.names:
            raise NotShareable(f"it also trained {inside[0]}")
        head = Head(base.skeleton, {**base.tensors, **whole})
        placed = _placed(weights, base.body.device)
        sharing = f"{_STACKED[method]} on the body {base.body.key[:12]}"
        return Slot(
            name, identity, finetuned.task, self._spec(finetuned, manifest), base.body, sharing,
            weights.size + head.size, known, placed, head,
        )  # fmt: skip

    def _base(self, finetuned: Finetuned, facts: FinetuneManifest, number_format: str) -> _Base:
        """Return the checkpoint of an adapter with the task's head, loaded once for each class of heads."""
        parent = facts.parents.get("model")
        auto_class = finetuned.task.auto_class("encoder")
        key = (parent, auto_class, number_format)
        if key not in self._bases:
            folder = find_base(finetuned.folder, finetuned.recipe.model, parent)
            source = CheckpointFolder(folder, finetuned.task, facts.seed)
            _require_shareable(source.config.model_type)
            model = source.pretrained().eval()
            choose_attention(model)
            skeleton = self._skeleton(type(model), model.config)
            tensors = _head_tensors(model, skeleton)
            # The number of labels differs between tasks; a task's own output layer is in its adapter.
            new = source.new_parameters()
            kept = {name: tensor for name, tensor in tensors.items() if name not in new}
            self._bases[key] = _Base(self._shared(model.base_model, number_format, parent), skeleton, kept)
        return self._bases[key]

    def _open_head(
        self, name: str, finetuned: Finetuned, identity: str, number_format: str, manifest: dict[str, Any],
        known: dict[str, Any], parent: str | None,
    ) -> Slot:  # fmt: skip
        model: Any = finetuned.model
        selection, top = LayerSelection(), None
        if isinstance(model, OnTopModel):
            selection, top, model = model.selection, model.top.to(precision.default_device()), model.network
            _remove_hooks(model.base_model)
        _require_shareable(model.base_model.config.model_type)
        skeleton = self._skeleton(type(model), model.config)
        head = Head(skeleton, _head_tensors(model, skeleton), selection, top)
        body = self._shared(model.base_model, number_format, parent)
        sharing = f"a head on the body {body.key[:12]}"
        return Slot(name, identity, finetuned.task, self._spec(finetuned, manifest), body, sharing, head.size, known,
                    None, head)  # fmt: skip

    def _shared(self, body: Any, number_format: str, parent: str | None) -> SharedBody:
        """Return the body with the same content that is loaded already, or keep this one."""
        # Tensors are compared before a hash is computed, which takes many times longer.
        key = next((key for key, kept in self.bodies.items() if key[1] == number_format and kept.equals(body)), None)
        if key is None:
            key = (fingerprint(body), number_format)
            self.bodies[key] = SharedBody(*key, body)
        self._parents.setdefault(key, set()).add(parent)
        return self.bodies[key]

    def _skeleton(self, model_class: Any, config: Any) -> Skeleton:
        """Return the skeleton of a class and config; label names do not matter."""
        unlabeled = {k: v for k, v in config.to_dict().items() if k not in ("id2label", "label2id", "problem_type")}
        key = (model_class, repr(sorted(unlabeled.items(), key=lambda item: item[0])))
        if key not in self._skeletons:
            self._skeletons[key] = Skeleton(model_class, config)
        return self._skeletons[key]

    def _spec(self, finetuned: Finetuned, manifest: dict[str, Any]) -> InputSpec:
        """Return how a task reads text; equal tokenizers are loaded once."""
        key = _tokenizer_key(manifest)
        tokenizer = self._tokenizers.get(key)
        if tokenizer is None:
            tokenizer = self._tokenizers[key] = with_pad_token(load_tokenizer(finetuned.folder))
        return InputSpec(tokenizer, "encoder", finetuned.recipe.training.max_length)


def _unread(manifest: dict[str, Any], knows_tokenizer: bool) -> list[str]:
    """Return the files of a folder that are not read, and so need not be hashed: reports, and a known tokenizer."""
    reports = [name for name in manifest["files"] if name.endswith(_REPORTS)]
    return [*reports, *(_TOKENIZER_FILES if knows_tokenizer else ())]


def _tokenizer_key(manifest: dict[str, Any]) -> tuple[str, ...]:
    """Return the recorded hashes of a tokenizer's files."""
    files = manifest["files"]
    return tuple(str(dict(files.get(name) or {}).get("sha256", "")) for name in _TOKENIZER_FILES)


def _versions(folder: Path, names: Sequence[str]) -> dict[str, FileVersion]:
    """Return the versions of the manifest and of the files that it lists."""
    try:
        return {name: FileVersion.of(folder / name) for name in (artifact.MANIFEST, *names)}
    except FileNotFoundError as error:
        raise ArtifactError(f"{folder} lacks {Path(error.filename).name}", do="Restore the folder") from error


def require_servable(folder: Path, finetuned: Finetuned) -> None:
    """Raise if a task is of a kind that has no route."""
    kind = _selected(finetuned.recipe.task, "tasks")
    if kind not in KINDS:
        raise ArtifactError(
            f"{folder} is a model for the task {kind!r}",
            allowed=f"`headstart serve` answers for {', '.join(KINDS)}",
            do="Use `headstart predict`; for text generation, vLLM serves the folder of a decoder",
        )


def facts_of(finetuned: Finetuned, facts: FinetuneManifest) -> dict[str, Any]:
    """Return what the route that lists the tasks says about one."""
    inputs = [column.name for column in finetuned.task.columns("test") if not column.is_gold]
    return {
        "kind": _selected(finetuned.recipe.task, "tasks"),
        "adaptation": _selected(finetuned.recipe.adaptation, "adaptations"),
        "labels": list(finetuned.task.labels), "inputs": inputs, "max_length": finetuned.recipe.training.max_length,
        "body": facts.parents.get("model"),
    }  # fmt: skip


def _selected(section: Section, group: str) -> str:
    """Return the name of the registry entry that a section of a recipe selects."""
    name: str = getattr(section, registry.SELECTOR[group])
    return name


def _require_shareable(kind: str) -> None:
    if kind not in SHAREABLE:
        raise NotShareable(f"a body of type {kind!r} does not compute several tasks at once")


def _head_tensors(model: Any, skeleton: Skeleton) -> dict[str, torch.Tensor]:
    device = precision.default_device()
    state = model.state_dict()
    return {name: state[name].detach().to(device).clone() for name in skeleton.names if name in state}


def _placed(weights: adapter_weights.AdapterWeights, device: torch.device) -> adapter_weights.AdapterWeights:
    modules = {name: tuple(tensor.to(device) for tensor in tensors) for name, tensors in weights.modules.items()}
    return adapter_weights.AdapterWeights(
        weights.kind, modules, weights.activation, weights.scales_inputs, weights.reads, weights.residual_norms
    )


def _remove_hooks(body: Any) -> None:
    """Remove the hooks by which `OnTopModel` applies its module: the head does it here."""
    body._forward_hooks.clear()
    body._forward_pre_hooks.clear()
    body._forward_hooks_with_kwargs.clear()
    body._forward_pre_hooks_with_kwargs.clear()
