"""Fixtures that several folders of unit tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory, tiny_tokenizer: PreTrainedTokenizerFast) -> Callable[[str], Path]:
    """Gives a plain Hugging Face folder with a tiny untrained encoder of a kind, as pre-training leaves it."""
    import torch
    from transformers import PreTrainedTokenizerFast

    from headstart.backbones.encoder import Encoder
    from headstart.core.vocabulary import vocabulary_of
    from headstart.stages.card import input_names

    known: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in known:
            torch.manual_seed(0)
            encoder = Encoder(Encoder.Config.model_validate({"kind": kind, "size": "tiny", "max_length": 128}))
            model = encoder.build(vocabulary_of(tiny_tokenizer), 64, "AutoModelForMaskedLM")
            folder = known[kind] = tmp_path_factory.mktemp(kind)
            model.save_pretrained(str(folder))
            tiny_tokenizer.save_pretrained(str(folder))
            own = PreTrainedTokenizerFast.from_pretrained(str(folder), model_input_names=input_names(model))
            own.save_pretrained(str(folder))
        return known[kind]

    return make
