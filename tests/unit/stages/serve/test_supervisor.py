"""Workers that are killed, that hang, or that outlive their parent; real processes throughout."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stages.serve.conftest import BODIES, EXTRA, Server, tune
from tests.unit.stages.serve.test_catalog import swap
from tests.unit.stages.serve.test_server import ask, flat, metric, wait_until

pytest.importorskip("fastapi", reason=EXTRA)
pytest.importorskip("uvicorn", reason=EXTRA)
pytest.importorskip("prometheus_client", reason=EXTRA)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="worker processes are found in /proc (Linux)"),
]
Start = Callable[..., Server]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def workers_of(server: Server) -> float:
    return metric(server, "headstart_workers ")


@pytest.fixture(scope="module")
def impatient(start_server: Start, tasks) -> Server:
    """A server that waits for nothing longer than two seconds."""
    return start_server(str(tasks / "lora"), settings={"worker_timeout_seconds": 2, "header_seconds": 0.5})


def test_only_the_requests_of_a_killed_worker_are_lost_and_workers_end_with_their_parent(
    start_server: Start, tasks, texts
):
    server = start_server(str(tasks / "lora"), "--workers=2")
    wait_until(lambda: workers_of(server) == 2)
    expected = {i: flat(ask(server, "lora", texts[i])) for i in range(4)}
    stop, wrong, counts = threading.Event(), [], [[0, 0] for _ in range(4)]

    def load(client: int) -> None:
        while not stop.is_set():
            i = sum(counts[client]) % 4
            try:
                reply = ask(server, "lora", texts[i])
            except (OSError, HTTPException):
                counts[client][1] += 1
                continue
            counts[client][0] += 1
            if flat(reply) != pytest.approx(expected[i], abs=1e-4):
                wrong.append(reply)

    threads = [threading.Thread(target=load, args=(client,)) for client in range(4)]
    for thread in threads:
        thread.start()
    before = set(server.workers)
    answered = metric(server, "headstart_rows_total")
    killed = server.workers[0]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(set(server.workers) - before) == 1 and workers_of(server) == 2)
    done = [count for count, _ in counts]
    wait_until(lambda: all(now[0] > then for now, then in zip(counts, done, strict=True)))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    # A client sends one request at a time, so each loses at most the one that the killed process was answering.
    assert all(lost <= 1 for _, lost in counts), counts
    assert metric(server, "headstart_worker_restarts_total") == 1
    assert metric(server, "headstart_rows_total") > answered, "a restarted worker continues to count"
    assert set(server.workers) >= before - {killed}
    assert any("SIGKILL" in line and "is restarted in 0.5 s" in line for line in server.stderr)
    assert "torch" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    workers = server.workers
    assert len(workers) == 2
    server.process.kill()
    wait_until(lambda: not any(is_running(pid) for pid in workers))


def test_a_replaced_task_reaches_every_worker(start_server: Start, tasks, texts, tmp_path, checkpoint, labelled_rows):
    folder = tmp_path / "given"
    shutil.copytree(tasks / "lora", folder / "lora")
    other = tune(tmp_path / "other" / "lora", checkpoint("bert"), BODIES["bert"]["lora"], labelled_rows[::-1], seed=7)
    server = start_server(str(folder), "--workers=2")
    wait_until(lambda: workers_of(server) == 2)
    before = ask(server, "lora", texts[0])["model_hash"]
    swap(folder / "lora", other)
    wait_until(lambda: metric(server, "headstart_task_replacements_total") == 2)
    hashes = {ask(server, "lora", texts[0])["model_hash"] for _ in range(40)}
    assert len(hashes) == 1 and before not in hashes
    shutil.copytree(tasks / "ia3", folder / "ia3")
    wait_until(lambda: metric(server, "headstart_registered_tasks") == 2)
    # The gauge is the maximum over the workers; the next look at the folders of the other one is at most 2 s away.
    wait_until(lambda: all(server.request("GET", "/v1/tasks/ia3")[0] == 200 for _ in range(40)), 10)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    wait_until(lambda: sum("all accepted requests were answered" in line for line in server.stderr) == 2, 10)


def test_a_worker_that_hangs_is_replaced(impatient: Server, texts):
    server = impatient
    (hung,) = server.workers
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: not is_running(hung))
    assert ask(server, "lora", texts[0])["task"] == "lora", "the connection waited for the next worker"
    assert metric(server, "headstart_worker_restarts_total") == 1
    assert any("did not respond for" in line for line in server.stderr)


def test_headers_that_arrive_slowly_are_refused(impatient: Server):
    server = impatient
    request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    for sent in (b"", request):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            client.sendall(sent)
            reply = client.makefile("rb").read()
            assert reply.startswith(b"HTTP/1.1 408") and b"0.5 s" in reply
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        lines = client.makefile("rb")
        client.sendall(request + b"\r\n" + request)
        assert lines.readline().startswith(b"HTTP/1.1 200"), "a complete request on the same connection is answered"
        rest = lines.read()
        assert b"HTTP/1.1 200" not in rest, "the second one is never complete"
    body = b'{"inputs": ["a"]}'
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        head = f"POST /v1/tasks/lora HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n")
        time.sleep(1)  # The headers are complete; the body has a limit of its own.
        client.sendall(body)
        assert client.recv(15).startswith(b"HTTP/1.1 200")


def test_a_worker_that_dies_again_and_again_is_restarted_more_slowly(start_server: Start, tasks):
    server = start_server(str(tasks / "lora"))
    for death, delay in enumerate(("0.5 s", "1.0 s", "2.0 s"), start=1):
        wait_until(lambda: len(server.workers) == 1)
        os.kill(server.workers[0], signal.SIGKILL)
        wait_until(lambda death=death: sum("SIGKILL" in line for line in server.stderr) == death)
        assert f"is restarted in {delay}" in [line for line in server.stderr if "SIGKILL" in line][-1]


def run(*arguments: str) -> Any:
    command = [sys.executable, "-m", "headstart", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_what_prevents_the_start_ends_the_server(tasks, tmp_path):
    shutil.copytree(tasks / "lora", tmp_path / "lora")
    (tmp_path / "lora" / "adapter_model.safetensors").write_bytes(b"torn")
    done = run(str(tmp_path), "--port=0")
    assert done.returncode == 2 and "its hash differs" in done.stderr and "Traceback" not in done.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run(str(tasks / "lora"), f"--port={taken.getsockname()[1]}")
    assert done.returncode == 2 and "cannot listen" in done.stderr and "--port" in done.stderr
