"""Texts of the corpus without labels, as a file that a student reads beside the labeled rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import artifact, config
from headstart.corpus.read import readers
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.corpus.read.stores import StoredObject
from headstart.stages.finetune.recipe import FinetuneRecipe

_KIND = "unlabeled texts"
_FILE = "texts.parquet"


def column_of(base: FinetuneRecipe) -> str | None:
    """Return the text column of a task that labels a single text; None for other tasks."""
    columns = getattr(base.task, "text", None)
    return columns[0] if isinstance(columns, list) and len(columns) == 1 else None


def write(output: Path, corpus: Sequence[Path | StoredObject], column: str, most: int) -> tuple[Path, int]:
    """Write the first texts of a corpus to a file in the output, and return it with their number."""
    described = readers.describe(corpus)
    folder = output / f"unlabeled-{config.fingerprint([described, column, most])}"
    if not artifact.is_complete(folder):
        files = [str(file.absolute()) if isinstance(file, Path) else file.url for file in corpus]
        receipt = Receipt()
        documents = readers.documents(CorpusConfig(files=files), receipt)
        rows = [document.text for document in islice(documents, most)]
        receipt.warn("advise")
        with artifact.staged(folder, _KIND, rows=len(rows)) as staging:
            pq.write_table(pa.table({column: pa.array(rows, pa.string())}), staging / _FILE)
    return folder / _FILE, int(artifact.read_manifest(folder)["rows"])
