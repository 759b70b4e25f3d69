"""A server in a process of its own: hostile requests, overload, replaced tasks, clients that leave, SIGTERM."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stages.serve import hostile
from tests.unit.stages.serve.conftest import BODIES, EXTRA, WHOLE, Server, inputs_for, tune
from tests.unit.stages.serve.test_catalog import swap

pytest.importorskip("fastapi", reason=EXTRA)
pytest.importorskip("uvicorn", reason=EXTRA)
pytest.importorskip("prometheus_client", reason=EXTRA)

pytestmark = pytest.mark.slow
Start = Callable[..., Server]
SWAPS = 30
"""`benchmarks/serving_soak.py` does 200, with two workers that are killed meanwhile."""


@pytest.fixture(scope="module")
def server(start_server: Start, tasks: Path) -> Server:
    server = start_server(str(tasks))
    wait_until(lambda: server.request("GET", "/ready")[0] == 200)
    return server


def wait_until(is_true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


def metric(server: Server, name: str) -> float:
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_the_start_says_what_is_shared(server):
    text = "".join(server.stderr)
    for names in BODIES.values():
        assert f": {len(set(names) - set(WHOLE))} tasks in memory" in text
    assert "full: a whole model of its own (the adaptation 'full' changes the weights of the body)" in text


def test_hostile_requests_get_a_sentence_and_never_a_500(server):
    for request in hostile.requests(seed=0, count=500):
        status, body = hostile.send(server.port, request)
        assert 400 <= status < 500, (request.what, request.raw[:300], status, body[:300])
        if body.startswith(b"{"):
            message = json.loads(body)["error"]["message"]
            assert message.endswith(".") and " " in message and "Traceback" not in message
        else:
            assert body == b"Invalid HTTP request received.", (request.what, body[:300])
    assert server.process.poll() is None and server.request("GET", "/ready")[0] == 200
    assert server.request("POST", "/v1/tasks/lora", {"inputs": ["a text"]})[0] == 200
    assert not any("passwd" in line for line in server.stdout)


def test_mixed_clients_get_the_answers_of_each_task(server, texts):
    names = [name for names in BODIES.values() for name in names]
    alone = {(name, i): ask(server, name, texts[i]) for name in names for i in range(4)}
    with ThreadPoolExecutor(16) as pool:
        pairs = [(name, i) for i in range(4) for name in names] * 3
        replies = list(pool.map(lambda pair: ask(server, pair[0], texts[pair[1]]), pairs))
    for pair, reply in zip(pairs, replies, strict=True):
        assert reply["model_hash"] == alone[pair]["model_hash"]
        assert flat(reply) == pytest.approx(flat(alone[pair]), abs=1e-4), pair
    assert metric(server, "headstart_batch_tasks_sum") > metric(server, "headstart_batch_tasks_count")


def test_a_full_queue_refuses_at_once(start_server, tasks, texts):
    server = start_server(str(tasks / "full"), "--queue-rows=64", "--batch-tokens=64")
    wait_until(lambda: server.request("GET", "/ready")[0] == 200)
    body = {"inputs": [texts[i % 60] for i in range(64)]}

    def send(_: int) -> tuple[int, float, Any]:
        start = time.perf_counter()
        status, headers, _ = server.request("POST", "/v1/tasks/full", body)
        return status, time.perf_counter() - start, headers.get("retry-after")

    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(send, range(60)))
    refused = sorted(seconds for status, seconds, _ in replies if status == 429)
    assert {status for status, _, _ in replies} == {200, 429} and refused
    assert all(int(retry) >= 1 for status, _, retry in replies if status == 429)
    answered = sorted(seconds for status, seconds, _ in replies if status == 200)
    assert refused[len(refused) // 2] < answered[len(answered) // 2]
    assert metric(server, 'headstart_replies_total{route="/v1/tasks/{name}",status="429"}') == len(refused)


def test_a_deadline_that_passes_is_said(start_server, tasks, texts):
    server = start_server(str(tasks / "full"), "--deadline-seconds=0.000001")
    status, headers, reply = server.request("POST", "/v1/tasks/full", {"inputs": texts[:8]})
    assert status == 504 and headers["retry-after"] and reply["error"]["message"].endswith(".")


def test_rows_of_clients_that_left_are_dropped_and_sigterm_answers_what_was_accepted(start_server, tasks, texts):
    server = start_server(str(tasks / "full"), "--batch-tokens=8", "--deadline-seconds=120")
    wait_until(lambda: server.request("GET", "/ready")[0] == 200)
    raw = json.dumps({"inputs": [texts[i % 60] for i in range(250)]}).encode()
    head = f"POST /v1/tasks/full HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(raw)}"
    head += "\r\nContent-Type: application/json"
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
    for client in clients:
        client.sendall(head.encode() + b"\r\n\r\n" + raw)
    wait_until(lambda: metric(server, "headstart_queue_rows") > 250)
    for client in clients:
        client.close()
    wait_until(lambda: metric(server, "headstart_queue_rows") == 0)
    assert metric(server, "headstart_queue_dropped_rows") > 0
    assert server.request("POST", "/v1/tasks/full", {"inputs": ["still there"]})[0] == 200
    body = {"inputs": [texts[i % 60] for i in range(100)]}
    with ThreadPoolExecutor(4) as pool:
        pending = [pool.submit(server.request, "POST", "/v1/tasks/full", body) for _ in range(4)]
        wait_until(lambda: metric(server, "headstart_queue_rows") > 100)
        server.process.send_signal(signal.SIGTERM)
        replies = [future.result() for future in pending]
    assert [status for status, _, _ in replies] == [200] * 4
    assert all(len(reply["results"]) == 100 for _, _, reply in replies)
    assert server.process.wait(30) == 0
    wait_until(lambda: any("all accepted requests were answered" in line for line in server.stderr), 10)


def test_tasks_are_replaced_under_load_and_none_gets_anothers_weights(
    start_server, tasks, texts, tmp_path, checkpoint, labelled_rows
):
    folder = tmp_path / "given"
    for name in ("lora", "ia3", "head", "adapter"):
        shutil.copytree(tasks / name, folder / name)
    other = tune(tmp_path / "other" / "lora", checkpoint("bert"), BODIES["bert"]["lora"], labelled_rows[::-1], seed=5)
    server = start_server(str(folder), settings={"reload_seconds": 0.05})
    wait_until(lambda: server.request("GET", "/ready")[0] == 200)
    expected: dict[tuple[str, str, int], list[float]] = {}
    versions = [tasks / "lora", other]
    for version in versions[::-1]:
        before = ask(server, "lora", texts[0])["model_hash"]
        swap(folder / "lora", version)
        wait_until(lambda before=before: ask(server, "lora", texts[0])["model_hash"] != before)
        for name in ("lora", "ia3", "head", "adapter"):
            for i in range(3):
                reply = ask(server, name, texts[i])
                expected[name, reply["model_hash"], i] = flat(reply)
    assert len({key[1] for key in expected if key[0] == "lora"}) == 2
    stop, wrong, counts = threading.Event(), [], [0] * 6

    def load(client: int) -> None:
        while not stop.is_set():
            for name in ("lora", "ia3", "lora", "head", "adapter"):
                i = counts[client] % 3
                reply = ask(server, name, texts[i])
                counts[client] += 1
                if flat(reply) != pytest.approx(expected[name, reply["model_hash"], i], abs=1e-4):
                    wrong.append((name, reply))

    threads = [threading.Thread(target=load, args=(client,)) for client in range(6)]
    for thread in threads:
        thread.start()
    for round_ in range(SWAPS):
        before = ask(server, "lora", texts[0])["model_hash"]
        swap(folder / "lora", versions[(round_ + 1) % 2])
        wait_until(lambda before=before: ask(server, "lora", texts[0])["model_hash"] != before)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and all(count > 5 for count in counts)
    assert metric(server, "headstart_task_replacements") >= SWAPS + 2


def test_a_key_is_needed_for_other_addresses(tasks):
    command = [sys.executable, "-m", "headstart", "serve", str(tasks), "--host=0.0.0.0", "--port=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "there is no key" in done.stderr and "HEADSTART_KEY" in done.stderr


def ask(server: Server, name: str, text: str) -> Any:
    status, _, reply = server.request("POST", f"/v1/tasks/{name}", {"inputs": [inputs_for(name, text)]})
    assert status == 200, reply
    return reply


def flat(reply: Any) -> list[float]:
    """The numbers of a reply, in an order that does not depend on them."""
    result = reply["results"][0]
    if "value" in result:
        return [result["value"]]
    if "embedding" in result:
        return [float(value) for value in result["embedding"]]
    if "tags" in result:
        return [score or 0.0 for score in result["scores"]]
    return [entry["score"] for entry in sorted(result["scores"], key=lambda entry: str(entry["label"]))]
