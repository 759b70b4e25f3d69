"""Fixtures that every test folder may use."""

from __future__ import annotations

import gzip
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Hundreds of processes import the package; without stored bytecode, each of them compiles 300 files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart" / "data"


@pytest.fixture(scope="session", autouse=True)
def _interrupts_arrive() -> None:
    """A job in the background is started with SIGINT ignored; the tests of interrupts, and their children, need it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_hidden_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages hide the values of variables that were expanded in this process, also those of another test's recipe."""
    from headstart.core.recipes import variables

    monkeypatch.setattr(variables, "_hidden", {})


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real corpora and tasks; tests that need it are skipped where it is missing."""
    folder = Path(os.environ.get("HEADSTART_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "tasks").is_dir():
        pytest.skip(f"no data at {folder}; set HEADSTART_DATA to a folder with corpora/ and tasks/")
    return folder


@pytest.fixture(scope="session")
def verses() -> list[str]:
    """Real text: the first 3,000 lines of the quickstart's corpus."""
    with gzip.open(QUICKSTART / "kjv.txt.gz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line, _ in zip(file, range(3000), strict=False)]


@pytest.fixture(scope="session")
def tiny_tokenizers(verses: list[str]) -> dict[str, PreTrainedTokenizerFast]:
    """One small tokenizer of each kind, trained on real text."""
    from headstart.tokens.tokenizer import TokenizerConfig, train

    return {
        kind: train(
            verses, TokenizerConfig.model_validate({"kind": kind, "vocab_size": 600, "lowercase": False}), seed=0
        )
        for kind in ("wordpiece", "bpe", "unigram")
    }


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_tokenizers: dict[str, PreTrainedTokenizerFast]) -> PreTrainedTokenizerFast:
    """The WordPiece one of them."""
    return tiny_tokenizers["wordpiece"]


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port of an S3 server (moto) on 127.0.0.1. All tests of a process share its buckets."""
    pytest.importorskip("s3fs", reason="s3fs is missing; `pip install 'headstart[stores]'` brings it")
    moto = pytest.importorskip("moto.server", reason="moto is missing; `pip install 'moto[server]'` brings it")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()
