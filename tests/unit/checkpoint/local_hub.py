"""A small Hugging Face Hub on 127.0.0.1: the endpoints that huggingface_hub calls to read and upload repositories."""

from __future__ import annotations

import base64
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
    private: set[str] = field(default_factory=set)
    """The repositories that only their owner sees; here, everyone has the token of the owner, who is `me`."""
    refusal: int = 0
    """The status of all answers, of a hub that answers none, or of those to writes if it is 403."""
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

    def create(self, repository: str, visibility: str | None) -> int:
        """Create an empty repository, and return the status of the answer: 409 if there is one of this name."""
        if repository in self.repositories:
            return 409
        self.commit(repository, {})
        if visibility == "private":
            self.private.add(repository)
        return 200

    def upload(self, repository: str, lines: Sequence[bytes]) -> str:
        """Add the commit that huggingface_hub describes in lines of JSON, and return its hash."""
        values = [entry["value"] for line in lines if (entry := json.loads(line))["key"] == "file"]
        files = {value["path"]: base64.b64decode(value["content"]) for value in values}
        return self.commit(repository, {**self.repositories[repository][-1], **files})

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
                if hub.refusal >= 500:
                    self._reply(hub.refusal, b"{}")
                elif parts[0] == "api":
                    self._describe("datasets/" if parts[1] == "datasets" else "", parts[2:])
                elif parts[0] == "datasets":
                    self._send_file("datasets/", parts[1:])
                else:
                    self._send_file("", parts)

            def do_POST(self) -> None:
                path, body = urlsplit(self.path).path, self.rfile.read(int(self.headers["Content-Length"]))
                hub.requests.append(f"{self.command} {path}")
                if hub.refusal:
                    self._reply(hub.refusal, b'{"error": "refused"}')
                    return
                parts, status = path.strip("/").split("/"), 200
                answer: dict[str, Any] = {"warnings": [], "errors": []}
                if parts[1:] == ["repos", "create"]:
                    settings = json.loads(body)
                    name = f"{settings['organization'] or 'me'}/{settings['name']}"
                    status, answer = hub.create(name, settings.get("visibility")), {"url": f"{hub.address}/{name}"}
                elif parts[4:] == ["preupload", "main"]:
                    # All files are parts of the commit; the Hub itself takes large ones by another way.
                    regular = {"uploadMode": "regular", "shouldIgnore": False}
                    answer = {"files": [{"path": file["path"], **regular} for file in json.loads(body)["files"]]}
                elif parts[4:] == ["commit", "main"]:
                    name = "/".join(parts[2:4])
                    commit = hub.upload(name, body.splitlines())
                    answer = {"commitUrl": f"{hub.address}/{name}/commit/{commit}", "commitOid": commit}
                self._reply(status, json.dumps(answer).encode())

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
                info = {
                    "id": name, "sha": commit, "siblings": [{"rfilename": name} for name in files],
                    "private": repository in hub.private,
                }  # fmt: skip
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
                if self.command != "HEAD":
                    self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server
