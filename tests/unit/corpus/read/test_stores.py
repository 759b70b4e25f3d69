"""Files on web servers and in S3: the rows of local files, whatever fails on the way, or an error with their name."""

from __future__ import annotations

import glob
import gzip
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.faults.campaigns.file_server import TRANSIENT, FaultyServer, Files
from tests.unit.checkpoint.local_hub import LocalHub

from headstart.core.errors import DataError, ResourceError
from headstart.corpus.read import attempts, readers, sources, stores, streams, urls
from headstart.corpus.read.attempts import Version
from headstart.corpus.read.clients import fsspec_store
from headstart.corpus.read.readers import CorpusConfig, Receipt

TEXTS = [
    f"Text {number}: to the north of the river, “so they say”, {number * 7919 % 1000} geese." for number in range(900)
]
HIDDEN = "tr0ub4dor"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(stores, "BLOCK_BYTES", 4096)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files in every format, some in a subfolder and one whose name needs encoding."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "more").mkdir()
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (folder / "a.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    (folder / "b c.jsonl").write_text(lines + "not JSON\n", encoding="utf-8")
    (folder / "d.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in TEXTS), encoding="utf-8")
    (folder / "e.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.table({"text": TEXTS}), folder / "f.parquet", row_group_size=200)
    (folder / "more" / "g.txt").write_text("deeper", encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def config_of(*files: str | Path) -> CorpusConfig:
    return CorpusConfig(files=[str(file) for file in files], max_reject_share=0.01)


def rows_of(config: CorpusConfig) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    receipt = Receipt()
    rows = [(document.id, document.text) for document in readers.documents(config, receipt)]
    return rows, receipt.summary()


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


@pytest.fixture
def server(folder: Path) -> FaultyServer:
    files = Files(contents(folder))

    def replace(path: str) -> None:
        files.contents[path] = files.contents[path][::-1]

    return FaultyServer(files, replace=replace)


@pytest.fixture
def address(server: FaultyServer) -> Iterator[str]:
    with server.served() as address:
        yield address


def test_rows_from_a_web_server_are_those_of_local_files(folder: Path, address: str) -> None:
    local, remote = config_of(*files_in(folder)), config_of(*(f"{address}/{path.name}" for path in files_in(folder)))
    assert rows_of(remote) == rows_of(local)
    assert readers.text_bytes(remote) == readers.text_bytes(local)
    described = readers.sources(remote)
    sizes = [(entry["name"], entry["bytes"]) for entry in readers.sources(local)]
    assert [(entry["name"], entry["bytes"]) for entry in described] == sizes
    assert all(len(entry["etag"]) == 34 for entry in described)


@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_transient_failure_of_every_second_request_changes_nothing(
    fault: str, folder: Path, server: FaultyServer, address: str
) -> None:
    server.plan = lambda method, path: fault if len(server.requests) % 2 else None
    urls_ = [f"{address}/{path.name}" for path in files_in(folder)]
    assert rows_of(config_of(*urls_)) == rows_of(config_of(*files_in(folder)))


@pytest.mark.parametrize("name", ["a.txt", "b c.jsonl", "d.csv", "e.jsonl.gz", "f.parquet"])
@pytest.mark.parametrize("fault", TRANSIENT)
def test_what_stays_unreadable_is_named_and_not_skipped(
    fault: str, name: str, server: FaultyServer, address: str
) -> None:
    config = config_of(f"{address}/{name}")
    readers.sources(config)
    listed = len(server.requests)
    server.plan = lambda method, path: fault
    with pytest.raises(DataError) as error:
        rows_of(config)
    encoded = name.replace(" ", "%20")
    assert f"of {address}/{encoded} cannot be read after 6 attempts" in str(error.value)
    assert "the range " in str(error.value) and len(server.requests) - listed >= attempts.ATTEMPTS


@pytest.mark.parametrize("name", ["a.txt", "e.jsonl.gz", "f.parquet"])
def test_a_file_that_is_replaced_between_listing_and_reading_is_an_error(
    name: str, server: FaultyServer, address: str
) -> None:
    config = config_of(f"{address}/{name}")
    readers.sources(config)
    server.replace(name)
    with pytest.raises(DataError, match=rf"{name} was replaced after it was listed"):
        rows_of(config)
    assert readers.sources(config_of(f"{address}/{name}")), "a new run takes the new version"


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(server: FaultyServer, address: str) -> None:
    server.plan = lambda method, path: "replaced" if len(server.requests) == 5 else None
    with pytest.raises(DataError, match=r"a\.txt was replaced after it was listed"):
        rows_of(config_of(f"{address}/a.txt"))


def test_other_answers_of_a_server_are_errors_that_name_the_file(
    folder: Path, server: FaultyServer, address: str
) -> None:
    server.plan = lambda method, path: {"a.txt": "403"}.get(path)
    with pytest.raises(DataError, match=r"a\.txt cannot be read: access was denied \(403.*renew"):
        rows_of(config_of(f"{address}/a.txt"))
    with pytest.raises(DataError, match=r"there is no file .*/none\.txt"):
        rows_of(config_of(f"{address}/none.txt"))
    with pytest.raises(DataError, match="does not list its files"):
        rows_of(config_of(f"{address}/*.txt"))
    whole = FaultyServer(Files(contents(folder), has_ranges=False))
    with whole.served() as plain, pytest.raises(DataError, match=r"a\.txt cannot be read by range"):
        rows_of(config_of(f"{plain}/a.txt"))
    with FaultyServer(Files(contents(folder), has_etags=False)).served() as plain:
        assert rows_of(config_of(f"{plain}/a.txt")) == rows_of(config_of(folder / "a.txt"))
        assert readers.sources(config_of(f"{plain}/a.txt"))[0]["etag"] == ""


def test_an_empty_file_is_read(server: FaultyServer, address: str) -> None:
    server.answer.contents["empty.txt"] = b""
    assert [*streams.chunks(str(stores.list_objects(f"{address}/empty.txt").objects[0]))] == []


def test_any_range_can_be_read_and_few_blocks_are_kept(folder: Path, address: str) -> None:
    content, rng = (folder / "a.txt").read_bytes(), random.Random(0)
    (stored,) = stores.list_objects(f"{address}/a.txt").objects
    with stores.opened(str(stored)) as file:
        for _ in range(200):
            start, size = rng.randrange(len(content) + 100), rng.randrange(9000)
            file.seek(start)
            assert file.read(size) == content[start : start + size]
            assert len(file._blocks) <= 4
        file.seek(-10, os.SEEK_END)
        assert file.read() == content[-10:] and file.read() == b""


def test_objects_are_listed_once(server: FaultyServer, address: str) -> None:
    config = config_of(f"{address}/a.txt")
    for _ in range(3):
        readers.sources(config)
    assert len(server.requests) == 1
    assert readers.sources(config.model_copy(update={"validation": 0.1})) and len(server.requests) == 1


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{HIDDEN}@host/a.txt", f"s3://key:{HIDDEN}@bucket/a.txt",
        f"https://host/a.txt?X-Amz-Signature={HIDDEN}", f"https://host/a.txt?v=1&sig={HIDDEN}",
        f"abfs://c:{HIDDEN}@account/a.txt", f"https://host/a.txt?access_token={HIDDEN}",
    ],
)  # fmt: skip
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(DataError, match="has credentials in") as error:
        rows_of(config_of(url))
    assert HIDDEN not in str(error.value) and "a.txt" in str(error.value)


def test_signed_urls_come_from_variables(monkeypatch: pytest.MonkeyPatch, server: FaultyServer, address: str) -> None:
    from headstart.core.recipes import variables

    monkeypatch.setenv("HS_TEST_SIGNED", HIDDEN)
    url = variables.expand(f"{address}/a.txt?sig=${{HS_TEST_SIGNED}}")
    assert HIDDEN in url and rows_of(config_of(url))[0]
    server.plan = lambda method, path: "500"
    with pytest.raises(DataError, match="cannot be read after") as error:
        rows_of(config_of(url))
    assert HIDDEN not in str(error.value)


def test_unknown_stores_options_and_missing_packages_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    with pytest.raises(DataError, match=r"nowhere://x/a\.txt is not the URL of a store.*https, s3, gs"):
        rows_of(config_of("nowhere://x/a.txt"))
    with pytest.raises(DataError, match=r"^the URL s3://bucket/a\.txt has the option 'x'") as error:
        rows_of(config_of("s3://bucket/a.txt?x=1"))
    assert "cannot be opened" not in str(error.value)

    def missing(scheme: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(ResourceError, match=r"needs a package that is not installed \(Install s3fs.*pip install"):
        rows_of(config_of("s3://bucket/a.txt"))


def test_missing_credentials_are_not_a_fault_of_the_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    url = "s3://bucket/a.txt?endpoint_override=http://127.0.0.1:9"
    with pytest.raises(DataError, match=r"there are no credentials.*Set AWS_ACCESS_KEY_ID") as error:
        rows_of(config_of(url))
    assert "network" not in str(error.value) and "attempt" not in caplog.text


@pytest.mark.parametrize("stop", [None, 30_000, 60_000])
def test_a_range_of_lines_is_verified_at_its_end_where_the_store_checks_no_ranges(
    stop: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = b"".join(b'{"text": "old %05d"}\n' % number for number in range(5000))
    kept = {"content": old, "etag": "1"}
    reads: list[int] = []

    class Unchecked:
        checks_ranges = False

        def stat(self, path: str) -> Version:
            return Version(len(kept["content"]), str(kept["etag"]))

        def read(self, path: str, version: Version, start: int, stop: int) -> bytes:
            reads.append(start)
            content = bytes(kept["content"])[start:stop]
            if len(reads) == 2 and is_replaced:
                kept.update(content=old.replace(b"old", b"new"), etag="2")
            return content

        def close(self) -> None:
            pass

    monkeypatch.setattr(stores, "_store_of", lambda *_: Unchecked())
    stored = str(stores.StoredObject("gs://bucket/a.jsonl", Version(len(old), "1")))
    is_replaced = False
    assert all(b"old" in line.raw for line in streams.lines(stored, 0, stop))
    reads.clear()
    is_replaced = True
    with pytest.raises(DataError, match=r"a\.jsonl was replaced after it was listed \(its ETag was 1 and is 2\)"):
        list(streams.lines(stored, 0, stop))


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("a.txt", "*.txt", True), ("x/a.txt", "*.txt", False), ("x/a.txt", "**/*.txt", True),
        ("a.txt", "**/*.txt", True), ("x/y/a.txt", "x/**", True), ("x/a.txt", "[xy]/a.*", True),
        (".a.txt", "*.txt", False), (".a.txt", ".*", True),
        (".x/a.txt", "**/*.txt", False), ("x/y/a.txt", "x/*", False),
    ],
)  # fmt: skip
def test_globs_match_as_in_the_file_system(name: str, pattern: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("x")
    assert urls.matches(name, pattern) is expected
    assert (str(tmp_path / name) in glob.glob(f"{tmp_path}/{pattern}", recursive=True)) is expected


# S3, by moto's server


@pytest.fixture
def s3(s3_port: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """A faulty server in front of moto, with the files in a bucket."""
    import boto3
    from tests.faults.campaigns.file_server import behind

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, HIDDEN)
    # Moto is slow: a file is five blocks and not twenty.
    monkeypatch.setattr(stores, "BLOCK_BYTES", 16384)
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{s3_port}", region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    for name, content in contents(folder).items():
        client.put_object(Bucket="bucket", Key=f"data/{name}", Body=content)

    def replace(path: str) -> None:
        client.put_object(Bucket="bucket", Key=path.removeprefix("bucket/"), Body=b"another text\n" * 2000)

    server = FaultyServer(behind(s3_port), replace=replace)
    with server.served() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield server


@pytest.mark.usefixtures("s3")
def test_rows_from_s3_are_those_of_local_files(folder: Path) -> None:
    assert rows_of(config_of("s3://bucket/data/*")) == rows_of(config_of(folder / "*"))
    assert rows_of(config_of("s3://bucket/data/**/*.txt")) == rows_of(config_of(folder / "**" / "*.txt"))
    assert rows_of(config_of("s3://bucket/data/b%20c.jsonl")) == rows_of(config_of(folder / "b c.jsonl"))
    with pytest.raises(DataError, match="s3://bucket/data is a folder"):
        rows_of(config_of("s3://bucket/data"))
    with pytest.raises(DataError, match=r"no object matches s3://bucket/data/\*\.md"):
        rows_of(config_of("s3://bucket/data/*.md"))
    with pytest.raises(DataError, match=r"s3://nowhere/a\.txt"):
        rows_of(config_of("s3://nowhere/a.txt"))
    with pytest.raises(DataError, match=r"has the option 'x'.*anonymous, endpoint_override, region"):
        rows_of(config_of("s3://bucket/a.txt?x=1"))


@pytest.mark.usefixtures("s3")
def test_parts_of_sources_in_s3_are_those_of_local_files(folder: Path) -> None:
    def parts(*files: str | Path) -> list[tuple[Any, ...]]:
        source = sources.SourceConfig(name="s", files=[str(file) for file in files])
        names = [entry["name"] for entry in sources.identities([source])["s"]]
        found = [(p.number, p.start, p.stop, p.first_row, p.name) for p in sources.parts_of([source], 0.02)]
        return [*found, *names, *sources.skipped_files(source)]

    local = parts(folder)
    assert parts("s3://bucket/data") == local and len(local) > 15
    assert parts("s3://bucket/data/*.jsonl") == parts(folder / "*.jsonl")


@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_transient_failure_of_s3_changes_nothing(fault: str, folder: Path, s3: FaultyServer) -> None:
    s3.plan = lambda method, path: fault if len(s3.requests) % 3 == 0 else None
    assert rows_of(config_of("s3://bucket/data/*")) == rows_of(config_of(folder / "*"))


@pytest.mark.parametrize("fault", [*TRANSIENT, "403"])
def test_what_stays_unreadable_in_s3_is_named(fault: str, s3: FaultyServer, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of("s3://bucket/data/f.parquet")
    readers.sources(config)
    s3.plan = lambda method, path: fault
    with pytest.raises(DataError, match=r"s3://bucket/data/f\.parquet cannot be read") as error:
        rows_of(config)
    assert HIDDEN not in str(error.value) + caplog.text


def test_an_address_that_changes_in_the_environment_is_taken_up(
    s3: FaultyServer, s3_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("s3://bucket/data/a.txt")
    before = rows_of(config)
    from tests.faults.campaigns.file_server import behind

    other = FaultyServer(behind(s3_port))
    with other.served() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        answered = len(s3.requests)
        assert rows_of(config) == before
    assert other.requests and len(s3.requests) == answered


@pytest.mark.parametrize("when", ["before", "while"])
def test_an_object_of_s3_that_is_replaced_is_an_error(when: str, s3: FaultyServer) -> None:
    config = config_of("s3://bucket/data/a.txt")
    readers.sources(config)
    listed = len(s3.requests)
    if when == "before":
        s3.replace("bucket/data/a.txt")
    else:
        s3.plan = lambda method, path: "replaced" if len(s3.requests) == listed + 4 else None
    with pytest.raises(DataError, match=r"s3://bucket/data/a\.txt was replaced after it was listed"):
        rows_of(config)


# The Hugging Face Hub, by a hub on 127.0.0.1


def test_files_of_the_hub_are_pinned_by_their_commit(folder: Path, tmp_path: Path) -> None:
    code = (
        "import json; from headstart.corpus.read import readers; from headstart.corpus.read.readers import *\n"
        "config = CorpusConfig(files=['hf://org/text/*.txt'])\n"
        "paths, sources = [str(path) for path in config.paths()], readers.sources(config)\n"
        "texts = [document.text for document in readers.documents(config, Receipt())]\n"
        "print(json.dumps([paths, sources, texts]))"
    )
    with LocalHub().running() as hub:
        commit = hub.commit("org/text", {"a.txt": (folder / "a.txt").read_bytes(), "b.md": b"x"})
        ((paths, described, texts),) = hub.call(code, (), tmp_path)
    assert paths[0].startswith(f"hf://org/text@{commit}/a.txt#")
    assert described[0]["name"] == "a.txt" and described[0]["etag"]
    assert texts == TEXTS


def test_every_store_names_what_identifies_an_object() -> None:
    assert fsspec_store._version({"size": 3, "etag": '"x"', "mtime": 1}) == (3, "x")
    assert fsspec_store._version({"size": 3, "ETag": None, "mtime": 1}) == (3, "1")
    assert fsspec_store._version({"size": 3}) == (3, "")
