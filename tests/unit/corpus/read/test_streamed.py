"""The parts of a streamed corpus: declared from the listing, and together exactly the documents of all files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.core.errors import DataError
from headstart.corpus.read import readers
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.corpus.read.streamed import StreamedCorpus


@pytest.fixture
def files(tmp_path: Path) -> str:
    """A large file of JSON Lines, a Parquet file with row groups, and small text files."""
    texts = [f"document {number} " + "word " * (number % 50) for number in range(600)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:300]))
    pq.write_table(pa.table({"text": texts[300:500]}), tmp_path / "b.parquet", row_group_size=20)
    for number in range(500, 600, 10):
        (tmp_path / f"c{number}.txt").write_text("\n\n".join(texts[number : number + 10]))
    return str(tmp_path / "*.*")


def corpus_of(files: str, **stream: float) -> StreamedCorpus:
    return StreamedCorpus.model_validate({"files": files, "validation": 0.1, "stream": stream or True})


def test_parts_have_every_document_once_and_the_split_of_the_whole_corpus(files: str) -> None:
    corpus = corpus_of(files, part_mb=0.004)
    assert len(corpus.parts) > 10 and max(len(part) for part in corpus.parts) > 1
    whole = Receipt()
    expected = [
        (split, document.text)
        for split, document in readers.split_documents(CorpusConfig(files=[files], validation=0.1), 3, whole)
    ]
    receipts = [Receipt() for _ in corpus.parts]
    found = [
        (split, document.text)
        for part, receipt in enumerate(receipts)
        for split, document in corpus.part_documents(part, 3, receipt)
    ]
    assert found == expected
    assert sum(receipt.rows for receipt in receipts) == whole.rows
    # One part, if the files are smaller than that.
    assert len(corpus_of(files).parts) == 1


def test_held_out_documents_must_be_among_the_first(files: str) -> None:
    corpus = corpus_of(files, part_mb=0.0001).model_copy(update={"validation": 0.0001})
    with pytest.raises(DataError, match="in the validation split"):
        list(corpus.head_documents([0], 0, Receipt()))
