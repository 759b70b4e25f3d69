"""Headstart's outputs are plain Hugging Face folders: they load and predict where Headstart cannot be imported."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[2] / "recipes" / "quickstart" / "data"
WITHOUT_HEADSTART = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "headstart":
            raise ModuleNotFoundError(f"{name} is blocked", name=name)


sys.meta_path.insert(0, Blocker())
try:
    import headstart
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("headstart could be imported")

import json

import torch
import transformers
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

checkpoint, model_folder, texts_file, max_length = sys.argv[1:5]
with open(texts_file, encoding="utf-8") as file:
    texts = json.load(file)
loaded = {}
for name, folder, auto in (
    ("checkpoint", checkpoint, AutoModelForMaskedLM),
    ("model", model_folder, AutoModelForSequenceClassification),
):
    model, loading = auto.from_pretrained(folder, output_loading_info=True)
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        written = json.load(file)
    loaded[name] = {
        "class": type(model).__name__,
        "loading": {key: list(value) for key, value in loading.items()},
        "stray": sorted(set(written) - set(type(model.config)().to_dict())),
        "written": written,
        "attention": model.config._attn_implementation,
        "parameters": sum(p.numel() for p in model.parameters()),
    }

tokenizer = AutoTokenizer.from_pretrained(model_folder)
inputs = tokenizer(texts, truncation=True, max_length=int(max_length), padding=True, return_tensors="pt")
with torch.no_grad():
    logits = model.eval()(**inputs).logits
top = logits.topk(2).values
loaded["labels"] = [model.config.id2label[index] for index in logits.argmax(-1).tolist()]
loaded["margins"] = (top[:, 0] - top[:, 1]).tolist()
classify = pipeline("text-classification", model=model_folder)
loaded["piped"] = [answer["label"] for answer in classify(texts[:50], truncation=True, max_length=int(max_length))]
loaded["long"] = classify("the king went up to the house of the lord " * 200, truncation=True)

reader = AutoTokenizer.from_pretrained(checkpoint)
loaded["tokens"] = reader.tokenize("And God said, Let there be light.")
loaded["limit"] = reader.model_max_length
loaded["filled"] = pipeline("fill-mask", model=checkpoint)(f"And the LORD {reader.mask_token} unto Moses.")
if any(name.partition(".")[0] == "headstart" for name in sys.modules):
    raise SystemExit("headstart was imported")
print(json.dumps(loaded))
"""
# Stored predictions may come from bf16 and plain ones from fp32: for logits this close, either label may win.
NEAR = 0.05


@pytest.fixture(scope="module")
def loaded(pretrained, finetuned, tmp_path_factory) -> dict[str, Any]:
    """Outputs of a process that loads both folders without Headstart."""
    folder = tmp_path_factory.mktemp("plain")
    with (DATA / "order-test.csv").open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    (folder / "script.py").write_text(WITHOUT_HEADSTART, encoding="utf-8")
    max_length = finetuned.manifest["recipe"]["training"]["max_length"]
    # -I: no PYTHONPATH, no script folder, no user packages.
    command = [sys.executable, "-I", str(folder / "script.py"), str(pretrained.folder), str(finetuned.folder)]
    done = subprocess.run(
        [*command, str(folder / "texts.json"), str(max_length)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("checkpoint", "ModernBertForMaskedLM"), ("model", "ModernBertForSequenceClassification")],
)
def test_the_auto_classes_load_every_weight(loaded, name, architecture):
    assert loaded[name]["class"] == architecture
    assert loaded[name]["written"]["architectures"] == [architecture]
    assert not any(loaded[name]["loading"].values()), loaded[name]["loading"]


@pytest.mark.parametrize("name", ["checkpoint", "model"])
def test_the_config_has_only_keys_of_transformers(loaded, name):
    assert not loaded[name]["stray"]
    text = json.dumps(loaded[name]["written"]).lower()
    assert "headstart" not in text
    assert "attn_implementation" not in text, "the attention of training is not saved"
    assert loaded[name]["attention"] == "sdpa", "plain transformers chooses its default"
    assert loaded[name]["written"]["dtype"] == "float32"


def test_the_number_of_parameters_is_that_of_the_run(loaded, pretrained):
    assert loaded["checkpoint"]["parameters"] == pretrained.manifest["parameters"]


def test_predictions_equal_the_stored_ones(loaded, finetuned):
    facts = finetuned.manifest
    cell = json.loads(
        (finetuned.folder / "cells" / f"full-seed-{facts['seed']}" / "result.json").read_text(encoding="utf-8")
    )
    rows = list(zip(loaded["labels"], cell["predictions"], loaded["margins"], strict=True))
    clear = [row for row in rows if row[2] > NEAR]
    assert len(clear) > 0.8 * len(rows) and len(set(loaded["labels"])) > 1, "too few clear predictions to compare"
    assert not [row for row in clear if row[0] != row[1]]
    assert sum(plain == stored for plain, stored, _ in rows) >= 0.98 * len(rows)


def test_the_classification_pipeline_returns_the_labels_of_the_data(loaded, finetuned):
    assert set(loaded["piped"]) <= set(finetuned.manifest["task"]["labels"])
    pairs = zip(loaded["piped"], loaded["labels"], loaded["margins"], strict=False)
    assert all(piped == label for piped, label, margin in pairs if margin > NEAR)
    assert loaded["long"][0]["label"] in finetuned.manifest["task"]["labels"]


def test_the_fill_mask_pipeline_fills_the_mask(loaded):
    assert len(loaded["filled"]) == 5
    assert all(0 < answer["score"] < 1 and answer["token_str"].strip() for answer in loaded["filled"])
    assert "[MASK]" not in loaded["filled"][0]["sequence"]


def test_the_tokenizer_is_the_trained_one(loaded, pretrained):
    assert "".join(token.removeprefix("##") for token in loaded["tokens"]) == "andgodsaid,lettherebelight."
    assert loaded["limit"] == pretrained.manifest["recipe"]["backbone"]["max_length"]
