"""Fixtures of the tests of tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from headstart.backbones.decoder import Decoder
from headstart.core.vocabulary import vocabulary_of


@pytest.fixture(scope="session")
def decoder_folder(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast
) -> Callable[[str], Path]:
    """Gives a plain Hugging Face folder with a tiny untrained decoder of a kind."""

    @cache
    def make(kind: str) -> Path:
        torch.manual_seed(0)
        decoder = Decoder(Decoder.Config.model_validate({"kind": kind, "size": "tiny", "max_length": 128}))
        folder = tmp_path_factory.mktemp(kind)
        decoder.build(vocabulary_of(tiny_tokenizer), 64, "AutoModelForCausalLM").save_pretrained(str(folder))
        tiny_tokenizer.save_pretrained(str(folder))
        return folder

    return make
