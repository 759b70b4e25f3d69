"""The parts of a streamed corpus: declared from the listing, and together exactly the documents of all files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.core.errors import DataError
from headstart.corpus.read import readers, stores, streamed
from headstart.corpus.read.attempts import Version
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.corpus.read.streamed import FileRange, StreamedCorpus


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


def texts_of(corpus: StreamedCorpus, part: int) -> list[str]:
    return [document.text for _, document in corpus.part_documents(part, 3, Receipt())]


@pytest.mark.parametrize(("rows_in_group", "parts"), [(1000, 1), (200, 3), (10, 15)])
def test_a_parquet_file_has_no_more_parts_than_row_groups(rows_in_group: int, parts: int, tmp_path: Path) -> None:
    texts = [f"document {number} " + os.urandom(50).hex() for number in range(600)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts}), path, row_group_size=rows_in_group)
    corpus = corpus_of(str(path), part_mb=path.stat().st_size / 15e6)
    found = [texts_of(corpus, part) for part in range(len(corpus.parts))]
    assert len(found) == parts and all(found)
    assert [text for part in found for text in part] == texts


def test_footers_are_read_of_large_parquet_files_alone(
    files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"x" * 20_000)
    pq.write_table(pa.table({"text": ["small"]}), tmp_path / "small.parquet")
    read: list[str] = []
    groups_of = streamed.tables.groups_of

    def counted(path: str) -> int:
        read.append(Path(path).name)
        return groups_of(path)

    monkeypatch.setattr(streamed.tables, "groups_of", counted)
    corpus = corpus_of(files, part_mb=0.004)
    # A file that cannot be opened is one part, and an error when it is read.
    broken = [number for number, part in enumerate(corpus.parts) if part[0].path.endswith("broken.parquet")]
    assert sorted(read) == ["b.parquet", "broken.parquet"] and len(broken) == 1
    with pytest.raises(DataError, match=r"broken\.parquet cannot be read as parquet"):
        texts_of(corpus, broken[0])


def test_the_division_of_small_files_takes_time_in_proportion_to_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    class Counted(FileRange):
        def __getattribute__(self, name: str) -> Any:
            if name == "size":
                reads.append(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(streamed, "FileRange", Counted)
    pattern, number = "s3://bucket/*.txt", 500
    objects = [stores.StoredObject(f"s3://bucket/{i:05d}.txt", Version(1000, "e")) for i in range(number)]
    corpus = corpus_of(pattern)
    corpus._listed[pattern] = stores.Listing("s3://bucket", objects, False)
    assert len(corpus.parts) == 1 and len(corpus.parts[0]) == number
    assert len(reads) <= 10 * number


def written_again(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"document", b"DOCUMENT"))
    listed = path.stat()
    os.utime(path, ns=(listed.st_atime_ns, listed.st_mtime_ns + 1_000_000))


def swapped(path: Path) -> None:
    """Rename another file of the same size and time to the path."""
    other, listed = path.with_suffix(".new"), path.stat()
    other.write_bytes(path.read_bytes().replace(b"document", b"DOCUMENT"))
    os.utime(other, ns=(listed.st_atime_ns, listed.st_mtime_ns))
    other.rename(path)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


CHANGES = [
    (written_again, "has the same size, but was written again"), (swapped, "was written again"),
    (cut_off, r"had [0-9,]+ bytes and has 3,000"), (Path.unlink, "it is gone"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["a.jsonl", "b.parquet", "c500.txt"])
@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_local_file_that_is_replaced_before_it_is_read_is_an_error(
    change: Callable[[Path], None], message: str, name: str, files: str, tmp_path: Path
) -> None:
    if name == "c500.txt":
        (tmp_path / name).write_text("document " * 1000)
    corpus = corpus_of(str(tmp_path / name), part_mb=0.004)
    assert texts_of(corpus, 0)
    change(tmp_path / name)
    for part in range(len(corpus.parts)):
        with pytest.raises(DataError, match=f"{name} was replaced after it was listed .*{message}"):
            texts_of(corpus, part)


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_local_file_that_is_replaced_while_it_is_read_is_an_error(
    change: Callable[[Path], None], message: str, files: str, tmp_path: Path
) -> None:
    corpus = corpus_of(str(tmp_path / "a.jsonl"))
    documents = corpus.part_documents(0, 3, Receipt())
    next(documents)
    change(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match=rf"a\.jsonl was replaced after it was listed .*{message}"):
        list(documents)


def test_a_fault_in_a_file_that_was_replaced_is_reported_as_its_replacement(files: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [json.dumps({"text": "x" * 100_000}) + "\n" for _ in range(20)]
    path.write_text("".join(rows))
    corpus = corpus_of(str(path))
    documents = corpus.part_documents(0, 3, Receipt())
    next(documents)
    path.write_text("".join(row.replace('"text"', '"body"') for row in rows))
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, match="was replaced after it was listed"):
        list(documents)
