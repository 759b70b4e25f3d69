"""Checks of a checkpoint's files before a library parses them: links, sizes, weight formats, code.

The libraries trust a folder more than a user may: transformers follows an index of weights out of the folder, unpickles
`pytorch_model.bin`, and allocates what config.json asks for. Everything here reads names, sizes and small JSON files.
"""

from __future__ import annotations

import json
import re
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headstart.checkpoint import patterns
from headstart.core.errors import ArtifactError

CONFIG, ADAPTER_CONFIG, _MODULES = "config.json", "adapter_config.json", "modules.json"
_RESTORE = "Restore the folder, or use another one"
_INDEX = ".safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MB = 1_000_000
_SIZES = {"tokenizer.json": 64 * _MB, ".model": 64 * _MB, ".txt": 64 * _MB, "vocab.json": 64 * _MB, ".json": 16 * _MB}
"""The largest size of a file by the end of its name, the first that fits. Gemma's tokenizer.json has 33 MB."""
_HEADER = 25 * _MB
"""The largest header of a safetensors file; one with ten thousand tensors has about 1 MB."""
_TOKENS = 2_000_000
"""The most tokens of a tokenizer; XLM-V has one million."""
_LAYERS, _LABELS, _WIDTH = 10_000, 1_000_000, 100_000_000
_LIMITS = {
    re.compile(r"(layers?|blocks?)$"): _LAYERS,
    re.compile(r"labels$"): _LABELS,
    re.compile(r"(size|dim|heads?|embeddings?|positions?|experts?|buckets|filters|d_model|d_ff|n_embd|inner)$"): _WIDTH,
}
"""The largest integer of a setting in config.json, by the end of its name: anything larger would fill the memory."""
_CODE_KEYS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
"""Settings for which transformers downloads compiled code if their value is the name of a repository."""


def require_safe(folder: Path) -> None:
    """Raise unless a checkpoint's files stay in their folder, have plausible sizes and hold data only.

    The subfolders that hold a network, a head or a module of their own are checked in the same way.
    """
    for part in (folder, *_parts(folder)):
        names = _require_regular(part, folder)
        _require_weights(part, names)
        if CONFIG in names:
            _require_plausible(part / CONFIG)
        if ADAPTER_CONFIG in names:
            _require_plain_adapter(part / ADAPTER_CONFIG)
        _require_few_tokens(part / "tokenizer.json")
    _require_inner_modules(folder / _MODULES)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a checkpoint."""
    content = parse_json(path)
    if not isinstance(content, dict):
        raise ArtifactError(f"{path} contains no JSON object", do=_RESTORE)
    return content


def parse_json(path: Path) -> Any:
    """Return the value in a JSON file of a checkpoint."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{path.parent} has no {path.name}",
            allowed="A Hugging Face folder contains config.json, model.safetensors and tokenizer.json",
            do="Complete the folder, or use another one",
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        raise ArtifactError(f"{path} cannot be read ({error})", do=_RESTORE) from error


def elements(folder: Path) -> int:
    """Return how many numbers the safetensors files of a folder hold, from their headers."""
    return sum(_elements(path) for path in folder.glob("*.safetensors"))


def _parts(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        # A modules.json of sentence-transformers can name any subfolder.
        if entry.is_dir() and any((entry / name).exists() for name in (CONFIG, ADAPTER_CONFIG)):
            if not entry.resolve().is_relative_to(folder.resolve()):
                raise ArtifactError(
                    f"{entry} is a link to a folder outside the checkpoint",
                    allowed="All files of a checkpoint must be inside its folder",
                    do="Copy the files into the folder",
                )
            yield entry


def _require_regular(part: Path, folder: Path) -> set[str]:
    """Return the names of the files in a folder; raises for links out of it, special files and excessive sizes."""
    names = set()
    for path in part.iterdir():
        if path.is_symlink() and not _stays_inside(path, folder):
            raise ArtifactError(
                f"{path} is a link to a file outside the checkpoint, or to none",
                allowed="All files of a checkpoint must be inside its folder",
                do="Copy the files into the folder",
            )
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            continue
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactError(f"{path} is not a regular file", do="Remove it from the checkpoint")
        limit = next((size for suffix, size in _SIZES.items() if path.name.endswith(suffix)), None)
        if limit is not None and status.st_size > limit:
            raise ArtifactError(
                f"{path} has {status.st_size / _MB:,.0f} MB",
                allowed=f"At most {limit / _MB:,.0f} MB are read",
                do="Check where the checkpoint comes from, and use another one",
            )
        names.add(path.name)
    return names


def _stays_inside(link: Path, folder: Path) -> bool:
    """True if a link ends in its checkpoint, or in the file store of the Hub cache that the checkpoint is part of."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return False
    inside = folder.resolve()
    # The Hub cache: models--org--name/snapshots/<commit>/config.json -> ../../blobs/<hash>.
    cached = inside.parent.name == "snapshots" and target.parent == inside.parent.parent / "blobs"
    return cached or target.is_relative_to(inside)


def _require_weights(part: Path, names: set[str]) -> None:
    """Raise if the weights of a folder are pickles alone, or are not what their index and header promise."""
    safe = sorted(name for name in names if name.endswith(".safetensors"))
    pickles = sorted(name for name in names if name.endswith(_PICKLES))
    # Runs of other tools keep optimizer states and arguments as pickles beside the weights; nothing reads those.
    if not safe and any(name.startswith(("pytorch_model", "adapter_model")) for name in pickles):
        raise ArtifactError(
            f"the weights in {part} are pickled ({pickles[0]}), and reading a pickle can run code",
            allowed="Headstart reads safetensors files only",
            do=f"If you trust the file, convert it once, in Python: model = AutoModel.from_pretrained({str(part)!r}); "
            f"model.save_pretrained({str(part)!r}), with the Auto class of its head",
        )
    for name in safe:
        _header_size(part / name)
    for name in sorted(name for name in names if name.endswith(_INDEX)):
        weight_map = read_json(part / name).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise ArtifactError(f"{part / name} does not map weights to files", do="Restore the folder")
        strange = sorted(set(weight_map.values()) - names)
        if strange:
            raise ArtifactError(
                f"{part / name} refers to {strange[0]!r}, which is not a file of the folder",
                allowed="An index may name only files in its own folder",
                do="Restore or complete the folder",
            )
        if any(not file.endswith(".safetensors") for file in weight_map.values()):
            raise ArtifactError(
                f"{part / name} refers to files that are not safetensors",
                allowed="Headstart reads safetensors files only",
                do=_RESTORE,
            )


def _header_size(path: Path) -> int:
    """Return the size of a safetensors header; raises if it is longer than the file or any plausible header."""
    with path.open("rb") as file:
        prefix = file.read(8)
    size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
    if not 2 <= size <= min(_HEADER, path.stat().st_size - 8):
        raise ArtifactError(
            f"the weights in {path} cannot be loaded (the header is incomplete or has an implausible size)",
            allowed=f"A safetensors file starts with a header of at most {_HEADER / _MB:,.0f} MB",
            do="Restore or complete the folder",
        )
    return int(size)


def _elements(path: Path) -> int:
    size = _header_size(path)
    with path.open("rb") as file:
        file.seek(8)
        header = file.read(size)
    try:
        tensors = [entry["shape"] for name, entry in json.loads(header).items() if name != "__metadata__"]
        return sum(_product(shape) for shape in tensors)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            f"the weights in {path} cannot be loaded (the header is damaged: {error})",
            do="Restore or complete the folder",
        ) from error


def _product(shape: list[int]) -> int:
    count = 1
    for length in shape:
        count *= int(length)
    return count


def _require_plausible(path: Path) -> None:
    """Raise if a setting in config.json would fill the memory or load code."""
    config = read_json(path)
    if not isinstance(config.get("model_type", ""), str):
        raise ArtifactError(
            f"{path} sets model_type to {config['model_type']!r}", allowed="It must be the name of a type", do=_RESTORE
        )
    for key, value in _settings(config):
        if key in _CODE_KEYS and isinstance(value, str) and "/" in value:
            raise ArtifactError(
                f"{path} sets {key} to {value!r}, compiled code from a repository",
                allowed="No code from a checkpoint is run",
                do=f"Remove {key} from config.json",
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        limit = next((limit for ending, limit in _LIMITS.items() if ending.search(key)), None)
        # XLNet's config has -1 for any number of positions.
        if limit is not None and not -1 <= value <= limit:
            raise ArtifactError(
                f"{path} sets {key} to {value:,}",
                allowed=f"Between 0 and {limit:,}",
                do=_RESTORE,
            )


def _settings(config: dict[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a config and of the configs inside it."""
    for key, value in config.items():
        yield key, value
        if isinstance(value, dict) and depth < 4:
            yield from _settings(value, depth + 1)


def _require_plain_adapter(path: Path) -> None:
    """Raise if an adapter's config imports a module, or has a pattern of module names that would take forever."""
    config = read_json(path)
    if config.get("megatron_config") is not None:
        raise ArtifactError(
            f"{path} sets megatron_config, which imports a module that it names",
            allowed="No code from a checkpoint is run",
            do="Remove megatron_config from adapter_config.json",
        )
    for key in patterns.KEYS:
        for pattern in patterns.texts(config.get(key)):
            if not patterns.is_simple(pattern):
                raise ArtifactError(
                    f"{path} sets {key} to {pattern[:60]!r}, a pattern that can take very long to match",
                    allowed="A pattern has no repetition inside a repetition, and at most four in all",
                    do=f"List the names of the modules in {key} instead",
                )


def _require_inner_modules(path: Path) -> None:
    """Raise if a list of sentence-transformers' modules is damaged or names a folder outside the checkpoint."""
    if not path.is_file():
        return
    modules = parse_json(path)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict) and all(isinstance(module.get(key), str) for key in ("path", "type"))
        for module in modules
    ):
        raise ArtifactError(f"{path} is not a list of modules with their paths and types", do="Restore the folder")
    for module in modules:
        if not (path.parent / module["path"]).resolve().is_relative_to(path.parent.resolve()):
            raise ArtifactError(
                f"{path} refers to {module['path']!r}, which is outside the checkpoint",
                allowed="All files of a checkpoint must be inside its folder",
                do=_RESTORE,
            )


def _require_few_tokens(path: Path) -> None:
    """Raise if a large tokenizer.json has more tokens than any tokenizer; small files cannot."""
    if not path.is_file() or path.stat().st_size < 16 * _MB:
        return
    model = read_json(path).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict | list) and len(vocabulary) > _TOKENS:
        raise ArtifactError(
            f"{path} has {len(vocabulary):,} tokens",
            allowed=f"At most {_TOKENS:,}",
            do="Check where the checkpoint comes from, and use another one",
        )
