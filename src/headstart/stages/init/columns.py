"""What the columns of a table are: text, label, words and tags, numbers, dates, ids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from headstart.core.errors import DataError

_SAMPLE = 5_000
_LABEL_NAMES = re.compile(
    r"^(gold_?)?(labels?|class|classes|category|categories|target|sentiment|rating|stars|score|scores|y|tags?|ner_tags|"
    r"intent|topic|emotion|polarity|avis|note|classe|étiquette|etiquette|kategorie|klasse|bewertung)$",
    re.IGNORECASE,
)
_PAIRS = (
    ("premise", "hypothesis"), ("sentence1", "sentence2"), ("text1", "text2"), ("text_a", "text_b"),
    ("question1", "question2"),
)  # fmt: skip
_DATE = re.compile(r"^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d{1,2}:\d{2}(:\d{2})?)?")
_SEPARATORS = (";", "|", ",")
_MANY_CLASSES = 100


@dataclass(frozen=True)
class Column:
    """Facts about one column."""

    name: str
    kind: str
    """text, category, number, date, id, lists of words, or empty."""
    missing: int
    distinct: int
    mean_words: float

    def describe(self) -> str:
        """Return the facts in a few words."""
        return f"{self.name} ({self.kind}, {self.distinct:,} distinct values, {self.missing:,} missing)"


@dataclass(frozen=True)
class Roles:
    """The columns that a task reads, and the kind of the task."""

    task: str
    """classify, multi_label, regression or tag."""
    text: tuple[str, ...]
    label: str
    separator: str | None = None
    """What separates the labels of a row, for multi_label in a column of texts."""

    def labels_of(self, value: Any) -> list[Any]:
        """Return the labels of a row of a multi-label task."""
        if isinstance(value, str):
            return [part.strip() for part in value.split(self.separator or ";") if part.strip()]
        return list(value) if isinstance(value, list) else [value]


def describe(table: pa.Table) -> list[Column]:
    """Return the facts of every column; a sample of rows shows whether they are texts or ids."""
    return [_describe(name, table.column(name)) for name in table.column_names]


def assign(table: pa.Table, columns: Sequence[Column], text: Sequence[str], label: str | None) -> Roles:
    """Return which columns are the text and the label; raises with what is known if that is not clear."""
    known = {column.name: column for column in columns}
    for name in [*text, *([label] if label else [])]:
        if name not in known:
            raise DataError(f"there is no column {name!r}", allowed=f"The columns: {', '.join(known)}")
    words = _words_and_tags(table, columns, text, label)
    if words is not None:
        return words
    chosen_text = tuple(text) or _text(columns, label)
    chosen_label = label or _label(columns, chosen_text)
    values = table.column(chosen_label).drop_null().to_pylist()
    task = _task(known[chosen_label], values)
    return Roles(task, chosen_text, chosen_label, _separator(values) if task == "multi_label" else None)


def _describe(name: str, values: pa.ChunkedArray) -> Column:
    sample = [value for value in values.slice(0, _SAMPLE).to_pylist() if value not in (None, "")]
    missing = sum(value in (None, "") or value != value for value in values.to_pylist())
    if not sample:
        return Column(name, "empty", missing, 0, 0.0)
    if isinstance(sample[0], list):
        return Column(name, "lists of words", missing, len({str(value) for value in sample}), 0.0)
    distinct = len({str(value) for value in values.to_pylist()}) - bool(missing)
    words = sum(len(str(value).split()) for value in sample) / len(sample)
    if pa.types.is_temporal(values.type) or all(isinstance(v, str) and _DATE.match(v) for v in sample):
        kind = "date"
    elif all(isinstance(value, int | float) and not isinstance(value, bool) for value in sample):
        kind = "id" if _counts_up(sample) else "number"
    elif words >= 3 and distinct > 0.3 * len(values):
        kind = "text"
    elif distinct > 0.9 * len(values) and words < 2 and len(values) > 10:
        kind = "id"
    else:
        kind = "category"
    return Column(name, kind, missing, distinct, words)


def _counts_up(sample: Sequence[Any]) -> bool:
    """True for the numbers of rows: each is larger than the one before, with few gaps."""
    ordered = all(isinstance(v, int) for v in sample) and all(a < b for a, b in pairwise(sample))
    return ordered and len(sample) > 10


def _text(columns: Sequence[Column], label: str | None) -> tuple[str, ...]:
    names = {column.name.lower(): column.name for column in columns}
    for pair in _PAIRS:
        if all(name in names for name in pair):
            return tuple(names[name] for name in pair)
    texts = [column for column in columns if column.kind == "text" and column.name != label]
    if not texts:
        # Short texts: names of products, tweets of one word.
        texts = [c for c in columns if c.kind in ("id", "category") and c.mean_words > 1.2 and c.name != label]
    if not texts:
        raise DataError(
            "no column looks like text",
            allowed=f"The columns: {'; '.join(column.describe() for column in columns)}",
            do="Pass --text COLUMN",
        )
    return (max(texts, key=lambda column: column.mean_words).name,)


def _label(columns: Sequence[Column], text: Sequence[str]) -> str:
    rest = [column for column in columns if column.name not in text and column.kind not in ("empty", "date", "id")]
    named = [column for column in rest if _LABEL_NAMES.match(column.name.strip())]
    likely = named or [column for column in rest if column.kind == "category" and column.distinct <= _MANY_CLASSES]
    if len(likely) != 1:
        found = "several columns could be the label" if likely else "no column looks like a label"
        shown = likely or [column for column in columns if column.name not in text]
        raise DataError(
            found,
            allowed=f"The columns: {'; '.join(column.describe() for column in shown)}",
            do="Pass --label COLUMN",
        )
    return likely[0].name


def _task(label: Column, values: Sequence[Any]) -> str:
    """Return the kind of task that a label column asks for; raises if a person must decide."""
    counts = Counter(str(value) for value in values)
    if len(counts) < 2:
        only = next(iter(counts), "nothing")
        raise DataError(
            f"every row of the column {label.name!r} has the label {only!r}",
            allowed="A model is trained to tell labels apart, so it needs two or more",
            do="Add rows with another label, or pass --label COLUMN",
        )
    if label.kind == "number":
        is_whole = all(float(value).is_integer() for value in values)
        return "classify" if is_whole and len(counts) <= 20 else "regression"
    if any(isinstance(value, list) for value in values) or _separator(values) is not None:
        return "multi_label"
    if label.kind in ("id", "date", "text") or len(counts) > max(_MANY_CLASSES, len(values) / 5):
        raise DataError(
            f"the column {label.name!r} has {len(counts):,} different values in {len(values):,} rows",
            allowed="Labels are a small set of classes, or numbers",
            do="Pass --label COLUMN",
        )
    return "classify"


def _separator(values: Sequence[Any]) -> str | None:
    """Return what separates several labels in a column of texts; None if rows have one label each."""
    counts = Counter(value for value in values if isinstance(value, str))
    for separator in _SEPARATORS:
        combined = [label for label in counts if separator in label]
        pieces = {piece.strip() for label in counts for piece in label.split(separator)}
        if len(combined) >= 2 and len(pieces) < len(counts) and sum(counts[label] for label in combined) > 2:
            return separator
    return None


def _words_and_tags(table: pa.Table, columns: Sequence[Column], text: Sequence[str], label: str | None) -> Roles | None:
    """Return the roles of two columns with lists of equal length: words and their tags."""
    lists = [column.name for column in columns if column.kind == "lists of words"]
    wanted = [name for name in (*text, label) if name]
    if len(lists) < 2 or any(name not in lists for name in wanted):
        return None
    sample = {name: table.column(name).slice(0, _SAMPLE).to_pylist() for name in lists}
    distinct = {name: len({word for row in rows for word in row or []}) for name, rows in sample.items()}
    tags = label or min(lists, key=distinct.__getitem__)
    words = text[0] if text else max((name for name in lists if name != tags), key=distinct.__getitem__)
    rows = table.select([words, tags]).slice(0, _SAMPLE).to_pylist()
    if any(len(row[words] or []) != len(row[tags] or []) for row in rows):
        return None
    return Roles("tag", (words,), tags)
