"""Faults between an object store and the reader: the right bytes arrive, or an error names the object.

Every fault is one reading of one object with a seeded fault at a seeded request: over HTTP, and over S3 by moto's
server if it is installed. `attempt` returns what went wrong; nothing of the reader is replaced.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .file_server import FAULTS, FaultyServer, Files, behind
from .report import Found
from .subjects import Ground

_WORDS = ["in", "the", "beginning", "God", "created", "heaven", "and", "earth", "light", "was", "good", "evening"]
_KINDS = (*FAULTS, "disk full")
_NAMES = ("a.txt", "b.jsonl", "c.csv", "d.jsonl.gz", "e.parquet")
_BLOCK_BYTES = 8192
_BUCKET = "bucket"


def campaign(ground: Ground, count: int, seed: int = 0) -> Found:
    """Read objects `count` times, each time with one fault of each kind in turn, some of them repeated."""
    folder = ground.fresh("stores")
    folder.mkdir()
    result = attempt(folder, count, seed)
    found = Found(
        "faults of object stores (HTTP, S3 by moto) while a corpus is read",
        "the right bytes, or an error that names the object; nothing is skipped",
        count,
        result["failures"],
    )
    found.notes = [", ".join(f"{number} × {kind}" for kind, number in result["kinds"].items())]
    found.notes.append(", ".join(f"{number} {outcome}" for outcome, number in result["outcomes"].items()))
    return found


def attempt(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Inject the faults and return their kinds, their outcomes and the failures."""
    from headstart.corpus.read import attempts, stores

    contents = _contents(random.Random(f"{seed}/files"))
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    expected = {name: _rows(str(folder / name)) for name in contents}
    kinds, outcomes, failures = Counter[str](), Counter[str](), []
    before = attempts.FIRST_DELAY, stores.BLOCK_BYTES
    attempts.FIRST_DELAY, stores.BLOCK_BYTES = 0.001, _BLOCK_BYTES
    try:
        with ExitStack() as stack:
            servers = [stack.enter_context(_http(contents))]
            if importlib.util.find_spec("moto") and importlib.util.find_spec("s3fs"):
                servers.append(stack.enter_context(_s3(contents)))
            for number in range(count):
                rng = random.Random(f"{seed}/{number}")
                kind, name = _KINDS[number % len(_KINDS)], rng.choice(_NAMES)
                server, prefix, restore = servers[number // len(_KINDS) % len(servers)]
                restore()
                _plan(server, kind, rng)
                outcome = _read(f"{prefix}/{name}", expected[name], kind, folder)
                server.plan = lambda method, path: None
                kinds[kind] += 1
                outcomes[outcome.partition(":")[0]] += 1
                if outcome.startswith("WRONG"):
                    failures.append(f"{number}, {kind}, {prefix}/{name}: {outcome}")
    finally:
        attempts.FIRST_DELAY, stores.BLOCK_BYTES = before
    return {"kinds": dict(kinds), "outcomes": dict(outcomes), "failures": failures}


def _plan(server: FaultyServer, kind: str, rng: random.Random) -> None:
    """Plan a fault at a few requests; sometimes so many that the reader gives up."""
    if kind == "disk full":
        return
    server.requests.clear()
    first, length = rng.randrange(1, 8), rng.choice((1, 1, 2, 4, 40))
    if kind == "replaced":
        # After the first request, which lists the object.
        first, length = first + 1, 1
    server.plan = lambda method, path: kind if first <= len(server.requests) < first + length else None


def _read(url: str, expected: list[tuple[str, str]], kind: str, folder: Path) -> str:
    """Read one object and return the outcome, with "WRONG" in front if it may not happen."""
    from headstart.core.errors import HeadstartError

    try:
        rows = _spooled(url, folder) if kind == "disk full" else _rows(url)
    except HeadstartError as error:
        if kind == "disk full":
            return "an error about the disk" if "the disk filled up" in str(error) else f"WRONG: another error: {error}"
        return "an error that names the object" if url in str(error) else f"WRONG: an error without it: {error}"
    except Exception as error:
        return f"WRONG: {type(error).__name__}: {error}"
    return "the right bytes" if rows == expected else f"WRONG: {len(rows)} rows in place of {len(expected)}"


def _rows(url: str) -> list[tuple[str, str]]:
    from headstart.corpus.read import readers

    config = readers.CorpusConfig(files=[url], validation=0.5)
    readers.sources(config)
    return [(document.id, document.text) for document in readers.documents(config, readers.Receipt())]


def _spooled(url: str, folder: Path) -> list[tuple[str, str]]:
    """Read an object into the spool of `headstart pretrain`, the only local copy of its text, on a full disk."""
    from headstart.core import faults
    from headstart.corpus.read import readers
    from headstart.stages.pretrain.spool import TextSpool

    config, receipt = readers.CorpusConfig(files=[url], validation=0.5), readers.Receipt()
    try:
        with TextSpool(folder / "spool") as spool:
            (folder / "spool" / "-train.arrow").symlink_to("/dev/full")
            list(spool.record("", readers.split_documents(config, 0, receipt), receipt))
    except OSError as error:
        raise faults.explain(error) or error from error
    raise AssertionError("the disk did not fill up")


def _contents(rng: random.Random) -> dict[str, bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [f"{number} {' '.join(rng.choices(_WORDS, k=20))}" for number in range(600)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    table = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": texts}), table, row_group_size=150)
    return {
        "a.txt": "\n\n".join(texts).encode(),
        "b.jsonl": lines,
        "c.csv": ("text\n" + "".join(f"{text}\n" for text in texts)).encode(),
        "d.jsonl.gz": gzip.compress(lines, mtime=0),
        "e.parquet": table.getvalue().to_pybytes(),
    }


@contextmanager
def _http(contents: dict[str, bytes]) -> Iterator[tuple[FaultyServer, str, Any]]:
    files = Files(dict(contents))

    def replace(path: str) -> None:
        files.contents[path] = files.contents[path][::-1]

    server = FaultyServer(files, replace=replace)
    with server.served() as address:
        yield server, address, lambda: files.contents.update(contents)


@contextmanager
def _s3(contents: dict[str, bytes]) -> Iterator[tuple[FaultyServer, str, Any]]:
    import boto3
    from moto.server import ThreadedMotoServer

    secrets = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    before = {name: os.environ.get(name) for name in secrets}
    os.environ.update(secrets)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    port = moto.get_host_and_port()[1]
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
    client.create_bucket(Bucket=_BUCKET)

    def replace(path: str) -> None:
        client.put_object(Bucket=_BUCKET, Key=path.removeprefix(f"{_BUCKET}/"), Body=b"another text\n\n" * 3000)

    def restore() -> None:
        for name, content in contents.items():
            client.put_object(Bucket=_BUCKET, Key=name, Body=content)

    server = FaultyServer(behind(port), replace=replace)
    try:
        with server.served() as address:
            os.environ["AWS_ENDPOINT_URL"] = address
            yield server, f"s3://{_BUCKET}", restore
    finally:
        os.environ.pop("AWS_ENDPOINT_URL", None)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        moto.stop()
