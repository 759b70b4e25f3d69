"""Google Cloud (gcp-storage-emulator) and Azure (Azurite) on 127.0.0.1: text, token shards and checkpoints.

An emulator that is not installed skips its tests: `pip install gcp-storage-emulator` brings the one of Google Cloud,
`npm install azurite` that of Azure, whose program AZURITE_BLOB may name.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from headstart.core import artifact
from headstart.core.data import Document
from headstart.core.errors import DataError
from headstart.corpus.read import attempts, readers
from headstart.corpus.read.built import BuiltCorpus
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.corpus.read.store_folder import StoreFolder
from headstart.stages.runs.checkpoint_store import RemoteCheckpoints
from headstart.tokens import shards

# The account and the key of every Azurite, as its documentation prints them.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def azure(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run Azurite with an empty container."""
    pytest.importorskip("adlfs", reason="adlfs is missing; `pip install 'headstart[stores]'` brings it")
    program = os.environ.get("AZURITE_BLOB") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip("Azurite is missing; `npm install -g azurite` brings it, or set AZURITE_BLOB to azurite-blob")
    port = free_port()
    where = ("--blobHost", "127.0.0.1", "--blobPort", str(port))
    options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")
    process = subprocess.Popen([program, *where, *options], cwd=folder)
    try:
        deadline = time.monotonic() + 240
        while not _answers(port):
            assert process.poll() is None and time.monotonic() < deadline, "Azurite does not start"
        endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT}"
        connection = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoint};"
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        import adlfs

        adlfs.AzureBlobFileSystem.clear_instance_cache()
        adlfs.AzureBlobFileSystem().mkdir("bucket")
        yield "az://bucket"
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()
    return True


@contextmanager
def google(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the emulator of Google Cloud Storage, in threads of this process, with an empty bucket."""
    pytest.importorskip("gcsfs", reason="gcsfs is missing; `pip install 'headstart[stores]'` brings it")
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server",
        reason="the emulator of Google Cloud is missing; `pip install gcp-storage-emulator` brings it",
    )
    port = free_port()
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    try:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        # The emulator has no other kinds of buckets, which gcsfs would ask for at a server of Google.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        yield "gs://bucket"
    finally:
        server.stop()


@pytest.fixture(scope="module", params=[google, azure], ids=["google", "azure"])
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty bucket; requests that fail are repeated at once."""
    folder = tmp_path_factory.mktemp("emulator")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSTART_CACHE", str(folder / "cache"))
        patch.setattr(attempts, "FIRST_DELAY", 0.01)
        with request.param(folder, patch) as url:
            yield url


def upload(folder: Path, url: str) -> None:
    """Upload the files of a folder with Headstart's own writer."""
    target = StoreFolder(url)
    for path in folder.rglob("*"):
        if path.is_file():
            target.upload(path, path.relative_to(folder).as_posix())


def test_text_is_that_of_local_files_and_a_replaced_object_is_named(
    bucket: str, verses: list[str], tmp_path: Path
) -> None:
    (tmp_path / "more").mkdir()
    rows = [json.dumps({"text": verse}) + "\n" for verse in verses[:600]]
    (tmp_path / "a b.jsonl").write_text("".join(rows[:300]), encoding="utf-8")
    (tmp_path / "more" / "c.jsonl").write_text("".join(rows[300:]), encoding="utf-8")
    upload(tmp_path, f"{bucket}/text")
    local = CorpusConfig(files=[f"{tmp_path}/**/*.jsonl"])
    remote = CorpusConfig(files=[f"{bucket}/text/**/*.jsonl"])
    texts = [[document.text for document in readers.documents(config, Receipt())] for config in (local, remote)]
    assert texts[0] == texts[1] and len(texts[0]) > 500
    sizes = [(source["name"], source["bytes"]) for source in readers.sources(remote)]
    assert sizes == [(source["name"], source["bytes"]) for source in readers.sources(local)]
    assert all(source["etag"] for source in readers.sources(remote))
    # The size stays the same: only the version of the object tells.
    (tmp_path / "more" / "c.jsonl").write_text("".join(rows[300:])[::-1].replace("\n", " "), encoding="utf-8")
    upload(tmp_path / "more", f"{bucket}/text/more")
    with pytest.raises(DataError, match=r"more/c\.jsonl was replaced after it was listed"):
        list(readers.documents(remote, Receipt()))
    with pytest.raises(DataError, match=r"no object matches .*/nothing/\*\.txt"):
        CorpusConfig(files=[f"{bucket}/nothing/*.txt"]).paths()


def test_tokens_of_shards_are_those_on_disk(
    bucket: str, verses: list[str], tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    facts: dict[str, Any] = {"recipe": {"tokenizer": {}}, "facts": {"shards": {"train": {}}, "title": "verses"}}
    with artifact.staged(corpus, "corpus", **facts) as staging:
        documents = (Document(str(i), verse) for i, verse in enumerate(verses[:500]))
        shards.write(documents, tiny_tokenizer, staging / "shards" / "train", in_process=True)
        tiny_tokenizer.save_pretrained(str(staging / "tokenizer"))
    upload(corpus, f"{bucket}/corpora/verses")
    remote = BuiltCorpus.model_validate({"from": f"{bucket}/corpora/verses"})
    found = shards.Shards(remote.shards("train"), remote.open_tokens("train"))
    local = shards.Shards(corpus / "shards" / "train")
    assert found.is_remote and not list(remote.local.rglob("tokens-*"))
    positions = np.random.default_rng(0).integers(0, local.tokens, (20, 30))
    assert np.array_equal(found.gather(positions), local.gather(positions))
    assert np.array_equal(found.read(0, local.tokens), local.read(0, local.tokens))


def test_checkpoints_are_written_kept_to_a_number_and_restored(bucket: str, tmp_path: Path) -> None:
    output, url = tmp_path / "run", f"{bucket}/runs/a"
    (output / "logs").mkdir(parents=True)
    (output / "recipe.yaml").write_text("seed: 0\n")
    store = RemoteCheckpoints(StoreFolder(url), output)
    for step in (10, 20, 30, 30):
        (output / "logs" / "metrics.jsonl").write_text(f'{{"step": {step}}}\n' * step)
        path = output / "checkpoints" / f"step-{step:09d}"
        with artifact.staged(path, "checkpoint", run="fingerprint") as staging:
            (staging / "weights.safetensors").write_bytes(os.urandom(3 << 20))
        store.upload_checkpoint(path, keep=2)
    names = {name.split("/")[0] for name in StoreFolder(url).files()}
    assert names == {"step-000000020", "step-000000030"}
    weights = (path / "weights.safetensors").read_bytes()
    shutil.rmtree(output)
    store.restore("fingerprint")
    assert (path / "weights.safetensors").read_bytes() == weights
    assert len((output / "logs" / "metrics.jsonl").read_text().splitlines()) == 30
    # A damaged one is skipped: the one before it is restored.
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"damaged")
    StoreFolder(url).upload(damaged, f"{path.name}/weights.safetensors")
    shutil.rmtree(output)
    store.restore("fingerprint")
    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step-000000020"]
    with pytest.raises(DataError, match="another recipe or of other data"):
        shutil.rmtree(output)
        store.restore("other")
