"""Servers as people write them, to compare with: FastAPI around transformers' pipelines, or sentence-transformers.

`python serving_rivals.py pipeline FOLDER…` answers for several models in one process; started once per folder it is a
process per task. `python serving_rivals.py vectors FOLDER` gives sentence vectors. Each request is computed by a thread
of FastAPI's pool, one at a time per model.
"""

# This module has no `from __future__ import annotations`: FastAPI reads the types of routes inside a function.

import socket
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Request(BaseModel):
    """Texts to be classified or embedded."""

    inputs: list[str]


def pipelines(folders: list[Path]) -> FastAPI:
    """Return an application that classifies with one pipeline per folder."""
    from transformers import pipeline

    app = FastAPI()
    models: dict[str, tuple[Any, threading.Lock]] = {
        folder.name: (pipeline("text-classification", model=str(folder), device="cpu", top_k=None, dtype=torch.float32),
                      threading.Lock())
        for folder in folders
    }  # fmt: skip

    @app.post("/v1/tasks/{name}")
    def classify(name: str, body: Request) -> list[Any]:
        model, lock = models[name]
        with lock:
            found: list[Any] = model(body.inputs, batch_size=8, truncation=True, max_length=64)
        return found

    return app


def vectors(folder: Path) -> FastAPI:
    """Return an application that embeds with sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    app, model, lock = FastAPI(), SentenceTransformer(str(folder), device="cpu"), threading.Lock()

    @app.post("/v1/embeddings")
    def embed(body: Request) -> list[list[float]]:
        with lock:
            found: list[list[float]] = model.encode(body.inputs, show_progress_bar=False).tolist()
        return found

    return app


def main() -> None:
    """Serve on a free port, and print it to stderr."""
    kind, folders = sys.argv[1], [Path(folder) for folder in sys.argv[2:]]
    app = pipelines(folders) if kind == "pipeline" else vectors(folders[0])
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    print(f"rival on port {listener.getsockname()[1]}", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
