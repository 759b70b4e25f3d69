"""A process that has imported Headstart once and forks itself, so that hundreds of real runs start quickly.

A child is the command line in its own process, which can be killed, stopped and traced like any other; only the six
seconds of imports are saved. `Nursery` is the client; run as a script, this file is the server.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Child:
    """One process of the nursery."""

    nursery: Nursery
    pid: int
    log: Path

    def wait(self, timeout: float = 240.0) -> int:
        """Return the exit code; negative for a signal."""
        deadline = time.monotonic() + timeout
        while self.pid not in self.nursery.codes:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"process {self.pid} hangs: {self.output()}")
            self.nursery.listen(0.05)
        return self.nursery.codes[self.pid]

    def wait_at_most(self, seconds: float) -> None:
        """Wait until the process ends or the time has passed."""
        deadline = time.monotonic() + seconds
        while self.is_alive and (left := deadline - time.monotonic()) > 0:
            self.nursery.listen(left)

    @property
    def is_alive(self) -> bool:
        self.nursery.listen(0.0)
        return self.pid not in self.nursery.codes

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.is_alive:
            os.kill(self.pid, number)

    def output(self) -> str:
        """Return what the process wrote to stdout and stderr."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""


class Nursery:
    """Starts runs; a context manager, since it is a process."""

    def __init__(self, logs: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start the server; `environment` has variables that libraries read when they are imported."""
        logs.mkdir(parents=True, exist_ok=True)
        self.logs, self.codes, self._count = logs, {}, 0
        fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        # -P: the files beside this one must not shadow modules of the standard library.
        command = [sys.executable, "-P", __file__]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | fixed | dict(environment or {}),
            bufsize=0,
        )  # fmt: skip
        self._messages: list[Any] = []
        self._rest = b""
        self._expect("ready")

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=30)

    def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, code: str = "",
        limits: Mapping[str, int] | None = None, errors: Path | None = None, folder: Path | None = None,
    ) -> Child:  # fmt: skip
        """Start the command line with some arguments; `code` runs before it, in the child only, to inject a fault.

        `errors` is a file for stderr, which otherwise goes where stdout goes; `folder` is the working directory.
        """
        self._count += 1
        log = self.logs / f"{self._count:04d}.log"
        request = {
            "arguments": list(arguments), "environment": dict(environment or {}), "log": str(log),
            "errors": str(errors or log), "code": code, "limits": dict(limits or {}),
            "folder": str(folder or Path.cwd()),
        }  # fmt: skip
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        return Child(self, self._expect("started"), log)

    def run(self, arguments: Sequence[str], expect: int = 0, **more: Any) -> Child:
        """Run the command line and wait for its end."""
        child = self.start(arguments, **more)
        code = child.wait()
        assert code == expect, f"exited with {code}, not {expect}: {' '.join(arguments)}\n{child.output()}"
        return child

    def ranks(self, arguments: Sequence[str], count: int, **more: Any) -> list[Child]:
        """Start several processes that train together, as torchrun would, without its agent."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [
            {name: str(value) for name, value in {**shared, "RANK": r, "LOCAL_RANK": r}.items()} for r in range(count)
        ]
        return [self.start(arguments, environment=rank, **more) for rank in ranks]

    def listen(self, timeout: float) -> None:
        """Read the messages of the server: which processes have ended, and with which code."""
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            return
        # Not a buffered reader, which may hold lines that select does not report.
        piece = os.read(self.process.stdout.fileno(), 1 << 16)
        if not piece:
            raise RuntimeError("the nursery has died")
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            word, *values = json.loads(line)
            if word == "ended":
                self.codes[values[0]] = values[1]
            else:
                if word == "started":
                    # The system uses the number of a process again after some time.
                    self.codes.pop(values[0], None)
                self._messages.append((word, *values))

    def _expect(self, word: str) -> Any:
        deadline = time.monotonic() + 300
        while not self._messages:
            assert time.monotonic() < deadline, f"the nursery does not send {word!r}"
            self.listen(0.5)
        message, *values = self._messages.pop(0)
        assert message == word
        return values[0] if values else None


_MODULES = (
    "peft", "sklearn.linear_model", "sklearn.metrics", "sklearn.svm", "torch.utils.tensorboard",
    "headstart.stages.doctor.machine", "headstart.stages.finetune.run", "headstart.stages.pretrain.run",
    "headstart.training.sharding",
)  # fmt: skip
"""What the runs import, also what they import late."""
_CLASSES = ("ModernBertForMaskedLM", "LlamaForCausalLM", "T5ForConditionalGeneration", "AutoModelForMaskedLM")


def _import_everything() -> None:
    """Import what the runs need, and fill the caches of the libraries."""
    import torch
    import transformers
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    from headstart.evaluation import energy

    for name in _MODULES:
        importlib.import_module(name)
    for name in _CLASSES:
        getattr(transformers, name)
    # A thousand regular expressions, which every loading and saving of a model needs.
    get_checkpoint_conversion_mapping("bert")
    if energy.installed():
        # codecarbon reads its tables with pandas.
        energy.carbon_intensity(energy.WORLD)
        energy.full_load_watts()
    torch.set_num_threads(1)


def _serve() -> None:
    """Fork a child for each line of standard input, and report how each ends."""
    _import_everything()
    _send("ready")
    alive = True
    waiting = b""
    while alive or _children:
        if alive and select.select([0], [], [], 0.02)[0]:
            piece = os.read(0, 1 << 16)
            alive = bool(piece)
            waiting += piece
        elif not alive:
            for pid in _children:
                os.kill(pid, signal.SIGKILL)
        *lines, waiting = waiting.split(b"\n")
        for line in lines:
            _fork(json.loads(line))
        for pid in list(_children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _children.remove(pid)
                _send("ended", pid, os.waitstatus_to_exitcode(status))


_children: list[int] = []


def _send(*words: Any) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


def _fork(request: dict[str, Any]) -> None:
    pid = os.fork()
    if pid:
        _children.append(pid)
        _send("started", pid)
        return
    code = 1
    try:
        os.setsid()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        is_one_file = request["errors"] == request["log"]
        errors = log if is_one_file else os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_RDONLY)
        for number, target in ((null, 0), (log, 1), (errors, 2)):
            os.dup2(number, target)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _limit(request["limits"])
        exec(compile(request["code"], "<trap>", "exec"), {})
        # The number of ranks is read when the command line is imported.
        for name in [name for name in sys.modules if name.startswith("headstart.cli")]:
            del sys.modules[name]
        from headstart.cli import main

        main(request["arguments"])
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _limit(limits: Mapping[str, int]) -> None:
    import resource

    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))


if __name__ == "__main__":
    _serve()
    # Nothing is left to do, and tearing down every library takes seconds.
    os._exit(0)
