"""Tiny untrained networks of both families, and pairs of sentences of real text."""

from __future__ import annotations

import copy
import csv
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import headstart
from headstart.backbones.decoder import Decoder
from headstart.core.vocabulary import vocabulary_of
from headstart.stages.probe.network import ProbedCheckpoint


@pytest.fixture(scope="session")
def decoder_folder(tmp_path_factory, tiny_tokenizers) -> Path:
    """A tiny GPT-2 with a byte-level tokenizer that adds no token to a text."""
    from tokenizers.processors import ByteLevel

    tokenizer = copy.deepcopy(tiny_tokenizers["bpe"])
    tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=False)
    tokenizer.bos_token = tokenizer.cls_token
    torch.manual_seed(0)
    backbone = Decoder(Decoder.Config.model_validate({"kind": "gpt2", "size": "tiny"}))
    model = backbone.build(vocabulary_of(tokenizer), 64, "AutoModelForCausalLM")
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


@pytest.fixture
def encoder_folder(checkpoint) -> Path:
    return checkpoint("bert")


@pytest.fixture
def network_of():
    return lambda folder: ProbedCheckpoint(str(folder), seed=0).trained()


@pytest.fixture(scope="session")
def sentences(verses) -> list[str]:
    """Verses of different length, and words that the tokenizer splits."""
    short = [" ".join(verse.split()[: 3 + i % 9]) for i, verse in enumerate(verse for verse in verses if verse)]
    return [*short[:40], "Nebuchadnezzar worshipped", "a"]


@pytest.fixture(scope="session")
def write_pairs():
    def write(path: Path, pairs: list[tuple[str, ...]], *more: str) -> str:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("good", "bad", *more), *pairs])
        return str(path)

    return write


@pytest.fixture
def classifier_of(tmp_path, encoder_folder, decoder_folder):
    """A folder with a classifier of texts on a tiny network; weights of the head are larger than new ones."""

    def make(family="encoder", **settings):
        source = encoder_folder if family == "encoder" else decoder_folder
        tokenizer = AutoTokenizer.from_pretrained(str(source))
        settings = {"num_labels": 3, "pad_token_id": tokenizer.pad_token_id, **settings}
        torch.manual_seed(1)
        model = AutoModelForSequenceClassification.from_pretrained(str(source), **settings)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        folder = tmp_path / f"classifier-{family}-{settings['num_labels']}"
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))
        return folder

    return make


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory, verses) -> Path:
    """A finished pre-training run with three snapshots, whose corpus is still there."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("\n\n".join(verse for verse in verses if verse), encoding="utf-8")
    return headstart.pretrain({
        "output": str(folder / "mini"), "corpus": {"files": [str(folder / "text.txt")], "validation": 0.05},
        "tokenizer": {"kind": "wordpiece", "vocab_size": 500}, "objective": {"name": "masked_lm"},
        "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"},
        "training": {"budget": "9 steps", "seq_length": 32, "batch_tokens": 256, "snapshots": 3, "learning_rate": 1e-2},
    }).path  # fmt: skip
