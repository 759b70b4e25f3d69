"""Bodies: the networks that compute rows. A shared body serves many tasks in one pass, a whole model serves one."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from headstart.core.contracts import Task
from headstart.core.data import Feature, InputSpec
from headstart.stages.serve.adapter_weights import AdapterWeights, NotShareable
from headstart.stages.serve.heads import Head
from headstart.stages.serve.stacked import AdapterHooks, make_groups, sort_key
from headstart.tasks.base import stack
from headstart.training import precision

SHAREABLE = (
    "albert", "bert", "camembert", "distilbert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta",
)  # fmt: skip
"""Model types whose linear layers all read (rows, positions, width), so that each row can have its own adapter."""
_OF_HEADS = (
    "architectures", "id2label", "label2id", "num_labels", "problem_type", "transformers_version", "dtype",
    "_name_or_path", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id", "is_decoder",
)  # fmt: skip
"""Settings of a config that do not change what the body computes; so do those whose names contain `dropout` or start
with `classifier`."""


@dataclass(frozen=True, eq=False)
class Slot:
    """One version of one task, ready to compute. It is never modified: a new version is a new slot.

    The batches that hold a slot keep it alive; it is freed after the last of them.
    """

    name: str
    hash: str
    """The content hash of the task's folder."""
    task: Task
    spec: InputSpec
    body: Body
    sharing: str
    """How the task shares its body, in words."""
    size: int
    """The memory in bytes that the slot needs besides a shared body."""
    facts: dict[str, Any] = field(default_factory=dict)
    adapter: AdapterWeights | None = None
    head: Head | None = None


class BatchRow(NamedTuple):
    """One row to compute: a feature of a request, and the version of the task that answers it."""

    slot: Slot
    feature: Feature
    length: int


class Body:
    """A network on a device. Several threads may call `run`."""

    def __init__(self, key: str, number_format: str) -> None:
        """Keep what identifies the body."""
        self.key, self.number_format = key, number_format
        self.device = precision.default_device()

    def run(self, rows: Sequence[BatchRow]) -> list[Any]:
        """Return the raw output of each row, in their order."""
        with torch.inference_mode(), precision.autocast(self.number_format, self.device):
            return self._run(rows)

    def _run(self, rows: Sequence[BatchRow]) -> list[Any]:
        raise NotImplementedError


class WholeModel(Body):
    """A fine-tuned network of which every weight is its own: it computes rows of one task."""

    def __init__(self, key: str, number_format: str, model: PreTrainedModel) -> None:
        """Keep the network."""
        super().__init__(key, number_format)
        self.model = model
        # The networks of transformers keep nothing between modules during a pass; wrappers around them do.
        is_plain = type(model).__module__.startswith("transformers.")
        self._alone: AbstractContextManager[Any] = nullcontext() if is_plain else threading.Lock()

    def _run(self, rows: Sequence[BatchRow]) -> list[Any]:
        task, spec = rows[0].slot.task, rows[0].slot.spec
        batch = task.collate([row.feature for row in rows], spec)
        placed = {name: tensor.to(self.device) for name, tensor in batch.items()}
        with self._alone:
            return task.predict(self.model, placed)


class SharedBody(Body):
    """A body that computes rows of many tasks in one pass, each row with its own adapter and head."""

    def __init__(self, key: str, number_format: str, body: Any) -> None:
        """Take over a body; its pooler is removed, because poolers belong to the heads."""
        super().__init__(key, number_format)
        if getattr(body, "pooler", None) is not None:
            body.pooler = None
        self.body = body.to(self.device).eval().requires_grad_(False)
        self.hooks = AdapterHooks(self.body)

    @property
    def size(self) -> int:
        """The memory of the weights in bytes."""
        return sum(parameter.nbytes for parameter in self.body.parameters())

    def equals(self, other: Any) -> bool:
        """True if another network computes exactly what this body does."""
        if _settings(self.body.config) != _settings(other.config):
            return False
        own, theirs = _tensors(self.body), _tensors(other)
        return own.keys() == theirs.keys() and all(_is_same(own[name], theirs[name]) for name in own)

    def require_fits(self, adapter: AdapterWeights) -> None:
        """Raise `NotShareable` if an adapter changes a matrix that this body does not have."""
        strange = sorted(adapter.modules.keys() - self.hooks.modules.keys())
        if strange:
            raise NotShareable(
                f"its adapter changes {strange[0]}, which is neither a linear layer nor a norm of the body"
            )

    def _run(self, rows: Sequence[BatchRow]) -> list[Any]:
        order = sorted(
            range(len(rows)), key=lambda i: (sort_key(rows[i].slot.adapter), rows[i].slot.name, id(rows[i].slot))
        )
        arranged = [rows[i] for i in order]
        with self.hooks.applied(make_groups([row.slot.adapter for row in arranged], self.device)):
            output = self.body(**self._inputs(arranged))
        outputs: list[Any] = [None] * len(rows)
        start = 0
        while start < len(arranged):
            slot, end = arranged[start].slot, start
            while end < len(arranged) and arranged[end].slot is slot:
                end += 1
            batch = slot.task.collate([row.feature for row in arranged[start:end]], slot.spec)
            placed = {name: tensor.to(self.device) for name, tensor in batch.items()}
            assert slot.head is not None, "a task on a shared body has a head"
            # Heads of one class put their weights into the same skeleton in turn.
            with slot.head.skeleton.lock:
                # Sentence vectors have (rows, texts, positions).
                slot.head.read(output, slice(start, end), placed["attention_mask"].flatten(0, -2))
                results = slot.task.predict(slot.head, placed)  # type: ignore[arg-type]
            for i, result in zip(order[start:end], results, strict=True):
                outputs[i] = result
            start = end
        return outputs

    def _inputs(self, rows: Sequence[BatchRow]) -> dict[str, Any]:
        ids = [_flat(row.feature["input_ids"]) for row in rows]
        inputs = {
            "input_ids": stack(ids, rows[0].slot.spec.pad),
            "attention_mask": stack([[1] * len(i) for i in ids], 0),
        }
        if any("token_type_ids" in row.feature for row in rows):
            types = [row.feature.get("token_type_ids", [0] * len(own)) for row, own in zip(rows, ids, strict=True)]
            inputs["token_type_ids"] = stack(types, 0)
        placed: dict[str, Any] = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        if any(row.slot.head is not None and row.slot.head.selection.last for row in rows):
            placed["output_hidden_states"] = True
        return placed


def fingerprint(body: Any) -> str:
    """Return a hash of what a body computes: its weights without the pooler, and its config without the head's part."""
    digest = hashlib.sha256()
    digest.update(_settings(body.config).encode())
    for name, tensor in sorted(_tensors(body).items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _settings(config: Any) -> str:
    """Return the settings that change what a body computes, as JSON."""
    kept = {
        name: value
        for name, value in config.to_dict().items()
        if name not in _OF_HEADS and "dropout" not in name and not name.startswith("classifier")
    }
    return json.dumps(kept, sort_keys=True, default=str)


def _tensors(body: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a body by name, without the pooler."""
    return {name: tensor for name, tensor in body.state_dict().items() if not name.startswith("pooler.")}


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other.to(one.device))


def _flat(ids: Any) -> list[int]:
    """Return the token ids of a feature; those of sentence vectors are a list of one text."""
    return ids[0] if ids and isinstance(ids[0], list) else ids  # type: ignore[no-any-return]
