"""`headstart export` by its command line: each format is opened by the tools that it is for."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard
from tests.runs.conftest import QUICKSTART, Command, Finished

import headstart as package
from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.stages.runs.result import FinetuneRun

EXTRA = "is not installed; run `pip install headstart[export]`"
FEW = ("--repetitions=2", "--quiet")


def needs(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} {EXTRA}")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    with (QUICKSTART / "data" / "kind-test.csv").open(encoding="utf-8", newline="") as file:
        return [row["text"] for row, _ in zip(csv.DictReader(file), range(40), strict=False)]


def export(headstart: Command, model: Path, to: str, *options: str) -> tuple[Path, dict[str, Any], str]:
    """Export a model beside itself and return the folder, its figures and what was printed."""
    done = headstart("export", str(model), "--to", to, *FEW, *options)
    folder = model.with_name(f"{model.name}-{to}")
    artifact.verify(folder, "export")
    report: dict[str, Any] = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    return folder, report, done.stdout


def labels_of(folder: Path, graph: Any, texts: list[str]) -> list[str]:
    """Predict with onnxruntime and the files of the folder alone."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
    names = [value.name for value in graph.get_inputs()]
    logits = graph.run(None, {name: batch[name] for name in names})[0]
    labels = json.loads((folder / "config.json").read_text(encoding="utf-8"))["id2label"]
    return [labels[str(row)] for row in np.argmax(logits, axis=1)]


@pytest.fixture(scope="module")
def onnx(headstart: Command, finetuned: Finished) -> tuple[Path, dict[str, Any], str]:
    needs("onnx", "onnxscript", "onnxruntime")
    return export(headstart, finetuned.folder, "onnx")


def test_onnx_predicts_as_the_model_does(onnx: tuple[Path, dict[str, Any], str], finetuned: Finished, texts: list[str]):
    import onnxruntime

    folder, _, _ = onnx
    graph = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    run = FinetuneRun(finetuned.folder)
    assert labels_of(folder, graph, texts) == run.predict(texts)
    # Alone, so that the graph is not bound to the number of rows or tokens that it was traced with.
    assert labels_of(folder, graph, texts[:1]) == run.predict(texts[:1])
    symbols = {value.name: value.shape[0] for value in graph.get_inputs()}
    assert len(set(symbols.values())) == 1, f"the inputs have different symbols for the rows: {symbols}"


def test_the_figures_are_in_the_card_and_on_the_screen(onnx: tuple[Path, dict[str, Any], str], finetuned: Finished):
    folder, report, printed = onnx
    card = (folder / "README.md").read_text(encoding="utf-8")
    first, last = report["models"][0], report["models"][-1]
    assert first["name"].startswith("torch") and last["name"] == report["kept"] == "onnx"
    assert report["rows"] == finetuned.manifest["data"]["test_rows"]
    chosen = finetuned.manifest["recipe"]["adaptation"]["name"]
    published = finetuned.manifest["metrics"][chosen][finetuned.manifest["seed"]]
    assert first["score"] == pytest.approx(published[report["metric"]])
    size = sum((folder / name).stat().st_size for name in ("model.onnx", "model.onnx.data"))
    assert last["bytes"] == size and set(last["latency_ms"]) == {"1", "32"}
    for text in (card, printed):
        assert f"{last['loss']:+.2f}" in text and f"{last['latency_ms']['32']:.1f} ms" in text
    assert "onnxruntime.InferenceSession" in card and str(folder) in printed


def test_a_second_export_needs_overwrite(
    headstart: Command, onnx: tuple[Path, dict[str, Any], str], finetuned: Finished
):
    again = headstart("export", str(finetuned.folder), "--to", "onnx", expect=2)
    assert "exists already" in again.stderr and "--overwrite" in again.stderr
    other = headstart(
        "export", str(finetuned.folder), "--to", "onnx", "--overwrite", f"--output={finetuned.folder.parent}", expect=2
    )
    assert "is not an output of `headstart export`" in other.stderr


def test_int8_is_smaller(headstart: Command, finetuned: Finished, texts: list[str]):
    needs("onnx", "onnxscript", "onnxruntime")
    folder, report, _ = export(headstart, finetuned.folder, "int8", "--tolerance=20")
    models = {model["name"]: model for model in report["models"]}
    assert {"int8 dynamic", "int8 static"} <= set(models) and report["kept"] in models
    assert models["int8 dynamic"]["bytes"] < 0.7 * models["torch fp32"]["bytes"]
    import onnxruntime

    graph = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    assert len(labels_of(folder, graph, texts)) == len(texts)


def test_merged_opens_in_transformers(headstart: Command, finetuned: Finished, pretrained: Finished, texts: list[str]):
    from transformers import pipeline

    adapter = finetuned.folder.with_name("adapter")
    headstart(
        "finetune", str(QUICKSTART / "finetune.yaml"), "seeds=1", "compare_with=[]", "data.train_rows=100",
        "training.budget=10 steps", "training.max_length=48", "training.eval_count=1", "adaptation={name: lora}",
        f"model={pretrained.folder}", f"output={adapter}",
    )  # fmt: skip
    folder, report, _ = export(headstart, adapter, "merged")
    assert not (folder / "adapter_config.json").exists() and report["models"][-1]["loss"] <= 1.0
    predicted = [answer["label"] for answer in pipeline("text-classification", model=str(folder))(texts)]
    expected = FinetuneRun(adapter).predict(texts)
    assert np.mean([a == b for a, b in zip(predicted, expected, strict=True)]) >= 0.95


def test_a_loss_beyond_the_tolerance_writes_nothing(
    finetuned: Finished, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: list[str]
) -> None:
    from headstart.stages.export.formats.merged import Merged

    write = Merged.write

    def damaged(self: Merged, source: Any, work: Path) -> list[Path]:
        from safetensors.torch import load_file, save_file

        folders = write(self, source, work)
        path = folders[0] / "model.safetensors"
        # Negated logits: every prediction of two labels is the other one.
        weights = {n: -t if n.startswith("classifier") else t for n, t in load_file(path).items()}
        save_file(weights, path, metadata={"format": "pt"})
        return folders

    monkeypatch.setattr(Merged, "write", damaged)
    data = tmp_path / "rows.csv"
    with data.open("w", encoding="utf-8", newline="") as file:
        rows = zip(texts, FinetuneRun(finetuned.folder).predict(texts), strict=True)
        csv.writer(file).writerows([("text", "label"), *rows])
    with pytest.raises(ArtifactError, match=r"merged loses 100\.00 points of accuracy .* 40 predictions differ"):
        package.export(finetuned.folder, "merged", tmp_path / "out", data=data, repetitions=1, quiet=True)
    assert list(tmp_path.iterdir()) == [data]


def test_hub_sends_nothing_by_default(headstart: Command, finetuned: Finished):
    done = headstart("export", str(finetuned.folder), "--to", "hub", "--repetitions=1", "--license=mit")
    card = ModelCard.load(finetuned.folder.with_name(f"{finetuned.folder.name}-hub") / "README.md")
    assert card.data.license == "mit" and card.data.eval_results[0].metric_type == "accuracy"
    assert "The language of the texts" in card.text and "majority" in card.text
    assert "dry run: --upload would send" in done.stderr and "model.safetensors" in done.stderr
    refused = headstart("export", str(finetuned.folder), "--to", "hub", "--upload", "--output=x", expect=2)
    assert "Set --repo" in refused.stderr


def test_a_result_object_is_returned(finetuned: Finished, tmp_path: Path):
    run = package.export(finetuned.folder, "tei", tmp_path / "tei", repetitions=1, quiet=True)
    assert run.path == tmp_path / "tei" and run.recipe["to"] == "tei" and run.cost.seconds > 0
    assert [row["model"] for row in run.scores][-1] == "tei" and "ms_32_rows" in run.scores[0]
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] == "modernbert":
        assert {"global_rope_theta", "local_rope_theta", "global_attn_every_n_layers"} <= set(config)


def test_a_pretrained_model_is_refused(headstart: Command, pretrained: Finished):
    refused = headstart("export", str(pretrained.folder), "--to", "merged", expect=2)
    assert "An export needs an output of `headstart finetune`" in refused.stderr
