"""`headstart init`: look at labeled rows, divide them into splits, and write a recipe that runs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import artifact
from headstart.core.errors import DataError
from headstart.core.pages import charts
from headstart.core.pages.page import PageTable, render
from headstart.stages.init import columns, start
from headstart.stages.init.columns import Column, Roles
from headstart.stages.init.splits import NAMES, Split, split
from headstart.tasks import labelled, tables
from headstart.tasks.table_files import DatasetSplit, TableSource, has_tables, locate
from headstart.tasks.table_rows import require_distinct

_TEMPLATE = Path(__file__).with_name("data.html.j2")
_SHOWN_CLASSES = 30
_TEXT_FILES = ("*.txt", "*.md")


@dataclass(frozen=True)
class InitOptions:
    """What a user can decide; everything else is inferred from the data."""

    text: Sequence[str] = ()
    label: str | None = None
    group: str | None = None
    model: str | None = None
    output: Path | None = None


@dataclass(frozen=True)
class Look:
    """What was found in the data, and what was written."""

    source: str
    columns: list[Column]
    roles: Roles
    division: Split
    incomplete: int
    counts: Counter[Any]
    words: list[int]
    start: start.StartingPoint
    folder: Path
    warnings: list[str] = field(default_factory=list)

    def facts(self) -> str:
        """Return the data in one line."""
        rows = sum(len(members) for members in self.division.rows.values())
        count = f"{len(self.counts):,}"
        kind = {
            "classify": f"{count} classes", "multi_label": f"{count} labels, several per row",
            "regression": "a number to predict", "tag": f"{count} tags",
        }[self.roles.task]  # fmt: skip
        return f"{self.source}: {rows:,} labeled rows, {kind}"

    def summary(self) -> str:
        """Return what a person should know, as lines of text."""
        sizes = ", ".join(f"{name} {len(self.division.rows[name]):,}" for name in NAMES)
        lines = [
            self.facts(),
            f"text: {', '.join(self.roles.text)}; label: {self.roles.label}",
            f"rows: {sizes}",
            *self.warnings,
            f"written: {self.folder / 'finetune.yaml'}, {self.folder / 'data.html'} and the three splits",
            f"next: headstart finetune {shlex.quote(str(self.folder / 'finetune.yaml'))}",
        ]
        return "\n".join(lines)


def run(data: TableSource, options: InitOptions | None = None) -> Look:
    """Look at a file, a folder of texts or a data set, and write splits, a recipe and a page about the data."""
    options = options or InitOptions()
    table, source = _read(data)
    require_distinct(source, table.column_names)
    described = columns.describe(table)
    roles = columns.assign(table, described, options.text, options.label)
    if options.group is not None and options.group not in table.column_names:
        raise DataError(
            f"there is no column {options.group!r}", allowed=f"The columns: {', '.join(table.column_names)}"
        )
    complete, unlabeled = _complete(table, roles)
    if complete.num_rows < 10:
        raise DataError(
            f"{data} has {complete.num_rows} rows with text and label",
            allowed="Three splits need at least ten",
            do="Add labeled rows",
        )
    look = _look(source, described, roles, complete, unlabeled.num_rows, options, data)
    empty = next((name for name in NAMES if not look.division.rows[name]), None)
    if empty is not None:
        raise DataError(
            f"{data} has {complete.num_rows} rows with text and label, and none of them is left for {empty}",
            allowed="The first row of a class is for training; the larger classes give rows to the other splits",
            do="Add labeled rows",
        )
    _write(look, complete, unlabeled)
    return look


def _read(data: TableSource) -> tuple[pa.Table, str]:
    """Read a table, or a folder with one folder of text files per label."""
    if not isinstance(data, str | Path):
        located = locate(data)
        return tables.read(located)[0], str(located)
    data = Path(data)
    if not data.is_dir() or has_tables(data):
        table, recognized = tables.read(data)
        return table, f"{data.name} ({recognized})"
    rows = [
        {"text": path.read_text(encoding="utf-8", errors="replace"), "label": folder.name}
        for folder in sorted(path for path in data.iterdir() if path.is_dir())
        for pattern in _TEXT_FILES
        for path in sorted(folder.glob(pattern))
    ]
    if not rows:
        raise DataError(
            f"{data} has no folders with text files",
            allowed="A folder of texts has one folder of .txt files per label",
            do="Pass a file, or arrange the texts by label",
        )
    return pa.Table.from_pylist(rows), f"{data.name}, a folder of texts"


def _complete(table: pa.Table, roles: Roles) -> tuple[pa.Table, pa.Table]:
    """Return the rows with text and label, and the others."""
    wanted = [table.column(name).to_pylist() for name in (*roles.text, roles.label)]
    keep = [all(_is_there(value) for value in row) for row in zip(*wanted, strict=True)]
    return table.filter(pa.array(keep)), table.filter(pa.array([not flag for flag in keep]))


def _is_there(value: Any) -> bool:
    return value is not None and value == value and (not isinstance(value, str | list) or len(value) > 0)


def _look(
    source: str,
    described: list[Column],
    roles: Roles,
    table: pa.Table,
    incomplete: int,
    options: InitOptions,
    data: TableSource,
) -> Look:
    texts, classes = texts_and_classes(table, roles)
    labels = table.column(roles.label).to_pylist()
    if roles.task == "multi_label":
        labels = [tuple(roles.labels_of(value)) for value in labels]
    groups = table.column(options.group).to_pylist() if options.group else None
    division = split(texts, classes, groups)
    is_listed = roles.task in ("tag", "multi_label")
    counts = Counter(tag for row in labels for tag in row) if is_listed else Counter(labels)
    model = start.find_model(options.model)
    point = start.choose(model, texts, len(division.rows["train"]))
    folder = options.output or Path(Path(data.dataset if isinstance(data, DatasetSplit) else str(data)).stem)
    warnings = _warnings(roles, division, counts, incomplete, point)
    return Look(
        source, described, roles, division, incomplete, counts, [len(t.split()) for t in texts], point, folder, warnings
    )


def texts_and_classes(table: pa.Table, roles: Roles) -> tuple[list[str], list[Any]]:
    """Return the text of each row and the class by which it is divided; numbers and lists of tags all have one."""
    texts = [_as_text(row) for row in zip(*(table.column(name).to_pylist() for name in roles.text), strict=True)]
    labels = table.column(roles.label).to_pylist()
    if roles.task == "multi_label":
        return texts, _rarest([tuple(roles.labels_of(value)) for value in labels])
    return texts, labels if roles.task == "classify" else [0] * len(labels)


def _rarest(labels: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the rarest label of each row, so that dividing by it puts rare labels into every split."""
    counts = Counter(label for row in labels for label in row)
    return [min(row, key=lambda label: (counts[label], str(label)), default=None) for row in labels]


def _as_text(row: tuple[Any, ...]) -> str:
    return " ".join(" ".join(map(str, value)) if isinstance(value, list) else str(value) for value in row)


def _warnings(
    roles: Roles, division: Split, counts: Counter[Any], incomplete: int, point: start.StartingPoint
) -> list[str]:
    found = []
    if incomplete:
        found.append(f"{incomplete:,} rows without text or label were left out (unlabeled.parquet)")
    if division.duplicates:
        rows = "row repeats" if division.duplicates == 1 else "rows repeat"
        found.append(f"{division.duplicates:,} {rows} the text of another; copies are in the same split")
    if division.contradictions:
        found.append(f"{division.contradictions:,} texts occur with different labels")
    if roles.task in ("classify", "multi_label"):
        rare = [repr(label) for label, count in counts.items() if count < 10]
        if rare:
            found.append(f"classes with fewer than ten rows: {', '.join(rare[:5])}" + (", …" if len(rare) > 5 else ""))
        alike = labelled.similar_labels(counts)
        if alike:
            found.append(
                f"labels that differ only by case or spaces: {'; '.join(alike[:5])}. They count as different classes; "
                "if they are meant to be equal, correct the file and run `headstart init` again"
            )
        largest = max(counts.values()) / counts.total()
        if largest > 0.8 and roles.task == "classify":
            found.append(f"{largest:.0%} of the rows have one label: compare with the baseline `majority`")
    if point.cut > 0.05:
        found.append(f"{point.cut:.0%} of the texts are longer than {point.max_length} tokens and will be cut")
    return found


def _write(look: Look, table: pa.Table, unlabeled: pa.Table) -> None:
    look.folder.mkdir(parents=True, exist_ok=True)
    recipe_path = look.folder / "finetune.yaml"
    if recipe_path.exists():
        raise DataError(
            f"{recipe_path} exists already", allowed="init writes a new recipe", do="Pass --output FOLDER, or remove it"
        )
    # pyarrow takes a relative path with a colon for a URL.
    folder = look.folder.absolute()
    for name in NAMES:
        pq.write_table(table.take(look.division.rows[name]), folder / f"{name}.parquet")
    if unlabeled.num_rows:
        pq.write_table(unlabeled, folder / "unlabeled.parquet")
    artifact.write_whole(look.folder / "data.html", _page(look, table))
    artifact.write_whole(recipe_path, start.recipe(look.folder.as_posix(), look.roles, look.start, look.facts()))


def _page(look: Look, table: pa.Table) -> str:
    """Return one page about the data: columns, classes by split, lengths, examples."""
    described = PageTable(
        ["column", "kind", "distinct", "missing"],
        [[c.name, c.kind, f"{c.distinct:,}", f"{c.missing:,}"] for c in look.columns],
        [False, False, True, True],
    )
    labels = table.column(look.roles.label).to_pylist()
    classes = None
    if look.roles.task in ("classify", "multi_label"):
        sets = [look.roles.labels_of(label) if look.roles.task == "multi_label" else [label] for label in labels]
        by_split = {name: Counter(label for row in look.division.rows[name] for label in sets[row]) for name in NAMES}
        rows = [[str(label), *(f"{by_split[name][label]:,}" for name in NAMES), f"{count / look.counts.total():.1%}"]
                for label, count in look.counts.most_common(_SHOWN_CLASSES)]  # fmt: skip
        classes = PageTable(["class", *NAMES, "share"], rows, [False, True, True, True, True])
    lengths = Counter(_bucket(count) for count in look.words)
    examples = [(str(labels[row]), _as_text(tuple(table.column(name)[row].as_py() for name in look.roles.text))[:500])
                for row in look.division.rows["train"][:8]]  # fmt: skip
    return render(
        _TEMPLATE,
        look=look,
        columns=described,
        classes=classes,
        lengths=charts.bar_chart(
            "Texts by number of words, from", {f"{key:,}": lengths[key] for key in sorted(lengths)}
        ),
        examples=examples,
    )


def _bucket(words: int) -> int:
    return 0 if words == 0 else 1 << (words.bit_length() - 1)
