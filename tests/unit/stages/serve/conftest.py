"""Tasks of every kind on two tiny bodies, and a server of its own process."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import headstart

EXTRA = "the extra `serve` is missing; `pip install 'headstart[serve]'` brings it"
BODIES: dict[str, dict[str, dict[str, Any]]] = {
    "bert": {
        "head": {"name": "features"},
        "head-mean": {"name": "features", "layers": "mean"},
        "probe": {"name": "linear_probe"},
        "lora": {"name": "lora", "rank": 4},
        "lora-pair": {"name": "lora", "rank": 2, "targets": ["query", "value"]},
        "adapter": {"name": "adapters"},
        "houlsby": {"name": "adapters", "placement": "houlsby"},
        "adapter-gelu": {"name": "adapters", "activation": "gelu", "reduction": 4},
        "ia3": {"name": "ia3"},
        "tags": {"name": "lora"},
        "tags-head": {"name": "features"},
        "several": {"name": "lora", "rank": 2},
        "number": {"name": "lora", "rank": 1},
        "full": {"name": "full"},
    },
    "modernbert": {
        "modern-head": {"name": "features"},
        "modern-probe": {"name": "linear_probe"},
        "modern-lora": {"name": "lora", "rank": 3},
        "modern-adapter": {"name": "adapters"},
        "modern-ia3": {"name": "ia3"},
    },
    "albert": {"albert-lora": {"name": "lora"}},
    "electra": {"electra-lora": {"name": "lora"}},
    "roberta": {"roberta-adapter": {"name": "adapters"}},
}
if importlib.util.find_spec("sentence_transformers") is not None:
    BODIES["bert"]["embed"] = {"name": "lora", "rank": 2}
_WITH_SETTINGS = """
import json, sys
from pathlib import Path
from headstart.core import log
from headstart.stages.serve import run
from headstart.stages.serve.settings import ServeSettings

log.show(quiet=False)
run.run([Path(folder) for folder in sys.argv[2:]], ServeSettings(**json.loads(sys.argv[1])))
"""
WHOLE = ("full", "houlsby")
"""Tasks that share no body."""


def tune(folder: Path, model: Path, adaptation: dict[str, Any], rows: list[tuple[str, str]], seed: int = 0) -> Path:
    """Fine-tune a task, whose kind is part of the folder's name, for a few steps."""
    data = folder.parent.parent / f"{folder.parent.name}-data"
    data.mkdir(exist_ok=True)
    name = folder.name
    task: dict[str, Any] = {"kind": "classify"}
    records: list[dict[str, Any]] = [{"text": text, "label": label} for text, label in rows]
    if name.startswith("tags"):
        task = {"kind": "tag"}
        records = [
            {"tokens": text.split(), "tags": ["B-X" if len(word) > 4 else "O" for word in text.split()]}
            for text, _ in rows
        ]
    elif name == "several":
        task = {"kind": "multi_label", "label": "labels", "threshold": "tuned", "temperature_scaling": True}
        records = [{"text": t, "labels": ["long"] * (len(t) > 60) + ["e"] * ("e" in t)} for t, _ in rows]
    elif name.endswith("pair"):
        task = {"kind": "classify", "text": ["text", "other"]}
        records = [{"text": t, "other": t[::-1], "label": "abc"[len(t) % 3]} for t, _ in rows]
    elif name == "embed":
        task = {"kind": "embed"}
        records = [{"sentence1": t, "sentence2": t[:30], "score": i % 5} for i, (t, _) in enumerate(rows)]
    elif name == "number":
        task = {"kind": "classify", "regression": True}
        records = [{"text": text, "label": len(text) / 50} for text, _ in rows]
    files = {}
    for split, part in (("train", records[:80]), ("test", records[80:])):
        files[split] = data / f"{name}-{split}.jsonl"
        files[split].write_text("".join(json.dumps(record) + "\n" for record in part), encoding="utf-8")
    headstart.finetune(
        {
            "output": str(folder), "model": str(model), "task": task, "seeds": 1, "seed": seed, "compare_with": [],
            "data": {"train": str(files["train"]), "validation": 16, "test": str(files["test"])},
            "adaptation": adaptation,
            "training": {"budget": "8 steps", "max_length": 32, "eval_count": 1, "batch_size": 16, "precision": "fp32",
                         "learning_rate": 5e-3},
        },
        quiet=True,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def tasks(tmp_path_factory, checkpoint, labelled_rows) -> Path:
    """A folder of fine-tuned tasks."""
    root = tmp_path_factory.mktemp("serve") / "tasks"
    root.mkdir()
    for kind, adaptations in BODIES.items():
        for name, adaptation in adaptations.items():
            tune(root / name, checkpoint(kind), adaptation, labelled_rows)
    return root


@pytest.fixture(scope="session")
def texts(labelled_rows) -> list[str]:
    """Texts of different lengths."""
    return [text[: 5 + 13 * (i % 12)] for i, (text, _) in enumerate(labelled_rows[:60])]


def inputs_for(name: str, text: str) -> Any:
    """One input in the form that a task of this name reads."""
    if name.startswith("tags"):
        return text.split() or ["a"]
    return [text, text[::-1]] if name.endswith("pair") else text


@dataclass
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    stderr: list[str] = field(default_factory=list)
    stdout: list[str] = field(default_factory=list)

    @property
    def workers(self) -> list[int]:
        """The ids of the worker processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """Send a request on a connection of its own; returns the status, the headers, and the parsed body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if raw is not None else {}
        try:
            connection.request(method, path, raw, {**sent, **(headers or {})})
            reply = connection.getresponse()
            content = reply.read()
        finally:
            connection.close()
        is_json = (reply.headers.get("content-type") or "").startswith("application/json")
        return reply.status, reply.headers, json.loads(content) if is_json else content


@pytest.fixture(scope="session")
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts `headstart serve` on a free port, with `settings` if they have no option, and waits until it listens."""
    servers: list[Server] = []

    def start(*arguments: str, settings: dict[str, Any] | None = None, **environment: str) -> Server:
        command = [sys.executable, "-m", "headstart", "serve", "--port=0", *arguments]
        if settings is not None:
            command = [sys.executable, "-c", _WITH_SETTINGS, json.dumps({"port": 0, **settings}), *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
        )
        server = Server(process, 0)
        servers.append(server)
        assert process.stderr is not None and process.stdout is not None
        for line in process.stderr:
            server.stderr.append(line)
            match = re.search(r"listening on http://\S+:(\d+)", line)
            if match:
                server.port = int(match[1])
                break
        for stream, lines in ((process.stderr, server.stderr), (process.stdout, server.stdout)):
            threading.Thread(target=lines.extend, args=(stream,), daemon=True).start()
        assert server.port, "".join(server.stderr)
        return server

    yield start
    for server in servers:
        server.process.terminate()
    for server in servers:
        try:
            server.process.wait(15)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
