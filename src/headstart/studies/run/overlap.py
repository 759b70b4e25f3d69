"""Count the items of a test set that occur in the pre-training corpus, by the 13-grams of corpus cleaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import registry
from headstart.core.contracts import Task
from headstart.corpus.dedup.contamination import Contamination, ContaminationConfig, EvaluationSet, write_table
from headstart.corpus.dedup.fingerprints import normalize
from headstart.corpus.parts import engine
from headstart.corpus.read import mixture
from headstart.corpus.read.readers import Receipt
from headstart.studies.run.nodes import OverlapRecipe
from headstart.tasks import labelled

_BATCH_CHARACTERS = 8_000_000
_BLANK = "."
"""Replaces a blank text, which the reader of evaluation sets would skip; it contains no word to search for."""


def count(recipe: OverlapRecipe, work: Path) -> dict[str, Any]:
    """Return the rows with a text, gold columns excluded, that shares `words` consecutive words with the corpus."""
    engine.load()
    task: Task = registry.build("tasks", recipe.task)
    text_columns = [column for column in task.columns("test") if not column.is_gold]
    rows = labelled.fixed_subset(labelled.read(recipe.test, text_columns), recipe.test_rows)
    columns = {name: [_text(value) or _BLANK for value in values] for name, values in rows.columns.items()}
    items = work / "items.parquet"
    pq.write_table(pa.table(columns), items)
    entry = EvaluationSet(name="test", files=[str(items)], text=list(columns))
    config = ContaminationConfig(sets=[entry], words=recipe.words, action="mark")
    (facts,) = write_table(config, work / "ngrams.parquet")
    finder = Contamination(config, work / "ngrams.parquet")
    for texts in _batches(recipe.corpus):
        finder.apply(engine.evaluate(pa.table({"text": texts}), {"normal": normalize(_column())}))
    # Items are numbered column by column.
    overlapping = sorted({item % len(rows) for item in finder.found_items})
    return {"rows": overlapping, "of": len(rows), "texts_too_short": facts["too_short"], "words": recipe.words}


def _text(value: Any) -> str:
    """Return a value as text; the words or choices of a list are joined."""
    return (" ".join(map(str, value)) if isinstance(value, list) else str(value)).strip()


def _column() -> Any:
    from daft import col

    return col("text")


def _batches(corpus: mixture.Corpus) -> Iterator[Sequence[str]]:
    """Yield the documents of all parts of a corpus in batches of a few megabytes."""
    batch: list[str] = []
    size = 0
    for part in mixture.parts_of(corpus).values():
        for document in mixture.documents(part, Receipt()):
            batch.append(document.text)
            size += len(document.text)
            if size >= _BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch
