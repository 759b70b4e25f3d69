"""Static vectors: averaged over a text's tokens, from a folder in the format of model2vec or from a package."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation.baselines import NotApplicable
from headstart.evaluation.static import VARIABLE, _means, static, vector_files

WORDS = {"good": 0, "bad": 1, "film": 2}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    tokenizer = Tokenizer(models.WordLevel({**WORDS, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(1)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    save_file({"embeddings": np.array([[1.0, 0], [-1, 0], [0, 1]], dtype=np.float16)}, tmp_path / "model.safetensors")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def examples(texts, labels):
    return Examples({"text": texts}, labels, "a test")


def test_the_mean_of_known_tokens(folder):
    files = vector_files()
    assert files is not None
    means = _means(["good film", "film film bad", "unknown", ""], *files)
    np.testing.assert_allclose(means, [[0.5, 0.5], [-1 / 3, 2 / 3], [0, 0], [0, 0]])


def test_labels_are_learned_from_the_vectors(folder):
    train = examples(["good film", "bad film", "good", "bad"], ["+", "-", "+", "-"])
    result = static(train, train, examples(["film good", "bad bad film"], ["?", "?"]), metric="accuracy", seed=0)
    assert result.predictions == ["+", "-"]
    assert result.chosen["vectors"] == "model.safetensors"


def test_without_vectors_it_does_not_apply(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    rows = examples(["a", "b"], ["+", "-"])
    with pytest.raises(NotApplicable, match="pip install wordllama"):
        static(rows, rows, rows, metric="accuracy", seed=0)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_broken_folder_is_named(folder, name):
    (folder / name).write_text("no")
    rows = examples(["a", "b"], ["+", "-"])
    with pytest.raises(DataError, match="cannot be read as static vectors"):
        static(rows, rows, rows, metric="accuracy", seed=0)
