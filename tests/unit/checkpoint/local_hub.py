"""A small Hugging Face Hub on 127.0.0.1: the endpoints that huggingface_hub calls to read models and data sets."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class LocalHub:
    """Repositories by name; each is a list of commits, and a commit is a dictionary of files.

    The name of a data set starts with `datasets/`, as in the addresses of the Hub.
    """

    repositories: dict[str, list[dict[str, bytes]]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    address: str = ""

    @contextmanager
    def running(self) -> Iterator[LocalHub]:
        """Answer at `address` within the context."""
        server = self.serve()
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def call(self, script: str, calls: Sequence[Any], folder: Path, **variables: str) -> list[Any]:
        """Run a script in a new process whose hub is this one, with a cache in a folder of its own.

        Each call is an argument of the script as JSON; so is each line that it prints.
        """
        own = {"HF_ENDPOINT": self.address, "HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "0"}
        environment = {**os.environ, **own, **variables}
        for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE"):
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-c", script, *(json.dumps(each) for each in calls)],
            check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def commit(self, repository: str, files: dict[str, bytes]) -> str:
        """Add a commit, and return its hash."""
        self.repositories.setdefault(repository, []).append(files)
        return self.hash_of(repository, len(self.repositories[repository]) - 1)

    @staticmethod
    def hash_of(repository: str, number: int) -> str:
        return hashlib.sha1(f"{repository} {number}".encode()).hexdigest()

    def find(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.repositories.get(repository, [])
        names = {self.hash_of(repository, number): files for number, files in enumerate(commits)}
        if revision == "main" and commits:
            revision = self.hash_of(repository, len(commits) - 1)
        return (revision, names[revision]) if revision in names else None

    def serve(self) -> ThreadingHTTPServer:
        """Start to answer in a thread."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.requests.append(f"{self.command} {path}")
                parts = path.strip("/").split("/")
                if parts[0] == "api":
                    self._describe("datasets/" if parts[1] == "datasets" else "", parts[2:])
                elif parts[0] == "datasets":
                    self._send_file("datasets/", parts[1:])
                else:
                    self._send_file("", parts)

            def _describe(self, prefix: str, parts: list[str]) -> None:
                name, what, revision = "/".join(parts[:2]), *(parts[2:4] or ["revision", "main"])
                repository = prefix + name
                found = hub.find(repository, revision)
                if found is None:
                    code = "RevisionNotFound" if repository in hub.repositories else "RepoNotFound"
                    self._reply(404, b"{}", {"X-Error-Code": code})
                    return
                commit, files = found
                listed = [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in files.items()
                ]
                info = {"id": name, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
                self._reply(200, json.dumps(listed if what == "tree" else info).encode())

            def _send_file(self, prefix: str, parts: list[str]) -> None:
                found = hub.find(prefix + "/".join(parts[:2]), parts[3])
                content = found and found[1].get("/".join(parts[4:]))
                if found is None or content is None:
                    self._reply(404, b"", {"X-Error-Code": "EntryNotFound"})
                    return
                self._reply(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": found[0]})

            def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server
