"""What the attacks share: one good checkpoint of each family, and the command line run in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

# The hostile inputs are modules that a campaign can import too.
sys.path.insert(0, str(Path(__file__).parent))

SECONDS = 60


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast) -> Path:
    """A good encoder, as `save_pretrained` writes it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tiny_tokenizer), max_position_embeddings=64, **sizes)
    return _save(BertForMaskedLM(config), tiny_tokenizer, tmp_path_factory.mktemp("encoder") / "model")


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast) -> Path:
    """A good decoder, as `save_pretrained` writes it."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tiny_tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=64)
    return _save(GPT2LMHeadModel(config), tiny_tokenizer, tmp_path_factory.mktemp("decoder") / "model")


def _save(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that hostile code creates when it runs."""
    path = tmp_path / "canary"
    monkeypatch.setenv("HEADSTART_CANARY", str(path))
    return path


@pytest.fixture
def headstart(capfd: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Runs a command in this process, with `y` as the answer to every question, and a limit of time."""
    from command import Answer, run, unchanged_process

    def call(*arguments: str | Path) -> Answer:
        return run([str(argument) for argument in arguments], lambda: "".join(capfd.readouterr()), SECONDS)

    with unchanged_process():
        yield call
