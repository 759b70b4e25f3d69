"""A plain encoder opened with transformers alone gives the vectors of sentence-transformers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch

from headstart.stages.search.encoder import (
    MeanPoolingEncoder,
    SentenceTransformersEncoder,
    is_mean_pooled,
    open_encoder,
)

pytest.importorskip("sentence_transformers", reason="pip install 'headstart[search]'")

CPU = torch.device("cpu")
TEXTS = ["a text", "  it was a bright cold day, \n and the clocks were striking ", "", "x " * 100, "Tag, 日本語"]
OLD_POOLING = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


@pytest.fixture
def folder(checkpoint, tmp_path):
    shutil.copytree(checkpoint("bert"), tmp_path / "model")
    return tmp_path / "model"


def write(path, content) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_modules(folder, pooling, *more: str) -> None:
    names = ["Transformer", "Pooling", *more]
    paths = ["", *(f"{number}_{name}" for number, name in enumerate(names) if number)]
    kinds = [f"sentence_transformers.models.{name}" for name in names]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    write(folder / "modules.json", modules)
    write(folder / "1_Pooling" / "config.json", pooling)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": False})


def require_equal(folder, dtype=torch.float32) -> None:
    plain, reference = MeanPoolingEncoder(folder, CPU, dtype), SentenceTransformersEncoder(folder, CPU, dtype)
    assert plain.max_length == reference.max_length
    assert plain.count_tokens(TEXTS) == reference.count_tokens(TEXTS)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    assert torch.allclose(plain.encode(TEXTS).float(), reference.encode(TEXTS).float(), atol=tolerance)


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_a_plain_folder_gives_equal_vectors(checkpoint, kind):
    assert is_mean_pooled(checkpoint(kind))
    require_equal(checkpoint(kind))


def test_a_folder_of_sentence_transformers_gives_equal_vectors(folder):
    write_modules(folder, OLD_POOLING, "Normalize")
    assert isinstance(open_encoder(folder, CPU, torch.float32), MeanPoolingEncoder)
    require_equal(folder)
    require_equal(folder, torch.bfloat16)


def test_a_folder_saved_by_sentence_transformers_gives_equal_vectors(folder, tmp_path):
    SentenceTransformersEncoder(folder, CPU, torch.float32).model.save(str(tmp_path / "saved"))
    if is_mean_pooled(tmp_path / "saved"):
        require_equal(tmp_path / "saved")


@pytest.mark.parametrize(("kind", "stated", "longest"), [
    ("roberta", None, 128), ("roberta", 130, 128), ("roberta", 64, 64),
    ("modernbert", None, 128), ("modernbert", 130, 130),
])  # fmt: skip
def test_a_long_text_is_cut_to_the_positions_of_the_network(checkpoint, tmp_path, kind, stated, longest):
    """RoBERTa's config counts positions that no token gets; ModernBERT's positions are computed."""
    folder = shutil.copytree(checkpoint(kind), tmp_path / "model")
    tokenizer, network = (json.loads((folder / f"{name}.json").read_text()) for name in ("tokenizer_config", "config"))
    assert network["max_position_embeddings"] == (128 if kind == "modernbert" else 128 + network["pad_token_id"] + 1)
    write(folder / "tokenizer_config.json", {**tokenizer, "model_max_length": 10**30})
    if stated is not None:
        write_modules(folder, OLD_POOLING)
        write(folder / "sentence_bert_config.json", {"max_seq_length": stated, "do_lower_case": False})
    for kind_of_encoder in (MeanPoolingEncoder, SentenceTransformersEncoder):
        encoder = kind_of_encoder(folder, CPU, torch.float32)
        assert encoder.max_length == encoder.count_tokens(["x " * 300]) == longest
        assert encoder.encode(["x " * 300]).isfinite().all()
    require_equal(folder)


def test_other_folders_are_opened_with_sentence_transformers(folder):
    write_modules(folder, {**OLD_POOLING, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    encoder = open_encoder(folder, CPU, torch.float32)
    assert isinstance(encoder, SentenceTransformersEncoder)
    assert encoder.encode(TEXTS).shape[0] == len(TEXTS) and encoder.count_tokens(["a text"]) > 2
    write_modules(folder, OLD_POOLING)
    assert is_mean_pooled(folder)
    for name, content in {
        "config_sentence_transformers.json": {"default_prompt_name": "query"},
        "sentence_bert_config.json": {"max_seq_length": 40, "do_lower_case": True},
        "adapter_config.json": {},
    }.items():
        before = (folder / name).read_text(encoding="utf-8") if (folder / name).is_file() else None
        write(folder / name, content)
        assert not is_mean_pooled(folder), name
        (folder / name).unlink() if before is None else (folder / name).write_text(before, encoding="utf-8")
    write_modules(folder, OLD_POOLING, "Dense")
    assert not is_mean_pooled(folder)
    write(folder / "config.json", {**json.loads((folder / "config.json").read_text()), "model_type": "t5"})
    (folder / "modules.json").unlink()
    assert not is_mean_pooled(folder)


@pytest.mark.slow
def test_a_plain_folder_is_opened_without_importing_sentence_transformers(checkpoint):
    code = (
        "import sys; from headstart.stages.search.embedder import Embedder; Embedder(sys.argv[1]).vectors(['a text']); "
        "print([name for name in ('sentence_transformers', 'sklearn', 'peft') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(checkpoint("bert"))]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=250).stdout
    assert output.splitlines()[-1] == "[]"
