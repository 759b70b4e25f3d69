"""Sources: the files that patterns, folders and URLs match, and the files that are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.core.errors import DataError
from headstart.corpus.read import stores, streams
from headstart.corpus.read.attempts import Version
from headstart.corpus.read.sources import SourceConfig, files_of, identities, license_of, parts_of, skipped_files


def source(*files: str | Path) -> SourceConfig:
    return SourceConfig(name="s", files=[str(file) for file in files])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set as downloaded from a hub."""
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
    """Maps s3:// URLs to the folder, and records their options."""
    seen = list[str]()

    class Store:
        checks_ranges = False

        def __init__(self, store_url: str, options: str, shown: str) -> None:
            self.root = folder.parent / store_url.removeprefix("s3://")
            seen.append(options)

        def resolve(self, path: str) -> str:
            return path

        def stat(self, path: str) -> Version | None:
            file = self.root / path
            return Version(file.stat().st_size, str(file.stat().st_mtime_ns)) if file.is_file() else None

        def listing(self, path: str) -> list[tuple[str, Version | None]]:
            found = [file for file in (self.root / path).rglob("*") if file.is_file()]
            return [(str(file.relative_to(self.root)), self.stat(str(file))) for file in found]

        def read(self, path: str, version: Version, start: int, stop: int) -> bytes:
            return (self.root / path).read_bytes()[start:stop]

        def close(self) -> None:
            pass

    monkeypatch.setattr(stores, "FsspecStore", Store)
    return seen


def test_other_files_of_a_folder_are_listed_and_not_read(folder: Path) -> None:
    assert list(files_of(source(folder)).values()) == ["a.jsonl", "g.txt", "ä b/c d.jsonl"]
    skipped = ["LICENSE.txt", "README.md", "b.json", "d.arrow", "e.jsonl.bz2", "f.parquet.gz"]
    assert skipped_files(source(folder)) == skipped
    assert skipped_files(source(folder, folder / "LICENSE.txt")) == skipped[1:], "a file that is given by name is read"
    with pytest.raises(DataError, match=r"b\.json has an unsupported suffix"):
        files_of(source(folder / "*.json"))


def test_names_are_paths_from_the_common_root_of_the_patterns(tmp_path: Path) -> None:
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


def test_file_urls_are_local_paths_in_any_notation(folder: Path) -> None:
    for url in (folder.as_uri(), f"file://{folder}", f"file://localhost{folder}?x=1"):
        assert files_of(source(url)) == files_of(source(folder)) and license_of(source(url)) == "cc0-1.0"
    for url in ((folder / "ä b" / "c d.jsonl").as_uri(), f"file://{folder}/ä b/*.jsonl"):
        (path,) = files_of(source(url))
        assert [line.raw for line in streams.lines(path)] == [b'{"text": "x"}\n']
    with pytest.raises(DataError, match="third slash"):
        files_of(source("file://host/a.jsonl"))


def test_urls_of_a_store_keep_their_options_and_any_characters(folder: Path, store: list[str]) -> None:
    files = files_of(source("s3://hub?region=x"))
    assert list(files.values()) == ["a.jsonl", "g.txt", "ä b/c d.jsonl"]
    assert skipped_files(source("s3://hub"))[0] == "LICENSE.txt"
    for path in files:
        assert path.startswith("s3://hub/") and "?region=x#size=14&etag=" in path
        assert [line.raw for line in streams.lines(path)] == [b'{"text": "x"}\n']
    assert set(store) == {"?region=x", ""}
    for url in ("s3://hub/ä b/c d.jsonl?region=x", "s3://hub/%C3%A4%20b/[c]*.jsonl?region=x"):
        ((path, name),) = files_of(source(url)).items()
        assert path.startswith("s3://hub/%C3%A4%20b/c%20d.jsonl?region=x#") and name == "c d.jsonl"
    mixed = files_of(source("s3://hub/a.jsonl", folder / "a.jsonl"))
    assert len(set(mixed.values())) == 2
    assert identities([source("s3://hub/a.jsonl?x=1")])["s"][0]["name"] == "a.jsonl"


def test_a_file_that_changes_after_it_was_listed_is_an_error(folder: Path, store: list[str]) -> None:
    ((path, _),) = files_of(source("s3://hub/a.jsonl")).items()
    (folder / "a.jsonl").write_text('{"text": "y"}\n{"text": "z"}\n')
    with pytest.raises(DataError, match=r"s3://hub/a\.jsonl was replaced .* \(it had 14 bytes and has 28"):
        list(streams.lines(path))


def test_unsupported_urls_and_patterns_without_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere://x/a\.jsonl is not the URL of a store"):
        files_of(source("nowhere://x/a.jsonl"))
    with pytest.raises(
        DataError, match=r"no file matches .*sources\.files takes paths and globs.*Check sources\.files"
    ):
        files_of(source(tmp_path / "*.jsonl"))
