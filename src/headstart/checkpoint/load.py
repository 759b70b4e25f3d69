"""The one way in which Headstart loads configs, tokenizers, models and adapters of other people.

Every folder is checked first (`files`). No code from it runs, nothing is unpickled, nothing is downloaded. Whatever a
library raises for a damaged folder becomes an `ArtifactError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.checkpoint import files
from headstart.checkpoint.silence import silenced
from headstart.core import registry
from headstart.core.errors import ArtifactError, HeadstartError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_RESTORE = "Restore the folder, or use another one"
_DATA_ONLY = {"trust_remote_code": False, "local_files_only": True}
_SLACK = 100_000_000
"""Parameters that a network may have beyond eight times those in its weights: a new head, new embeddings."""


def load_config(folder: str | Path, config_class: Any = None, **settings: Any) -> Any:
    """Return the config of a checkpoint, with `settings` in place of its own.

    Args:
        folder: the checkpoint.
        config_class: the class of the config; by default the one that transformers has for the model type.
        settings: values that replace those in config.json.
    """
    from transformers import AutoConfig

    folder = Path(folder)
    with _guarded(folder, f"transformers cannot read {folder / files.CONFIG}"):
        if config_class is None:
            _require_known_code(folder)
        return (config_class or AutoConfig).from_pretrained(str(folder), **_DATA_ONLY, **settings)


def load_tokenizer(folder: str | Path, **settings: Any) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a checkpoint, after it has encoded a text once."""
    from transformers import AutoTokenizer

    folder = Path(folder)
    with _guarded(folder, f"the tokenizer in {folder} cannot be loaded"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder), **_DATA_ONLY, **settings)
        # Some errors in a tokenizer's files only show when it reads a text.
        tokenizer("a")
        if not tokenizer.model_max_length >= 1:
            raise ValueError(f"model_max_length is {tokenizer.model_max_length}")
        return tokenizer


def load_model(auto_class: str, folder: str | Path, **settings: Any) -> Any:
    """Return the model of a checkpoint.

    Args:
        auto_class: the name of a class of transformers, such as "AutoModelForMaskedLM".
        folder: the checkpoint.
        settings: keywords of `from_pretrained`. With `output_loading_info`, a pair of the model and that is returned.
    """
    import transformers

    return load_class(getattr(transformers, auto_class), folder, **settings)


def load_class(model_class: Any, folder: str | Path, **settings: Any) -> Any:
    """Return the model of a checkpoint as a class with transformers' `from_pretrained`."""
    folder = Path(folder)
    with _guarded(folder, f"the weights in {folder} cannot be loaded as {model_class.__name__}"):
        _require_whole_model(folder)
        _require_weights_for(settings.get("config") or load_config(folder), folder)
        return model_class.from_pretrained(str(folder), use_safetensors=True, **_DATA_ONLY, **settings)


def load_adapter(model: PreTrainedModel, folder: str | Path) -> Any:
    """Return a model wrapped by the peft adapter in a folder."""
    from peft import PeftModel

    folder = Path(folder)
    with _guarded(folder, f"the adapter in {folder} cannot be loaded"):
        return PeftModel.from_pretrained(model, str(folder), use_safetensors=True, local_files_only=True)


def load_adapter_tensors(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config and the tensors of the peft adapter in a folder, without a model to put it on."""
    from safetensors.torch import load

    folder = Path(folder)
    with _guarded(folder, f"the adapter in {folder} cannot be loaded", builds=False):
        # Read, not mapped: torch needs 60 microseconds for each tensor of a mapped file, and most are small.
        weights = load((folder / "adapter_model.safetensors").read_bytes())
        return files.read_json(folder / files.ADAPTER_CONFIG), weights


def load_head_tensors(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config and the tensors of a head that Headstart saved beside a network."""
    from safetensors.torch import load_file

    folder = Path(folder)
    with _guarded(folder, f"the head in {folder} cannot be loaded"):
        return files.read_json(folder / files.CONFIG), load_file(folder / "model.safetensors")


def load_sentence_encoder(open_folder: Callable[..., Any], folder: str | Path, **settings: Any) -> Any:
    """Return what the class of sentence-transformers opens a folder as; its modules may only be the library's own."""
    folder = Path(folder)
    with _guarded(folder, f"sentence-transformers cannot open {folder}"):
        if (folder / files.ADAPTER_CONFIG).is_file():
            base = files.read_json(folder / files.ADAPTER_CONFIG).get("base_model_name_or_path")
            if isinstance(base, str) and Path(base).is_dir():
                files.require_safe(Path(base))
        return open_folder(str(folder), **_DATA_ONLY, **settings)


@contextmanager
def _guarded(folder: Path, failure: str, builds: bool = True) -> Iterator[None]:
    """Check a folder, import Headstart's own network if the folder has one, and explain any error of a library.

    Without `builds`, only tensors are read and no network is built: nothing is imported, peft least of all (1 s).
    """
    if not folder.is_dir():
        raise ArtifactError(f"there is no folder {folder}", do="Check the path")
    try:
        files.require_safe(folder)
        if builds:
            registry.import_network(folder)
            registry.import_adapter(folder)
        # Tensors alone are read without transformers, and so without its messages.
        with silenced() if builds else nullcontext():
            yield
    except HeadstartError:
        raise
    except MemoryError as error:
        raise ArtifactError(f"{failure} (out of memory)", do=_RESTORE) from error
    # A damaged file can lead to any exception: tokenizers raise a bare Exception, wrong types a TypeError.
    except Exception as error:
        reason = first_line(error) or type(error).__name__
        raise ArtifactError(
            f"{failure} ({reason})",
            allowed="The folder must contain files that match each other, as `save_pretrained` writes them",
            do=_RESTORE,
        ) from error


def _require_known_code(folder: Path) -> None:
    """Raise if transformers knows a checkpoint's model type only from code in the checkpoint."""
    from transformers import CONFIG_MAPPING

    config = files.read_json(folder / files.CONFIG)
    kind = config.get("model_type")
    if "auto_map" in config and (not isinstance(kind, str) or kind not in CONFIG_MAPPING):
        raise ArtifactError(
            f"{folder} contains a model of type {kind!r}, which exists only as code in the checkpoint (auto_map)",
            allowed="No code from a checkpoint is run",
            do="Use a checkpoint whose model type transformers includes",
        )


def _require_whole_model(folder: Path) -> None:
    """Raise for an adapter, for which transformers would load the model that the adapter names instead."""
    if (folder / files.ADAPTER_CONFIG).is_file():
        raise ArtifactError(
            f"{folder} is an adapter without the model that it changes",
            allowed="A whole model is needed here",
            do="Fine-tune with `adaptation.merge: true`, which writes the whole model",
        )


def _require_weights_for(config: PreTrainedConfig, folder: Path) -> None:
    """Raise if a config describes a network far larger than its weights, which would be filled with new numbers."""
    width = getattr(config, "hidden_size", None) or 0
    inner = getattr(config, "intermediate_size", None) or 0
    tokens = max(getattr(config, "vocab_size", None) or 0, getattr(config, "max_position_embeddings", None) or 0)
    layers = getattr(config, "num_hidden_layers", None) or 0
    if not all(isinstance(size, int) for size in (width, inner, tokens, layers)):
        return
    expected, found = tokens * width + layers * (width * width + width * inner), files.elements(folder)
    if found and expected > 8 * found + _SLACK:
        raise ArtifactError(
            f"{folder / files.CONFIG} describes a network of at least {expected:,} parameters, but the weights in the "
            f"folder have {found:,}",
            do=_RESTORE,
        )
