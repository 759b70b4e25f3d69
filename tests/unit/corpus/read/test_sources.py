"""Sources: what patterns, folders and addresses stand for, and what is left aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from headstart.core.errors import DataError
from headstart.corpus.read import streams
from headstart.corpus.read.sources import SourceConfig, files_of, identities, licence_of, parts_of, passed_over

REAL = pyarrow.fs.FileSystem


def source(*files: str | Path) -> SourceConfig:
    return SourceConfig(name="s", files=[str(file) for file in files])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set as a hub gives it."""
    (tmp_path / "hub" / "ä b").mkdir(parents=True)
    for name in (
        "a.jsonl",
        "ä b/c d.jsonl",
        "b.json",
        "d.arrow",
        "e.jsonl.bz2",
        "f.parquet.gz",
        "LICENSE.txt",
        "g.txt",
    ):
        (tmp_path / "hub" / name).write_text('{"text": "x"}\n')
    (tmp_path / "hub" / "README.md").write_text("---\nlicense: cc0-1.0\n---\n")
    return tmp_path / "hub"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Makes s3:// addresses lead to the folder, by pyarrow's own parser, and notes their options."""
    asked = list[str]()

    class Store:
        @staticmethod
        def from_uri(address: str) -> Any:
            if not address.startswith("s3://"):
                return REAL.from_uri(address)
            path, _, options = address.removeprefix("s3://").partition("?")
            asked.append(options)
            return REAL.from_uri(f"file://{folder.parent}/{path.rpartition('@')[2]}")

    monkeypatch.setattr(pyarrow.fs, "FileSystem", Store)
    return asked


def test_what_a_folder_holds_beside_the_data_is_named_and_not_read(folder: Path) -> None:
    assert list(files_of(source(folder)).values()) == ["a.jsonl", "g.txt", "ä b/c d.jsonl"]
    aside = ["LICENSE.txt", "README.md", "b.json", "d.arrow", "e.jsonl.bz2", "f.parquet.gz"]
    assert passed_over(source(folder)) == aside
    assert passed_over(source(folder, folder / "LICENSE.txt")) == aside[1:], "a file that is asked for by name is read"
    with pytest.raises(DataError, match=r"b\.json has a suffix that no reader knows"):
        files_of(source(folder / "*.json"))


def test_names_are_paths_from_what_patterns_have_in_common(tmp_path: Path) -> None:
    for name in ("x/a.txt", "y/a.txt", "y/z/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")

    def names(*files: str | Path) -> list[str]:
        assert len(set(files_of(source(*files)).values())) == len(files_of(source(*files)))
        return list(files_of(source(*files)).values())

    assert names(tmp_path / "x" / "a.txt") == names(tmp_path / "x") == names(tmp_path / "x" / "*.txt") == ["a.txt"]
    assert names(tmp_path / "x" / "a.txt", tmp_path / "y" / "a.txt") == ["x/a.txt", "y/a.txt"]
    assert names(tmp_path / "*" / "a.txt") == names(f"{tmp_path}/y/../[xy]/a.txt") == ["x/a.txt", "y/a.txt"]
    assert names(tmp_path / "y") == ["a.txt", "z/a.txt"]
    assert names(tmp_path / "y" / "**" / "a.txt", tmp_path / "x") == ["x/a.txt", "y/a.txt", "y/z/a.txt"]
    assert [part.file for part in parts_of([source(tmp_path)], 64)] == ["x/a.txt", "y/a.txt", "y/z/a.txt"]
    assert [file["name"] for file in identities([source(tmp_path)])["s"]] == ["x/a.txt", "y/a.txt", "y/z/a.txt"]


def test_file_addresses_are_local_paths_however_they_are_written(folder: Path) -> None:
    for address in (folder.as_uri(), f"file://{folder}", f"file://localhost{folder}?x=1"):
        assert files_of(source(address)) == files_of(source(folder)) and licence_of(source(address)) == "cc0-1.0"
    for address in ((folder / "ä b" / "c d.jsonl").as_uri(), f"file://{folder}/ä b/*.jsonl"):
        (path,) = files_of(source(address))
        assert [line.raw for line in streams.lines(path)] == [b'{"text": "x"}\n']
    with pytest.raises(DataError, match="third slash"):
        files_of(source("file://host/a.jsonl"))


def test_addresses_in_a_store_keep_their_options_and_any_letters(folder: Path, store: list[str]) -> None:
    found = files_of(source("s3://hub?region=x"))
    assert list(found.values()) == ["a.jsonl", "g.txt", "ä b/c d.jsonl"]
    assert passed_over(source("s3://hub"))[0] == "LICENSE.txt"
    for path in found:
        assert path.startswith("s3://hub/") and path.endswith("?region=x")
        assert [line.raw for line in streams.lines(path)] == [b'{"text": "x"}\n']
    assert set(store) == {"region=x", ""}
    for address in ("s3://hub/ä b/c d.jsonl?region=x", "s3://hub/%C3%A4%20b/[c]*.jsonl?region=x"):
        assert files_of(source(address)) == {"s3://hub/%C3%A4%20b/c%20d.jsonl?region=x": "c d.jsonl"}
    mixed = files_of(source("s3://key:secret@hub/a.jsonl", folder / "a.jsonl"))
    assert len(set(mixed.values())) == 2 and not any("secret" in name for name in mixed.values())
    assert identities([source("s3://hub/a.jsonl?x=1")])["s"][0]["name"] == "a.jsonl"


def test_what_cannot_be_opened_is_told_in_our_words(tmp_path: Path) -> None:
    for address in ("https://example.org/a.jsonl", "nowhere://x/a.jsonl"):
        with pytest.raises(DataError, match=r"cannot be opened \(.*addresses of s3, gs, abfs, hdfs, hf and file"):
            files_of(source(address))
    with pytest.raises(
        DataError, match=r"no file matches .*sources\.files takes paths and globs.*Check sources\.files"
    ):
        files_of(source(tmp_path / "*.jsonl"))
