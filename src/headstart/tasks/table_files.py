"""Where labeled rows are: files, patterns, folders, and the splits of data sets, each as a list of files.

A source is a file (`reviews.csv`), a list of files or a pattern (`data/train-*.parquet`), a folder of Parquet or Arrow
files (also one that `Dataset.save_to_disk` wrote), or a `DatasetSplit` (a data set on the Hub or in a folder).
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headstart.core import file_hashes, registry
from headstart.core.errors import DataError

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl", ".json", ".arrow")
_FOLDER_SUFFIXES = (".parquet", ".arrow")
_STATE, _SPLITS = "state.json", "dataset_dict.json"
"""The files by which `datasets` recognizes what `Dataset.save_to_disk` and `DatasetDict.save_to_disk` wrote."""


@dataclass(frozen=True)
class DatasetSplit:
    """A split of a data set, as `datasets.load_dataset` names it."""

    dataset: str
    """`org/name` or `org/name@revision` on the Hub, or a local folder."""
    split: str
    config: str | None = None
    """Which configuration of the data set, if it has several."""

    def __str__(self) -> str:
        config = f"config {self.config}, " if self.config else ""
        return f"{self.dataset} ({config}split {self.split})"


@dataclass(frozen=True)
class TableFiles:
    """Local files that are read as one table, one after another."""

    name: str
    """What messages and cards call them."""
    files: tuple[Path, ...]
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The names of the classes that a column numbers, for files that do not contain them."""
    revision: str = ""
    """The data set, commit, configuration and split that the files are a copy of; empty for local files."""

    def sha256(self) -> str:
        """Return a hash of the content; of a single file, it is that of its bytes."""
        if self.revision:
            return hashlib.sha256(self.revision.encode()).hexdigest()
        hashes = [file_hashes.sha256(path) for path in self.files]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()

    def __str__(self) -> str:
        return self.name


def rows_of(data: str | Path, split: str | None, config: str | None) -> TableSource:
    """Return the source that a command names: a path, or a data set if a split is given."""
    if split is not None:
        return DatasetSplit(str(data), split, config)
    if config is not None:
        raise DataError(
            "--config is set, but --split is not",
            allowed="A configuration belongs to a data set, of which a split is read",
            do="Pass --split with the name of a split",
        )
    return data


TableSource = str | Path | Sequence[str] | DatasetSplit | TableFiles
"""Anything that `locate` finds the files of."""


def locate(source: TableSource) -> TableFiles:
    """Return the files of a source; a data set on the Hub is downloaded if it is not in the cache."""
    if isinstance(source, TableFiles):
        return source
    if isinstance(source, DatasetSplit):
        return _locate_split(source)
    if isinstance(source, str | Path):
        return TableFiles(str(source), _files(Path(source)))
    files = tuple(file for each in source for file in _files(Path(each)))
    twice = next((file for file in files if files.count(file) > 1), None)
    if twice is not None:
        raise DataError(f"{twice} is listed twice", allowed="Each file is read once", do="Remove one of the two")
    return TableFiles(", ".join(map(str, source)), files)


def require_table(path: str | Path) -> Path:
    """Return the path of a table; raises if there is no such file or its name ends in no known format."""
    path = Path(path)
    if not path.is_file():
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        dataset = "" if path.suffix else ". For a data set on the Hub, set data.dataset in a recipe, or pass --split"
        raise DataError(
            f"there is no file {path}{registry.suggest(path.name, siblings)}",
            do=f"Check the path; relative paths start at the working directory{dataset}",
        )
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path} ends in {path.suffix!r}",
            allowed=f"Labeled data is read from {', '.join(SUFFIXES)} files",
            do="Rename or convert the file; a spreadsheet can save its sheet as CSV",
        )
    return path


def require_rows(data: Path) -> None:
    """Raise if there is neither a folder of this name nor a table."""
    if not data.is_dir():
        require_table(data)


def has_tables(folder: Path) -> bool:
    """True if a folder contains rows as Parquet or Arrow files, or is one of `datasets`."""
    return bool(_tables_in(folder)) or (folder / _SPLITS).is_file()


def _files(path: Path) -> tuple[Path, ...]:
    """Return the files of a path, which may be a file, a pattern or a folder."""
    if path.is_dir():
        return _files_in(path)
    if path.exists() or not glob.has_magic(str(path)):
        return (require_table(path),)
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if not found:
        raise DataError(
            f"no file matches {path}",
            allowed="`*` matches any characters in a name, `**` also folders",
            do="Check the pattern; relative paths start at the working directory",
        )
    return tuple(map(require_table, found))


def _files_in(folder: Path) -> tuple[Path, ...]:
    if (folder / _STATE).is_file():
        return _saved_files(folder)
    if (folder / _SPLITS).is_file():
        splits = ", ".join(_saved_splits(folder))
        raise DataError(
            f"{folder} has several splits ({splits})",
            do="Name one of them: `data: {dataset: FOLDER, train: SPLIT, …}` in a recipe, `--split SPLIT` in a command",
        )
    found = _tables_in(folder)
    if not found:
        raise DataError(
            f"{folder} is a folder without Parquet or Arrow files",
            allowed=f"A folder of labeled rows has {' or '.join(_FOLDER_SUFFIXES)} files",
            do=f"For other files, pass a pattern, such as '{folder}/*.csv'",
        )
    return tuple(found)


def _tables_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _FOLDER_SUFFIXES and path.is_file())


def _saved_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder that `Dataset.save_to_disk` wrote, in the order of the rows."""
    try:
        names = [entry["filename"] for entry in json.loads((folder / _STATE).read_text("utf-8"))["_data_files"]]
        inside = all(Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / _STATE} cannot be read ({error})", do="Save the data set again") from error
    if not names or not inside:
        raise DataError(f"{folder / _STATE} does not list the files of the folder", do="Save the data set again")
    return tuple(require_table(folder / name) for name in names)


def _saved_splits(folder: Path) -> list[str]:
    try:
        return [str(split) for split in json.loads((folder / _SPLITS).read_text("utf-8"))["splits"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / _SPLITS} cannot be read ({error})", do="Save the data set again") from error


def _locate_split(source: DatasetSplit) -> TableFiles:
    folder = Path(source.dataset)
    if (folder / _SPLITS).is_file():
        require_split(source, _saved_splits(folder))
        return TableFiles(str(source), _saved_files(folder / source.split))
    if (folder / _STATE).is_file():
        raise DataError(
            f"{folder} is a single data set without splits",
            do=f"Name the folder itself: `data: {{train: {folder}, …}}` in a recipe, no --split in a command",
        )
    # Imported here: most runs read files.
    from headstart.tasks import hub_datasets

    return hub_datasets.locate(source)


def require_split(source: DatasetSplit, splits: Sequence[str]) -> None:
    """Raise if a data set has no split of this name."""
    if source.split not in splits:
        raise DataError(
            f"{source.dataset} has no split {source.split!r}{registry.suggest(source.split, list(splits))}",
            allowed=f"Its splits: {', '.join(splits)}",
            do="Rows can also be split off from the training rows: `validation: 0.1`",
        )
