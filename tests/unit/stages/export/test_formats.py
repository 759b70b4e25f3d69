"""Every format for the tasks that it takes: the folder opens in its own runtime and predicts as the model does."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

import headstart
from headstart.core import registry
from headstart.core.errors import ArtifactError
from headstart.stages.export.run import REPORT

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": ("bert", {"kind": "classify"}),
    "tag": ("bert", {"kind": "tag"}),
    "span_qa": ("bert", {"kind": "span_qa"}),
    "embed": ("bert", {"kind": "embed"}),
    "decoder": ("decoder", {"kind": "classify"}),
    "modernbert": ("modernbert", {"kind": "classify"}),
}
PACKAGES = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("openvino",),
    "static": ("sentence_transformers",),
}
CASES = [
    *((kind, "onnx") for kind in ("tag", "span_qa", "embed", "decoder", "modernbert")),
    *((kind, "openvino") for kind in ("classify", "tag")),
    *((kind, "vllm") for kind in ("classify", "embed", "decoder")),
    *((kind, "tei") for kind in ("classify", "embed")),
    ("embed", "static"),
]  # fmt: skip


@pytest.fixture(scope="module")
def decoder(tmp_path_factory, tiny_tokenizer) -> Path:
    """A tiny untrained GPT-2."""
    folder = tmp_path_factory.mktemp("decoder")
    config = GPT2Config(vocab_size=len(tiny_tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=2,
                        pad_token_id=tiny_tokenizer.pad_token_id)  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, checkpoint, decoder, labelled_rows):
    """A function that returns a model fine-tuned for a few steps on toy rows of a task."""
    root = tmp_path_factory.mktemp("formats")
    texts = [text for text, _ in labelled_rows[:60]]
    done: dict[str, Path] = {}

    def tune(kind: str) -> Path:
        if kind in done:
            return done[kind]
        backbone, section = KINDS[kind]
        entry = registry.resolve("tasks", section["kind"])
        task: Any = entry(entry.Config(**section))
        files = {}
        for split, part in (("train", texts[:40]), ("test", texts[40:])):
            rows = task.toy_examples(part)
            gold = next((column.name for column in task.columns("test") if column.is_gold), None)
            columns = {**rows.columns, **({gold: rows.labels} if gold else {})}
            files[split] = root / f"{kind}-{split}.jsonl"
            lines = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            files[split].write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        model = decoder if backbone == "decoder" else checkpoint(backbone)
        recipe = {
            "output": str(root / kind), "model": str(model), "task": section, "seeds": 1,
            "compare_with": [], "data": {"train": str(files["train"]), "validation": 8, "test": str(files["test"])},
            "adaptation": {"name": "full"},
            "training": {"budget": "4 steps", "max_length": 48, "eval_count": 1, "batch_size": 8, "precision": "fp32"},
        }  # fmt: skip
        done[kind] = headstart.finetune(recipe, quiet=True).path
        return done[kind]

    return tune


@pytest.mark.parametrize(("kind", "to"), CASES)
def test_an_export_predicts_as_the_model_does(tuned, tmp_path, kind, to):
    for name in PACKAGES.get(to, ()):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is missing; `pip install headstart[export]` brings it")
    run = headstart.export(tuned(kind), to, tmp_path / to, repetitions=1, tolerance=100.0, quiet=True)
    report = json.loads((run.path / REPORT).read_text(encoding="utf-8"))
    exported = next(measured for measured in report["models"] if measured["name"] == report["kept"])
    if to != "static":
        # Static vectors are another model; every other format computes the same.
        assert exported["changed"] == 0, exported
    assert f"- {to}\n" in (run.path / "README.md").read_text(encoding="utf-8"), "a tag of the card"


def test_folders_follow_the_conventions_of_vllm(tuned, tmp_path):
    """vLLM reads architectures, label names and a fast tokenizer from files; its server decides by the architecture."""
    folder = headstart.export(tuned("decoder"), "vllm", tmp_path / "vllm", repetitions=1, quiet=True).path
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["GPT2ForSequenceClassification"] and config["id2label"]
    assert (folder / "tokenizer.json").is_file() and not list(folder.glob("*.bin"))
    assert (folder / "model.safetensors").is_file() or (folder / "model.safetensors.index.json").is_file()


def test_folders_follow_the_conventions_of_tei(tuned, tmp_path):
    """Text Embeddings Inference finds the pooling in the files of sentence-transformers."""
    folder = headstart.export(tuned("embed"), "tei", tmp_path / "tei", repetitions=1, quiet=True).path
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert pooling["pooling_mode_mean_tokens"] is True
    assert pooling["word_embedding_dimension"] == config["hidden_size"]


def test_static_vectors_open_in_sentence_transformers(tuned, tmp_path):
    library = pytest.importorskip("sentence_transformers", reason="`pip install sentence-transformers` to run this")
    folder = headstart.export(tuned("embed"), "static", tmp_path / "static", repetitions=1, tolerance=100.0, quiet=True)
    vectors = library.SentenceTransformer(str(folder.path), device="cpu").encode(["In the beginning", "the end"])
    assert vectors.shape[0] == 2 and np.isfinite(vectors).all() and not np.allclose(vectors[0], vectors[1])


def test_static_needs_vectors(tuned, tmp_path):
    with pytest.raises(ArtifactError):
        headstart.export(tuned("classify"), "static", tmp_path / "static", repetitions=1, quiet=True)
