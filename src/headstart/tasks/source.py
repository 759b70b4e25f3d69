"""Where an adaptation gets its network from: a local Hugging Face folder and a task's head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from headstart.core import artifact, registry
from headstart.core.contracts import ReplaySource, Task
from headstart.core.data import InputSpec
from headstart.core.errors import ArtifactError, HeadstartError, first_line
from headstart.core.randomness import integer

_OF_THEIR_OWN = {"xlnet": "xlnet", "headstart_bilm": "bilm"}
"""Types of network that are neither encoders nor decoders, and their families."""
_AROUND_A_PLAIN_ONE = "headstart_on_top"
"""The type of a network of ours that holds a plain one, and is of its family."""


class CheckpointFolder:
    """A folder with config.json, weights and tokenizer; gives models with a task's head."""

    def __init__(
        self, path: str | Path, task: Task, seed: int, rehearsal: Callable[[Path], ReplaySource] | None = None
    ) -> None:
        """Check that the folder can serve; new weights are drawn from the seed. `rehearsal` finds its pre-training."""
        self._rehearsal = rehearsal
        self.path, self.task, self.seed = require_checkpoint(path), task, seed
        self._new: frozenset[str] = frozenset()
        self.family, self.kind = self._require_family()

    def reading(self, max_length: int) -> InputSpec:
        """Return how this checkpoint reads text, cut to so many tokens."""
        return InputSpec(self.tokenizer(), self.family, max_length)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Load the tokenizer that lies beside the weights."""
        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(self.path))
            # Some of what a config can hold comes to light only when a text is read.
            tokenizer("a")
        # The loader raises bare Exception for a torn tokenizer.json.
        except Exception as error:
            raise ArtifactError(
                f"{self.path} has no tokenizer that transformers can load ({first_line(error)})",
                allowed="tokenizer.json and tokenizer_config.json lie beside the weights",
                do="Restore or complete the folder",
            ) from error
        # Without its files transformers makes up an empty tokenizer, which reads every word as unknown.
        files = {"tokenizer.json", *type(tokenizer).vocab_files_names.values()}
        if not any((self.path / name).is_file() for name in files):
            raise ArtifactError(
                f"{self.path} has no tokenizer",
                allowed=f"One of these must lie beside the weights: {', '.join(sorted(files))}",
                do="Complete the folder",
            )
        return usable(tokenizer)

    def pretrained(self, **loading: Any) -> PreTrainedModel:
        """Load the weights; the head is new, also in place of one of another size. Keywords go to `from_pretrained`."""
        self._seed()
        try:
            how = {"config": self._config(), "dtype": torch.float32, "ignore_mismatched_sizes": True, **loading}
            model, info = self._auto().from_pretrained(str(self.path), output_loading_info=True, **how)
            unlike = {key for key, *_ in info["mismatched_keys"]}
            of_body = sorted(key for key in unlike if key.startswith(f"{model.base_model_prefix}."))
            if of_body:
                raise ValueError(f"{of_body[0]} is of another size than config.json says")
        except HeadstartError:
            raise
        # What a hostile config or header leads to cannot be told beforehand; out of memory is one of the ends.
        except Exception as error:
            raise ArtifactError(
                f"the weights in {self.path} cannot be loaded ({first_line(error)})",
                allowed="model.safetensors lies beside config.json and fits it",
                do="Restore or complete the folder",
            ) from error
        self._new = frozenset({*info["missing_keys"], *unlike})
        return model  # type: ignore[no-any-return]

    def fresh(self) -> PreTrainedModel:
        """Build the same network with new weights throughout; saved tables that are no weights are the checkpoint's."""
        self._seed()
        model: PreTrainedModel = self._auto().from_config(self._config())
        tables = model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
        if tables:
            kept = self.pretrained().state_dict()
            for name in tables:
                model.get_buffer(name).copy_(kept[name])
        self._new = frozenset(name for name, _ in model.named_parameters())
        return model

    def new_parameters(self) -> frozenset[str]:
        """Name the parameters that the last model did not take from the checkpoint."""
        return self._new

    def rehearsal(self) -> ReplaySource:
        """Return the pre-training of the checkpoint, where the stage that opened the folder knows how."""
        if self._rehearsal is None:
            raise ArtifactError(f"{self.path} is opened without its pre-training", do="Open it by a stage that trains")
        return self._rehearsal(self.path)

    def _auto(self) -> Any:
        return getattr(transformers, self.task.auto_class(self.family))

    def _config(self) -> Any:
        config = AutoConfig.from_pretrained(str(self.path), **self.task.head_settings())
        # A decoder's head finds the last token of a text by what is no padding, and texts are padded by the tokenizer.
        if config.pad_token_id is None or (self.path / "tokenizer_config.json").is_file():
            config.pad_token_id = self.tokenizer().pad_token_id
        return config

    def _require_family(self) -> tuple[str, str]:
        try:
            config = AutoConfig.from_pretrained(str(self.path))
        # A config with values of other kinds raises whatever comes first: errors of type, attribute, validation.
        except Exception as error:
            raise ArtifactError(
                f"{self.path / 'config.json'} is no config that transformers can read ({first_line(error)})",
                do="Restore the folder or give another",
            ) from error
        family = family_of(config)
        if family not in self.task.families:
            raise ArtifactError(
                f"{self.path} holds a {config.model_type!r}, "
                + (f"of the family {family}" if family else "which is no language model"),
                allowed=f"This task takes: {', '.join(self.task.families)}",
                do="Give such a checkpoint as `model`",
            )
        auto_class = self.task.auto_class(family)
        if not has_head(config, auto_class):
            raise ArtifactError(
                f"{self.path} holds a {config.model_type!r}, for which transformers has no {auto_class}",
                allowed="The task needs a network with such a head",
                do="Give another checkpoint as `model`",
            )
        return family, config.model_type

    def _seed(self) -> None:
        torch.manual_seed(integer(self.seed, 0, 0, "initial weights"))


def unwrap_peft(model: PreTrainedModel) -> PreTrainedModel:
    """Return the network beneath peft's wrapper, or the model itself where it has none."""
    unwrap: Any = getattr(model, "get_base_model", None)
    return model if unwrap is None else unwrap()


def usable(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return the tokenizer with a padding token: the end of text stands in where it has none, as GPT-2's has not."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def require_checkpoint(path: str | Path, setting: str = "model") -> Path:
    """Return the path if it is a local Hugging Face folder, else say what is missing and what to do."""
    folder = Path(path)
    if not folder.is_dir():
        raise ArtifactError(
            f"{setting} is {str(path)!r}, and there is no such folder",
            allowed="It must be a local Hugging Face folder: an output of `headstart pretrain` or a checkpoint",
            do="Run `headstart pretrain` first, or give the folder's path",
        )
    if (folder / "recipe.yaml").is_file() and not artifact.is_complete(folder):
        raise ArtifactError(
            f"{folder} holds a run that is not finished",
            allowed="A model is the output of a finished run",
            do="Start the same `headstart pretrain` command again to finish it",
        )
    if not (folder / "config.json").is_file():
        raise ArtifactError(
            f"{folder} has no config.json",
            allowed="A Hugging Face folder has config.json, model.safetensors and tokenizer.json",
            do=f"Give such a folder as `{setting}`",
        )
    registry.import_network(folder)
    return folder


def has_head(config: PreTrainedConfig, auto_class: str) -> bool:
    """Say whether transformers has a network of this type under an auto class."""
    return type(config) in getattr(transformers, auto_class)._model_mapping


def family_of(config: PreTrainedConfig) -> str:
    """Tell a checkpoint's family, as backbones name it, by what transformers can train it for; empty if for no text."""
    if config.model_type == _AROUND_A_PLAIN_ONE:
        config = config.plain()
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder"
    if config.model_type in _OF_THEIR_OWN:
        return _OF_THEIR_OWN[config.model_type]
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        return "encoder"
    return "decoder" if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else ""
