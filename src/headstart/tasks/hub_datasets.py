"""Data sets on the Hub, or in the same layout in a local folder: the files of a split.

The library `datasets` decides which files belong to a configuration and a split, by the card of the data set or the
names of the files. The rows themselves are read from these files by `tables`. No code of a data set is run: neither
Headstart downloads it, nor has `datasets` loaded any since version 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from headstart.checkpoint import names
from headstart.checkpoint.names import HubName
from headstart.core import registry
from headstart.core.errors import DataError, ResourceError, first_line
from headstart.core.extras import install_command
from headstart.tasks.class_labels import class_names
from headstart.tasks.table_files import SUFFIXES, DatasetSplit, TableFiles, require_split

_CARD = "README.md"
_MAX_CARD_BYTES = 5_000_000
_FILES = tuple(f"*{suffix}" for suffix in SUFFIXES)

Patterns = Mapping[str, Sequence[str]]
"""The files of each split, as patterns relative to the data set."""


def locate(source: DatasetSplit) -> TableFiles:
    """Return the files of a split; those of its configuration are downloaded if they are not in the cache."""
    hub = names.parse(names.pin(source.dataset, "dataset"), "dataset")
    folder = Path(source.dataset) if hub is None else names.download(hub, [_CARD])
    # Without a card, huggingface_hub has not created its folder yet.
    if hub is None and not folder.is_dir():
        raise DataError(f"there is no folder {folder}", do="Check the path; a data set on the Hub is named org/name")
    config, patterns = _listed_files(folder / _CARD, source)
    if hub is not None:
        _require_data(hub, names.download(hub, [_CARD, *_as_globs(patterns)]))
    builder = _builder(source, folder, patterns)
    splits = builder.config.data_files or {}
    require_split(source, [str(split) for split in splits])
    files = tuple(Path(file) for file in splits[source.split])
    strange = next((file for file in files if file.suffix.lower() not in SUFFIXES), None)
    if strange is not None:
        raise DataError(
            f"{source} has files like {strange.name}",
            allowed=f"Labeled data is read from {', '.join(SUFFIXES)} files",
            do="Load it with `datasets`, call `save_to_disk`, and use that folder",
        )
    known = _class_names(builder, folder, config)
    revision = "" if hub is None else f"{hub}\n{source.config or ''}\n{source.split}"
    return TableFiles(str(source), files, known, revision)


def _listed_files(card: Path, source: DatasetSplit) -> tuple[str | None, Patterns]:
    """Return the name of the configuration and its files, as the card lists them; no files if it lists none."""
    entries = _front_matter(card).get("configs") or []
    configs = {str(entry.get("config_name")): entry for entry in entries if isinstance(entry, dict)}
    if not configs:
        return source.config, {}
    is_only = len(configs) == 1
    default = [name for name, entry in configs.items() if is_only or entry.get("default") or name == "default"]
    chosen = source.config or next(iter(default), None)
    if chosen not in configs:
        found = f"{source.dataset} has several configurations" if chosen is None else (
            f"{source.dataset} has no configuration {chosen!r}{registry.suggest(chosen, list(configs))}"
        )  # fmt: skip
        raise DataError(
            found,
            allowed=f"Its configurations: {', '.join(configs)}",
            do="Set data.config in a recipe, or --config in a command",
        )
    listed = configs[chosen].get("data_files")
    patterns: dict[str, list[str]] = {}
    for entry in [] if listed is None else listed if isinstance(listed, list) else [listed]:
        split, paths = (entry.get("split"), entry.get("path")) if isinstance(entry, dict) else ("train", entry)
        patterns.setdefault(str(split), []).extend([paths] if isinstance(paths, str) else paths or [])
    return chosen, patterns


def _class_names(builder: Any, folder: Path, config: str | None) -> dict[str, list[str]]:
    """Return the names of the classes of each column, from the features that the card lists."""
    from datasets.info import DatasetInfosDict

    features = builder.info.features
    if features is None:
        # `datasets` ignores the features of a card if the files to read are named.
        infos = DatasetInfosDict.from_directory(str(folder))
        only = next(iter(infos.values())) if len(infos) == 1 else None
        features = getattr(infos.get(config or "default", only), "features", None)
    return {} if features is None else class_names(features.arrow_schema)


def _front_matter(card: Path) -> dict[str, Any]:
    """Return the metadata at the beginning of a card; empty if there is none."""
    if not card.is_file() or card.stat().st_size > _MAX_CARD_BYTES:
        return {}
    text = card.read_text(encoding="utf-8", errors="replace")
    if not text.startswith("---"):
        return {}
    try:
        front = yaml.safe_load(text.split("\n---", 1)[0])
    except yaml.YAMLError as error:
        raise DataError(f"the metadata of {card} is not YAML ({first_line(error)})", do="Correct the card") from error
    return front if isinstance(front, dict) else {}


def _as_globs(patterns: Patterns) -> list[str]:
    """Return what to download: the listed files, or every table if none are listed.

    huggingface_hub lets `*` match slashes, and `**/` must also match no folder at all.
    """
    listed = [path.removeprefix("./").replace("**/", "*") for paths in patterns.values() for path in paths]
    return listed or [*_FILES]


def _require_data(hub: HubName, folder: Path) -> None:
    if not any(path.suffix.lower() in SUFFIXES for path in folder.rglob("*")):
        raise DataError(
            f"{hub} has no tables",
            allowed=f"Labeled data is read from {', '.join(SUFFIXES)} files; a script that makes them is not run",
            do=f"Many data sets have a copy as Parquet: {hub.repository}@refs/convert/parquet",
        )


def _builder(source: DatasetSplit, folder: Path, patterns: Patterns) -> Any:
    """Return the builder of `datasets`, which knows the files and the columns of the configuration."""
    try:
        from datasets import load_dataset_builder
    except ImportError as error:
        raise ResourceError(
            f"{source} needs the package `datasets`, which is not installed", do=f"Run `{install_command('datasets')}`"
        ) from error
    listed = {split: list(paths) for split, paths in patterns.items()} or None
    try:
        return load_dataset_builder(str(folder.resolve()), source.config, data_files=listed)
    # `datasets` raises errors of its own, of fsspec and of Python.
    except Exception as error:
        raise DataError(
            f"{source} cannot be opened by `datasets` ({first_line(error)})",
            do="Check data.dataset and data.config, or load it with `datasets` and use `save_to_disk`",
        ) from error
