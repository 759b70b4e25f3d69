"""Indexes behind the route /search: the passages of `headstart search`, and what is refused."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.stages.serve.conftest import EXTRA
from tests.unit.stages.serve.test_app import KEY, call
from tests.unit.stages.serve.test_catalog import swap

pytest.importorskip("fastapi", reason=EXTRA)
pytest.importorskip("prometheus_client", reason=EXTRA)
pytest.importorskip("usearch", reason="pip install 'headstart[search]'")
pytest.importorskip("sentence_transformers", reason="pip install 'headstart[search]'")

import headstart
from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.stages.serve.catalog import Catalog
from headstart.stages.serve.indexes import Indexes
from headstart.stages.serve.service import Service
from headstart.stages.serve.settings import ServeSettings
from headstart.stages.serve.telemetry import Telemetry


def build(folder: Path, lines: list[str], model: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    text = folder.with_suffix(".txt")
    text.write_text("\n".join(lines), encoding="utf-8")
    recipe = {
        "output": str(folder),
        "model": str(model),
        "corpus": {"files": [str(text)]},
        "passages": {"min_words": 4},
    }
    return Path(headstart.index(recipe, quiet=True))


@pytest.fixture(scope="module")
def index(tmp_path_factory, checkpoint, verses) -> Path:
    lines = [verse for verse in verses if len(verse.split()) > 4][:60]
    return build(tmp_path_factory.mktemp("indexes") / "verses", lines, checkpoint("bert"))


@pytest.fixture(scope="module")
def service(index: Path) -> Iterator[Service]:
    telemetry = Telemetry()
    service = Service(Catalog([], 10**9, telemetry), ServeSettings(max_characters=500), telemetry, Indexes([index]))
    service.start()
    yield service
    service.stop()


def test_passages_are_those_of_headstart_search(service, index, verses):
    (expected,) = headstart.search(index, verses[3], count=4)
    for body in ({"query": verses[3], "k": 4}, {"query": verses[3], "k": 4, "index": "verses"}):
        status, headers, reply = call(service, "POST", "/search", body)
        assert status == 200 and reply["passages"] == expected["passages"]
    assert reply["index_hash"] == f"sha256:{artifact.identity(index)}"
    facts = artifact.read_manifest(index)["index"]
    assert reply["model_hash"] == headers["x-headstart-model"] == f"sha256:{facts['parents']['model']}"
    listed = call(service, "GET", "/v1/indexes")[2]["indexes"]
    assert [(entry["name"], entry["passages"]) for entry in listed] == [("verses", facts["passages"])]
    assert len(call(service, "POST", "/search", {"query": "a", "k": 1000})[2]["passages"]) == facts["passages"]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 422, "query"),
        ({"query": "a", "k": 0}, 422, "`k`"),
        ({"query": "a", "k": "3"}, 422, "`k`"),
        ({"query": ["a"]}, 422, "query"),
        ({"query": "a" * 501}, 413, "at most 500"),
        ({"query": "\ud800"}, 422, "Unicode"),
        ({"query": "a", "index": "../verses"}, 404, "GET /v1/indexes"),
        ({"query": "a", "path": "/etc"}, 422, "does not know"),
    ],
)
def test_a_refusal_is_a_sentence(service, body, status, says):
    answered, _, reply = call(service, "POST", "/search", body)
    assert answered == status and says in reply["error"]["message"] and reply["error"]["message"].endswith(".")


def test_limits_and_the_key_apply(service, monkeypatch):
    assert call(service, "POST", "/search", {"query": "a"}, key=KEY)[0] == 401
    with service.queue.reserved(service.queue.limit):
        status, headers, _ = call(service, "POST", "/search", {"query": "a"})
    assert status == 429 and int(headers["retry-after"]) >= 1
    searcher = service.indexes.entry(None).searcher
    monkeypatch.setattr(type(searcher), "ask", lambda *_: time.sleep(0.5))
    monkeypatch.setattr(service, "settings", ServeSettings(deadline_seconds=1e-9))
    assert call(service, "POST", "/search", {"query": "a"})[0] == 504


def test_a_server_without_an_index_says_so(tasks):
    telemetry = Telemetry()
    service = Service(Catalog([tasks / "head"], 10**9, telemetry), ServeSettings(), telemetry)
    status, _, reply = call(service, "POST", "/search", {"query": "a"})
    assert status == 404 and "--index" in reply["error"]["message"]


def test_a_replaced_index_is_opened_again(index, tmp_path, checkpoint, verses, caplog):
    given = tmp_path / "verses"
    shutil.copytree(index, given)
    indexes = Indexes([given])
    old = indexes.entry("verses")
    indexes.refresh()
    assert indexes.entry(None) is old
    other = build(tmp_path / "other" / "verses", ["Only one passage is in this index."], checkpoint("bert"))
    swap(given, other)
    indexes.refresh()
    new = indexes.entry(None)
    assert new.passages == 1 and new.hash != old.hash
    assert old.searcher.ask(verses[3])["passages"], "accepted questions are answered by the old version"
    swap(given, index)
    (given / "vectors.usearch").write_bytes(b"torn")
    indexes.refresh()
    assert indexes.entry(None) is new and "was not updated" in caplog.text


def test_what_cannot_be_searched_is_refused_at_the_start(tasks, index, tmp_path):
    with pytest.raises(ArtifactError, match="not a search index"):
        Indexes([tasks / "head"])
    with pytest.raises(ArtifactError, match="there is no folder"):
        Indexes([tmp_path / "missing"])
    shutil.copytree(index, tmp_path / "verses")
    with pytest.raises(ArtifactError, match="two indexes have the name"):
        Indexes([index, tmp_path / "verses"])


@pytest.mark.slow
def test_a_server_may_only_search(start_server, index, verses):
    server = start_server(f"--index={index}")
    status, _, reply = server.request("POST", "/search", {"query": verses[3], "k": 1})
    assert status == 200 and reply["passages"][0]["text"] == verses[3]
    assert server.request("GET", "/v1/tasks")[2] == {"tasks": []}
    assert server.request("GET", "/ready")[0] == 200
