"""Follows a tutorial: writes its files, runs its commands in order, and keeps what they print.

A page is plain Markdown. What its fenced blocks are:

    bash                    commands, run in order in one folder
    yaml, toml, python      a file, if the first line is a comment with its path
    text, json              what a command printed, shortened

A comment of one line above a block says how the short version differs from what a reader types:

    <!-- tiny: training.budget='20 steps' seeds=1 -->    appended to the `headstart` commands of the block
    <!-- server -->                                      runs in the background until the page ends
    <!-- not run: the reason -->                         left out
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from tests.faults.campaigns.nursery import Nursery

import headstart

ROOT = Path(__file__).parents[2]
PACKAGES = Path(headstart.__file__).resolve().parents[1]
BLOCK = re.compile(r"^(?:<!-- (tiny|server|not run)(?:: (.*?))? -->\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\S+\.(?:yaml|toml|py))\n")
ADDRESS = "127.0.0.1:8000"
STARTS_PROCESSES = re.compile(r"headstart (study run|corpus build|advise|predict|.*--processes [2-9])")
"""Commands that start processes, which a forked process cannot do safely."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the comment above it."""

    note: str
    detail: str
    language: str
    text: str

    @property
    def path(self) -> str | None:
        """The path of the file that the block is, if it is one."""
        match = FILE.match(self.text)
        return match[1] if match and self.language in ("yaml", "toml", "python") else None

    def commands(self) -> Iterator[str]:
        """Yield the commands of a shell block; one may have several lines, if a quote is open or a line continues."""
        waiting = ""
        for line in self.text.splitlines():
            waiting += line + "\n"
            try:
                words = shlex.split(waiting, comments=True)
            except ValueError:
                continue
            if line.endswith("\\"):
                continue
            if words:
                yield waiting.rstrip("\n")
            waiting = ""
        assert not waiting, f"a quote is open: {waiting}"


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    return [Block(*groups) for groups in BLOCK.findall(page.read_text(encoding="utf-8"))]


@dataclass
class Typist:
    """One folder in which a page is followed; a context manager, because a page may start a server."""

    folder: Path
    nursery: Nursery | None = None
    """Forks the commands of the short version; without it, commands run in full, as a reader types them."""
    printed: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    _server: subprocess.Popen[str] | None = None
    _port: int = 8000

    def __enter__(self) -> Typist:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("recipes", "studies"):
            (self.folder / name).symlink_to(ROOT / name)
        for name in ("headstart", "python", "pytest"):
            module = "" if name == "python" else f" -m {name}"
            path = self.folder / ".bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n', encoding="utf-8")
            path.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait(timeout=30)
        (self.folder / "transcript.txt").write_text(self.printed, encoding="utf-8")

    def follow(self, page: Path) -> None:
        """Write every file and run every command of a page."""
        for block in blocks(page):
            if block.path is not None:
                self._write(block.path, block.text)
            elif block.language == "bash" and block.note != "not run":
                for command in block.commands():
                    began = time.monotonic()
                    self._type(command, block)
                    self.seconds[command] = time.monotonic() - began
                    self.printed += f"[{self.seconds[command]:.1f} s]\n\n"

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        if name.startswith(("recipes/", "studies/")):
            assert path.read_text(encoding="utf-8") == text.partition("\n")[2], f"{name} differs from the page"
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _type(self, command: str, block: Block) -> None:
        self.printed += f"$ {command}\n"
        words = shlex.split(command, comments=True)
        is_plain = words[0] == "headstart" and not re.search(r"[|>]|\$\(", command)
        more = shlex.split(block.detail) if block.note == "tiny" and self.nursery is not None else []
        if block.note == "server":
            self._serve(words[1:])
        elif words[:2] == ["pip", "install"]:
            self._install(words[2:])
        elif is_plain and self.nursery is not None and not STARTS_PROCESSES.match(command):
            self._fork([*words[1:], *more])
        else:
            command = command.replace(ADDRESS, f"127.0.0.1:{self._port}")
            self._shell(f"{command} {shlex.join(more)}" if more else command)

    def _install(self, packages: list[str]) -> None:
        """Install the folders among some packages; the others are named on the page and must be here already."""
        folders = [package for package in packages if package.startswith(".")]
        for name in set(packages) - set(folders):
            metadata.distribution(name)
        apart = f"--target {self._plugins} --no-deps --no-build-isolation --no-index --quiet"
        self._shell(f"python -m pip install {shlex.join(folders)} {apart}")

    @property
    def _plugins(self) -> Path:
        return self.folder / ".packages"

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder / ".bin"), os.environ["PATH"]])
        packages = os.pathsep.join([str(self._plugins), str(PACKAGES)])
        more = {
            "PATH": path,
            "PYTHONPATH": packages,
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return os.environ | more

    def _shell(self, command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self._environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        self._keep(command, done.returncode, done.stdout)

    def _fork(self, arguments: list[str]) -> None:
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            environment = {"COLUMNS": "100", "NO_COLOR": "1"}
            code = f"import sys; sys.path.insert(0, {str(self._plugins)!r})"
            child = self.nursery.start(arguments, environment=environment, code=code)
            self._keep(shlex.join(arguments), child.wait(), child.output())
        finally:
            os.chdir(before)

    def _keep(self, command: str, code: int, output: str) -> None:
        self.printed += output
        assert code == 0, f"{command} ended with code {code}:\n{output}"

    def _serve(self, arguments: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        log = self.folder / "server.log"
        with log.open("w", encoding="utf-8") as file:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "headstart", *arguments, "--port", str(self._port)],
                cwd=self.folder, env=self._environment(), stdout=file, stderr=file, text=True,
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while not self._is_ready():
            assert self._server.poll() is None and time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(0.1)
        self.printed += log.read_text(encoding="utf-8").replace(str(self._port), "8000")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False
