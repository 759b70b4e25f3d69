"""No training: all parameters are frozen, and untrained heads are rejected."""

from __future__ import annotations

import pytest
from transformers import AutoModel

from headstart.adaptation.zero_shot import ZeroShot
from headstart.core.errors import ArtifactError
from headstart.tasks.classify import Classify
from headstart.tasks.language_model import LanguageModel
from headstart.tasks.prompt import Prompt
from headstart.tasks.source import CheckpointFolder


def test_nothing_requires_a_gradient(checkpoint):
    model = ZeroShot().adapt(CheckpointFolder(checkpoint("bert"), LanguageModel(LanguageModel.Config()), seed=0))
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_new_head_is_rejected(checkpoint, tmp_path, tiny_tokenizer):
    assert "stay untrained" in str(ZeroShot().supports(Classify(Classify.Config()), "encoder"))
    assert ZeroShot().supports(Prompt(Prompt.Config()), "decoder") is None
    AutoModel.from_pretrained(str(checkpoint("bert"))).save_pretrained(str(tmp_path))
    tiny_tokenizer.save_pretrained(str(tmp_path))
    with pytest.raises(ArtifactError, match=r"has no .* part of the head of BertForMaskedLM"):
        ZeroShot().adapt(CheckpointFolder(tmp_path, Prompt(Prompt.Config()), seed=0))
