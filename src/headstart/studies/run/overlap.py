"""Which items of a test set stand in the pre-training corpus, by the 13-grams of corpus cleaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import registry
from headstart.core.contracts import Task
from headstart.corpus.dedup.contamination import Contamination, ContaminationConfig, EvaluationSet, write_table
from headstart.corpus.dedup.fingerprints import normal
from headstart.corpus.parts import engine
from headstart.corpus.read import mixture, readers
from headstart.corpus.read.readers import Receipt
from headstart.studies.run.expand import OverlapRecipe
from headstart.tasks import labelled

_BATCH_CHARACTERS = 8_000_000
_NOTHING = "."
"""In place of a blank text, which the reader of evaluation sets would pass over: it has no word to be found by."""


def count(recipe: OverlapRecipe, work: Path) -> dict[str, Any]:
    """Return the rows of which some text, gold left aside, holds n words in a row that the corpus holds too."""
    engine.load()
    task: Task = registry.build("tasks", recipe.task)
    asked = [column for column in task.columns("test") if not column.is_gold]
    rows = labelled.some(labelled.read(recipe.test, asked), recipe.test_rows)
    columns = {name: [_text(value) or _NOTHING for value in values] for name, values in rows.columns.items()}
    items = work / "items.parquet"
    pq.write_table(pa.table(columns), items)
    entry = EvaluationSet(name="test", files=[str(items)], text=list(columns))
    config = ContaminationConfig(sets=[entry], words=recipe.words, action="mark")
    (facts,) = write_table(config, work / "ngrams.parquet")
    finder = Contamination(config, work / "ngrams.parquet")
    for texts in _batches(recipe.corpus):
        finder.apply(engine.evaluate(pa.table({"text": texts}), {"normal": normal(_column())}))
    # Items are numbered column by column.
    held = sorted({item % len(rows) for item in finder.found})
    return {"rows": held, "of": len(rows), "texts_too_short": facts["too_short"], "words": recipe.words}


def _text(value: Any) -> str:
    """Return a value as text, of a list of words or choices all of them in a row."""
    return (" ".join(map(str, value)) if isinstance(value, list) else str(value)).strip()


def _column() -> Any:
    from daft import col

    return col("text")


def _batches(corpus: mixture.Corpus) -> Iterator[Sequence[str]]:
    """Yield the documents of all parts, some megabytes at a time."""
    held: list[str] = []
    size = 0
    for part in mixture.parts_of(corpus).values():
        for document in readers.documents(part, Receipt()):
            held.append(document.text)
            size += len(document.text)
            if size >= _BATCH_CHARACTERS:
                yield held
                held, size = [], 0
    if held:
        yield held
