"""The server as a deployment of Ray Serve, on a cluster of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from tests.unit.stages.serve.conftest import EXTRA, tune
from tests.unit.stages.serve.test_catalog import swap
from tests.unit.stages.serve.test_server import ask, flat, wait_until

pytest.importorskip("fastapi", reason=EXTRA)
pytest.importorskip("prometheus_client", reason=EXTRA)
for package in ("ray", "aiohttp", "grpc_reflection"):
    pytest.importorskip(package, reason="the extra `ray-serve` is missing; `pip install 'ray[serve]'` brings it")

pytestmark = pytest.mark.slow
NAMES = ("lora", "adapter", "tags")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_replicas_answer_as_one_process_does_and_take_up_a_replaced_task(
    start_server, tasks, texts, tmp_path, checkpoint, labelled_rows
):
    folder = tmp_path / "tasks"
    for name in NAMES:
        shutil.copytree(tasks / name, folder / name)
    local = start_server(str(folder))
    wait_until(lambda: local.request("GET", "/ready")[0] == 200)
    expected = {name: ask(local, name, texts[0]) for name in NAMES}
    replaced = tune(tmp_path / "other" / "lora", checkpoint("bert"), {"name": "lora", "rank": 2}, labelled_rows, seed=1)

    server = start_server(str(folder), "--on=ray", f"--port={free_port()}", "--workers=2", OMP_NUM_THREADS="1")
    wait_until(lambda: server.request("GET", "/ready")[0] == 200)
    for _ in range(4):
        for name in NAMES:
            reply = ask(server, name, texts[0])
            assert reply["model_hash"] == expected[name]["model_hash"]
            if name != "tags":
                assert flat(reply) == pytest.approx(flat(expected[name]), abs=1e-4)
    assert server.request("POST", "/v1/tasks/none", {"inputs": ["a text"]})[0] == 404
    assert server.request("POST", "/v1/tasks/lora", b"\xff")[0] == 400
    assert server.request("GET", "/v1/tasks", headers={"Host": "elsewhere.example"})[0] == 421

    swap(folder / "lora", replaced)
    new = lambda: ask(server, "lora", texts[0])["model_hash"] != expected["lora"]["model_hash"]  # noqa: E731
    wait_until(lambda: all(new() for _ in range(8)))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--on=ray", "--port=0"], "needs a port"),
        (["--address=127.0.0.1:6379"], "is the address of a Ray cluster"),
        (["--on=ray", "--host=0.0.0.0"], "there is no key"),
    ],
)
def test_wrong_options_end_with_a_sentence(tasks, arguments, message):
    command = [sys.executable, "-m", "headstart", "serve", str(tasks / "lora"), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "HEADSTART_KEY"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
