"""What Headstart makes is plain Hugging Face: it loads and predicts where Headstart cannot be imported."""

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
            raise ModuleNotFoundError(f"{name} is kept out", name=name)


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
found = {}
for name, folder, auto in (
    ("checkpoint", checkpoint, AutoModelForMaskedLM),
    ("model", model_folder, AutoModelForSequenceClassification),
):
    model, loading = auto.from_pretrained(folder, output_loading_info=True)
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        written = json.load(file)
    found[name] = {
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
found["labels"] = [model.config.id2label[index] for index in logits.argmax(-1).tolist()]
found["margins"] = (top[:, 0] - top[:, 1]).tolist()
classify = pipeline("text-classification", model=model_folder)
found["piped"] = [answer["label"] for answer in classify(texts[:50], truncation=True, max_length=int(max_length))]
found["long"] = classify("the king went up to the house of the lord " * 200, truncation=True)

reader = AutoTokenizer.from_pretrained(checkpoint)
found["tokens"] = reader.tokenize("And God said, Let there be light.")
found["limit"] = reader.model_max_length
found["filled"] = pipeline("fill-mask", model=checkpoint)(f"And the LORD {reader.mask_token} unto Moses.")
if any(name.partition(".")[0] == "headstart" for name in sys.modules):
    raise SystemExit("headstart was imported after all")
print(json.dumps(found))
"""
# Stored predictions may come from bf16, plain ones are fp32: where two logits are this near, either may win.
NEAR = 0.05


@pytest.fixture(scope="module")
def found(pretrained, finetuned, tmp_path_factory) -> dict[str, Any]:
    """What a process without Headstart makes of the two folders."""
    folder = tmp_path_factory.mktemp("plain")
    with (DATA / "order-test.csv").open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    (folder / "script.py").write_text(WITHOUT_HEADSTART, encoding="utf-8")
    max_length = finetuned.manifest["recipe"]["training"]["max_length"]
    # -I: no PYTHONPATH, no folder of the script, no user's packages.
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
def test_the_auto_classes_load_every_weight(found, name, architecture):
    assert found[name]["class"] == architecture
    assert found[name]["written"]["architectures"] == [architecture]
    assert not any(found[name]["loading"].values()), found[name]["loading"]


@pytest.mark.parametrize("name", ["checkpoint", "model"])
def test_the_config_holds_nothing_that_is_not_transformers_own(found, name):
    assert not found[name]["stray"]
    text = json.dumps(found[name]["written"]).lower()
    assert "headstart" not in text
    assert "attn_implementation" not in text, "the attention that suited training is the user's to choose again"
    assert found[name]["attention"] == "sdpa", "plain transformers chooses its own default"
    assert found[name]["written"]["dtype"] == "float32"


def test_parameters_are_those_that_were_trained(found, pretrained):
    assert found["checkpoint"]["parameters"] == pretrained.manifest["parameters"]


def test_predictions_are_those_that_were_stored(found, finetuned):
    facts = finetuned.manifest
    cell = json.loads(
        (finetuned.folder / "cells" / f"full-seed-{facts['seed']}" / "result.json").read_text(encoding="utf-8")
    )
    rows = list(zip(found["labels"], cell["predictions"], found["margins"], strict=True))
    clear = [row for row in rows if row[2] > NEAR]
    assert len(clear) > 0.8 * len(rows) and len(set(found["labels"])) > 1, "too few clear predictions to compare"
    assert not [row for row in clear if row[0] != row[1]]
    assert sum(plain == stored for plain, stored, _ in rows) >= 0.98 * len(rows)


def test_the_classification_pipeline_gives_the_data_s_labels(found, finetuned):
    assert set(found["piped"]) <= set(finetuned.manifest["task"]["labels"])
    pairs = zip(found["piped"], found["labels"], found["margins"], strict=False)
    assert all(piped == label for piped, label, margin in pairs if margin > NEAR)
    assert found["long"][0]["label"] in finetuned.manifest["task"]["labels"]


def test_the_fill_mask_pipeline_fills_the_mask(found):
    assert len(found["filled"]) == 5
    assert all(0 < answer["score"] < 1 and answer["token_str"].strip() for answer in found["filled"])
    assert "[MASK]" not in found["filled"][0]["sequence"]


def test_the_tokenizer_is_the_one_that_was_trained(found, pretrained):
    assert "".join(token.removeprefix("##") for token in found["tokens"]) == "andgodsaid,lettherebelight."
    assert found["limit"] == pretrained.manifest["recipe"]["backbone"]["max_length"]
