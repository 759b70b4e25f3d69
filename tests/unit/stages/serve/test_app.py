"""The routes: what they answer, what they refuse, and that the key covers every one of them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.stages.serve.conftest import EXTRA, inputs_for

pytest.importorskip("fastapi", reason=EXTRA)
pytest.importorskip("uvicorn", reason=EXTRA)
pytest.importorskip("prometheus_client", reason=EXTRA)

from headstart.core.errors import RecipeError
from headstart.stages.finetune.finished import predict_texts
from headstart.stages.serve import app as application
from headstart.stages.serve.catalog import Catalog
from headstart.stages.serve.guard import OPEN, Guard
from headstart.stages.serve.run import read_key
from headstart.stages.serve.service import Service
from headstart.stages.serve.settings import ServeSettings
from headstart.stages.serve.telemetry import Telemetry

KEY = "0123456789abcdef0123"
HOST = (b"host", b"127.0.0.1:8000")


@pytest.fixture(scope="module")
def service(tasks: Path) -> Iterator[Service]:
    telemetry = Telemetry()
    service = Service(Catalog([tasks], 10**9, telemetry), ServeSettings(max_inputs=64, max_characters=500), telemetry)
    service.start()
    yield service
    service.stop()


def call(
    service: Service,
    method: str,
    path: str,
    body: Any = None,
    key: str | None = None,
    headers: Any = (HOST,),
    guard: Guard | None = None,
) -> tuple[int, dict[str, str], Any]:
    """Call the application without a network."""
    guard = guard or Guard(application.build(service), key, service.telemetry, 100_000, 5)
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    sent: list[Any] = []

    async def run() -> None:
        messages = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        kind = [(b"content-type", b"application/json")] if raw else []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
            "headers": [*headers, *kind], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
        }  # fmt: skip
        await guard(scope, receive, send)

    asyncio.run(run())
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    content = b"".join(message.get("body", b"") for message in sent[1:])
    is_json = answered.get("content-type", "").startswith("application/json")
    return sent[0]["status"], answered, json.loads(content) if is_json else content.decode()


def routes(service: Service) -> list[tuple[str, str]]:
    """All routes of the application, with those that no page lists."""
    app = application.build(service)
    found: list[tuple[str, str]] = []
    pending = list(app.routes)
    while pending:
        route = pending.pop()
        pending += list(getattr(getattr(route, "original_router", None), "routes", ()))
        if hasattr(route, "path") and hasattr(route, "methods"):
            found += [(method, route.path.replace("{name}", "lora")) for method in route.methods or ()]
    return sorted(found)


def test_the_key_covers_every_route_but_health(service):
    known = routes(service)
    assert {"/", "/health", "/ready", "/metrics", "/openapi.json", "/v1/tasks", "/v1/tasks/lora", "/v1/classify",
            "/v1/embeddings", "/rerank", "/search", "/v1/indexes"} <= {path for _, path in known}  # fmt: skip
    assert OPEN == ("/health",)
    for method, path in [*known, ("GET", "/docs"), ("OPTIONS", "/v1/tasks"), ("GET", "//health"), ("GET", "/health/")]:
        status, _, _ = call(service, method, path, key=KEY)
        assert (status == 401) == (path != "/health"), (method, path, status)
        for wrong in (b"Bearer ", b"Bearer " + KEY[:-1].encode(), b"Basic !!", b"Bearer \xff", KEY.encode()):
            status, _, _ = call(service, method, path, key=KEY, headers=(HOST, (b"authorization", wrong)))
            assert (status == 401) == (path != "/health"), (method, path, wrong)


def test_the_key_opens(service):
    basic = b"Basic " + base64.b64encode(b"any:" + KEY.encode())
    for value in (b"Bearer " + KEY.encode(), b"bearer " + KEY.encode(), basic):
        assert call(service, "GET", "/v1/tasks", key=KEY, headers=((b"authorization", value),))[0] == 200


def test_without_a_key_only_local_names_are_answered(service):
    for host, expected in ((b"localhost:1", 200), (b"[::1]:8000", 200), (b"evil.example:8000", 421), (b"", 421)):
        assert call(service, "GET", "/v1/tasks", headers=((b"host", host),))[0] == expected, host


def test_an_address_that_others_reach_needs_a_key(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADSTART_KEY", raising=False)
    assert read_key(ServeSettings(), None) is None
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(RecipeError, match="there is no key"):
            read_key(ServeSettings(host=host), None)
    (tmp_path / "key").write_text("short\n")
    with pytest.raises(RecipeError, match="At least 16"):
        read_key(ServeSettings(), tmp_path / "key")
    (tmp_path / "key").write_text(KEY + "\n")
    assert read_key(ServeSettings(host="0.0.0.0"), tmp_path / "key") == KEY


@pytest.mark.parametrize("name", ["head", "head-mean", "lora", "lora-pair", "adapter", "ia3", "tags", "full", "number"])
def test_answers_are_those_of_predict(service, tasks, texts, name):
    inputs = [inputs_for(name, text) for text in texts[:20]]
    status, headers, reply = call(service, "POST", f"/v1/tasks/{name}", {"inputs": inputs})
    assert status == 200 and reply["model_hash"] == headers["x-headstart-model"]
    assert reply["model_hash"] == f"sha256:{service.catalog.entries[name].hash}"
    key = "tags" if name == "tags" else "value" if name == "number" else "label"
    answered, expected = [result[key] for result in reply["results"]], predict_texts(tasks / name, inputs)
    assert answered == (pytest.approx(expected, abs=1e-4) if name == "number" else expected)


def test_classify_gives_the_best_labels(service):
    status, _, reply = call(
        service, "POST", "/v1/classify", {"task": "lora", "inputs": ["In the beginning"], "top_k": 2}
    )
    result = reply["results"][0]
    assert status == 200 and len(result["scores"]) == 2 and result["scores"][0]["label"] == result["label"]
    assert call(service, "POST", "/v1/classify", {"task": "tags", "inputs": ["a b"]})[0] == 422


def test_pairs_are_ranked(service):
    body = {"model": "lora-pair", "query": "who", "texts": ["one", "two words", "three"], "return_text": True}
    status, headers, reply = call(service, "POST", "/rerank", body)
    assert status == 200 and headers["x-headstart-model"].startswith("sha256:")
    assert sorted(row["index"] for row in reply) == [0, 1, 2]
    assert [row["score"] for row in reply] == sorted((row["score"] for row in reply), reverse=True)
    assert call(service, "POST", "/rerank", {**body, "model": "lora"})[0] == 422
    assert call(service, "POST", "/v1/embeddings", {"model": "lora", "input": "a"})[0] == 422


def test_embeddings_are_in_the_form_of_openai(service, tasks, texts):
    if "embed" not in service.catalog.entries:
        pytest.skip("sentence-transformers is missing; `pip install 'headstart[search]'` brings it")
    expected = np.asarray(predict_texts(tasks / "embed", texts[:5]))
    body = {"model": "embed", "input": texts[:5]}
    status, headers, reply = call(service, "POST", "/v1/embeddings", body)
    assert status == 200 and reply["object"] == "list" and reply["model"] == "embed"
    assert reply["model_hash"] == headers["x-headstart-model"] and reply["usage"]["total_tokens"] > 5
    assert [entry["index"] for entry in reply["data"]] == [0, 1, 2, 3, 4]
    np.testing.assert_allclose([entry["embedding"] for entry in reply["data"]], expected, atol=1e-4)
    coded = call(service, "POST", "/v1/embeddings", {**body, "encoding_format": "base64"})[2]["data"]
    decoded = [np.frombuffer(base64.b64decode(entry["embedding"]), dtype="<f4") for entry in coded]
    np.testing.assert_allclose(decoded, expected, atol=1e-4)
    assert call(service, "POST", "/v1/embeddings", {"model": "embed", "input": texts[0]})[0] == 200
    ranked = call(service, "POST", "/rerank", {"model": "embed", "query": texts[7], "texts": [texts[8], texts[7]]})[2]
    assert ranked[0]["index"] == 1 and ranked[0]["score"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "not valid JSON"),
        (b"\xff\xfe", 400, "not valid JSON"),
        (b"[" * 50_000, 400, "nested too deeply"),
        (b"[]", 422, "not a JSON object"),
        ({}, 422, "inputs"),
        ({"inputs": []}, 422, "at least one"),
        ({"inputs": [1]}, 422, "inputs.0"),
        ({"inputs": [["a", "b"]]}, 422, "reads a text"),
        ({"inputs": ["a"], "secret": "x"}, 422, "does not know"),
        ({"inputs": ["a"], "top_k": 0}, 422, "top_k"),
        ({"inputs": ["a"] * 65}, 413, "at most 64"),
        ({"inputs": ["a" * 501]}, 413, "at most 500"),
        ({"inputs": ["\ud800"]}, 422, "Unicode"),
        (b'{"inputs": ["' + b"a" * 100_000 + b'"]}', 413, "0.1 MB"),
    ],
)
def test_a_refusal_is_a_sentence_and_repeats_nothing(service, body, status, says):
    answered, _, reply = call(service, "POST", "/v1/tasks/lora", body)
    assert answered == status and says in reply["error"]["message"] and reply["error"]["message"].endswith(".")
    assert "secret" not in json.dumps(reply)


def test_a_full_queue_refuses_before_the_body_is_parsed(service):
    guard = Guard(
        application.build(service), KEY, service.telemetry, 100_000, 5, require_room=service.queue.require_room
    )
    bearer = (b"authorization", b"Bearer " + KEY.encode())
    with service.queue.reserved(service.queue.limit):
        assert call(service, "POST", "/v1/tasks/lora", b"{", guard=guard, headers=(HOST, bearer))[0] == 429
        assert call(service, "POST", "/v1/tasks/lora", b"{", guard=guard)[0] == 401, "the key comes first"
        assert call(service, "GET", "/ready", guard=guard, headers=(HOST, bearer))[0] == 200
    assert call(service, "POST", "/v1/tasks/lora", b"{", guard=guard, headers=(HOST, bearer))[0] == 400


def test_an_embedded_nul_is_a_text_like_any_other(service):
    assert call(service, "POST", "/v1/tasks/lora", {"inputs": ["a\0b", "", " ", "\u202e\U0001f600"]})[0] == 200


def test_the_page_needs_nothing_from_outside(service):
    status, headers, page = call(service, "GET", "/")
    assert status == 200 and "default-src 'none'" in headers["content-security-policy"]
    assert "http://" not in page and "https://" not in page and "//" not in page.replace("://", "")


def test_the_log_and_the_metrics_contain_no_text(service, capsys):
    call(service, "POST", "/v1/tasks/lora", {"inputs": ["confidential words"]})
    call(service, "GET", "/confidential/path")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["route"] for line in lines] == ["/v1/tasks/{name}", "unmatched"]
    assert lines[0]["task"] == "lora" and lines[0]["rows"] == 1 and lines[0]["model"].startswith("sha256:")
    metrics = call(service, "GET", "/metrics")[2]
    assert "confidential" not in json.dumps(lines) + metrics
    assert 'headstart_replies_total{route="unmatched",status="404"}' in metrics


def test_every_post_route_has_an_example(service):
    page = call(service, "GET", "/openapi.json")[2]
    for path, methods in page["paths"].items():
        if "post" in methods:
            schema = methods["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            assert page["components"]["schemas"][schema.rpartition("/")[2]].get("examples"), path


def test_several_labels_are_those_of_the_model_alone(service, tasks, texts):
    status, _, reply = call(service, "POST", "/v1/classify", {"task": "several", "inputs": texts[:20], "top_k": 2})
    assert status == 200
    assert [result["labels"] for result in reply["results"]] == predict_texts(tasks / "several", texts[:20])
    assert all(len(result["scores"]) == 2 for result in reply["results"])
