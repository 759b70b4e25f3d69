"""Several tasks in one run: one body, a folder for each task, the same result after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core import artifact, config, file_hashes
from headstart.core.errors import ArtifactError, RecipeError
from headstart.core.recipes import variables
from headstart.core.vocabulary import vocabulary_of
from headstart.stages.finetune.finished import Finetuned, predict_texts
from headstart.stages.multitask import run as stage
from headstart.stages.multitask.recipe import Mixing, MultitaskRecipe
from headstart.stages.runs.manifest import FinetuneManifest, MultitaskManifest
from headstart.tasks import labelled

RECIPES = Path(__file__).parents[4] / "recipes"


@pytest.fixture(scope="module")
def rows(tmp_path_factory, labelled_rows, recipe_of) -> Path:
    """A folder with texts that have a label, and words that have one each."""
    folder = tmp_path_factory.mktemp("rows")
    for split, some in (("train", labelled_rows[:60]), ("test", labelled_rows[60:])):
        recipe_of["rows"](folder / f"{split}.csv", some)
        lines = [
            json.dumps({"tokens": words, "tags": ["LONG" if len(word) > 4 else "SHORT" for word in words]})
            for words in (text.split()[:12] for text, _ in some[:30])
        ]
        (folder / f"words-{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def recipe_with(rows: Path, model: Path, output: Path, **sections: Any) -> MultitaskRecipe:
    def data(name: str) -> dict[str, Any]:
        suffix = "csv" if name == "" else "jsonl"
        return {
            "train": str(rows / f"{name}train.{suffix}"),
            "validation": 10,
            "test": str(rows / f"{name}test.{suffix}"),
        }

    return config.fill(MultitaskRecipe, {
        "output": str(output), "model": str(model), "seeds": 1, "adaptation": {"name": "full"},
        "tasks": {
            "book": {"task": {"kind": "classify"}, "data": data("")},
            "length": {"task": {"kind": "tag", "words": "tokens", "label": "tags"}, "data": data("words-")},
        },
        "compare_with": ["majority", "full"],
        "training": {"budget": "6 steps", "batch_size": 8, "max_length": 32, "eval_count": 2, "report_to": []},
        **sections,
    })  # fmt: skip


@pytest.fixture(scope="module")
def finished(rows, checkpoint, tmp_path_factory) -> Path:
    return stage.run(recipe_with(rows, checkpoint("bert"), tmp_path_factory.mktemp("several") / "out"), quiet=True)


def body_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.base_model.state_dict().items() if "pooler" not in name}


def test_each_task_is_a_plain_model_and_all_have_one_trained_body(finished, checkpoint):
    book = AutoModelForSequenceClassification.from_pretrained(finished / "book")
    length = AutoModelForTokenClassification.from_pretrained(finished / "length")
    before = body_of(AutoModelForTokenClassification.from_pretrained(checkpoint("bert")))
    one, other = body_of(book), body_of(length)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert any(not torch.equal(one[name], before[name]) for name in one), "the body was not trained"
    assert set(length.config.label2id) == {"LONG", "SHORT"} and book.config.num_labels > 2


def test_the_published_models_predict_what_the_run_scored(finished):
    for name in ("book", "length"):
        artifact.verify(finished / name)
        facts = FinetuneManifest.read(finished / name)
        model = Finetuned(finished / name, facts)
        test = labelled.read(facts.data.test_source, model.task.columns("test"))
        cell = json.loads((finished / name / "cells" / "multitask_full-seed-0" / "result.json").read_text())
        assert model.predict(test) == cell["predictions"]
    assert len(predict_texts(finished / "book", ["And God said"])) == 1
    with pytest.raises(ArtifactError, match=r"Its tasks: book, length"):
        predict_texts(finished, ["And God said"])


def test_each_task_is_compared_with_itself_alone_and_with_baselines(finished):
    for name, other in (("book", "length"), ("length", "book")):
        facts = FinetuneManifest.read(finished / name)
        assert set(facts.metrics) == {"multitask_full", "full", "majority"} and facts.trained_with == [other]
        assert set(facts.comparisons) == {"full", "majority"}
        assert other in (finished / name / "README.md").read_text(encoding="utf-8")
    whole = MultitaskManifest.from_dict(artifact.verify(finished), finished)
    assert whole.shares == pytest.approx({"book": 50 / 70, "length": 20 / 70})
    text = stage.summary(finished)
    assert "multitask_full" in text.splitlines()[0] and "## book" in text and "## length" in text


def test_a_finished_run_is_not_repeated_and_another_recipe_is_refused(finished, rows, checkpoint):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    stage.run(recipe_with(rows, checkpoint("bert"), finished), quiet=True)
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(Exception, match="mixing"):
        stage.run(recipe_with(rows, checkpoint("bert"), finished, mixing={"temperature": 2}), quiet=True)


def test_an_interrupted_run_ends_with_the_same_weights(finished, rows, checkpoint, tmp_path, interrupted_at):
    recipe = recipe_with(rows, checkpoint("bert"), tmp_path / "out", compare_with=["majority"])
    with interrupted_at(4):
        stage.run(recipe, quiet=True)
    stage.run(recipe, quiet=True)
    for name in ("book", "length"):
        files = [folder / name / "model.safetensors" for folder in (tmp_path / "out", finished)]
        assert file_hashes.sha256(files[0]) == file_hashes.sha256(files[1]), name


def test_an_adapter_for_each_task_predicts_what_the_run_scored(rows, checkpoint, tmp_path):
    recipe = recipe_with(rows, checkpoint("bert"), tmp_path / "out", adaptation={"name": "lora"}, compare_with=[])
    folder = stage.run(recipe, quiet=True)
    adapters = []
    for name in ("book", "length"):
        facts = FinetuneManifest.read(folder / name)
        model = Finetuned(folder / name, facts)
        test = labelled.read(facts.data.test_source, model.task.columns("test"))
        cell = json.loads((folder / name / "cells" / "multitask_lora-seed-0" / "result.json").read_text())
        assert model.predict(test) == cell["predictions"]
        adapters.append({n: p for n, p in model.model.named_parameters() if "lora_B" in n})
    one, other = adapters
    assert one and all(torch.equal(one[name], other[name]) and one[name].any() for name in one)


@pytest.fixture(scope="module")
def t5(tmp_path_factory, tiny_tokenizer) -> Path:
    """A plain Hugging Face folder with a tiny untrained T5."""
    torch.manual_seed(0)
    config = EncoderDecoder.Config.model_validate({"kind": "t5", "size": "tiny"})
    model = EncoderDecoder(config).build(vocabulary_of(tiny_tokenizer), 64, "AutoModelForSeq2SeqLM")
    folder = tmp_path_factory.mktemp("t5")
    model.save_pretrained(str(folder))
    tiny_tokenizer.save_pretrained(str(folder))
    return folder


def test_text_to_text_tasks_become_one_network(rows, t5, tmp_path):
    data = {"train": str(rows / "train.csv"), "validation": 10, "test": str(rows / "test.csv"), "test_rows": 12}
    label = {"kind": "text_to_text", "template": "book: {text}", "max_target": 4}
    copy = {"kind": "text_to_text", "template": "copy: {text}", "target": "text", "gold": "text", "max_target": 8}
    tasks = {"label": {"task": label, "data": data}, "copy": {"task": copy, "data": {**data, "train_rows": 20}}}
    settings = {"tasks": tasks, "compare_with": ["majority", "lead"], "mixing": {"temperature": 2.0}}
    folder = stage.run(recipe_with(rows, t5, tmp_path / "out", **settings), quiet=True)
    weights = [file_hashes.sha256(folder / name / "model.safetensors") for name in tasks]
    assert weights[0] == weights[1]
    facts = {name: FinetuneManifest.read(folder / name) for name in tasks}
    assert facts["label"].task["metrics"][0] == "accuracy" and facts["copy"].task["metrics"][0] != "accuracy"
    assert len(predict_texts(folder / "copy", ["And God said"])) == 1
    shares = MultitaskManifest.read(folder).shares
    assert shares["label"] / shares["copy"] == pytest.approx((50 / 20) ** 0.5)
    tasks["copy"]["weight"] = 2.0
    with pytest.raises(RecipeError, match="the tasks have no heads"):
        stage.run(recipe_with(rows, t5, tmp_path / "weighted", **settings), quiet=True)


def test_a_task_that_trains_nothing_is_refused_by_name(rows, t5, tmp_path):
    data = {"train": str(rows / "train.csv"), "validation": 10, "test": str(rows / "test.csv")}
    prompt = {"task": {"kind": "prompt", "template": "{text} {label}"}, "data": data}
    settings = {"tasks": {"one": prompt, "other": prompt}, "adaptation": {"name": "zero_shot"}, "compare_with": []}
    recipe = recipe_with(rows, t5, tmp_path / "out", **settings)
    with pytest.raises(RecipeError, match=r"tasks\.one has nothing to train"):
        stage.run(recipe, quiet=True)


def test_an_adaptation_that_shares_nothing_is_refused(rows, checkpoint, tmp_path):
    recipe = recipe_with(rows, checkpoint("bert"), tmp_path / "out", adaptation={"name": "features"})
    with pytest.raises(RecipeError, match="trains no parameter that the tasks share"):
        stage.run(recipe, quiet=True)


def test_a_server_holds_the_body_of_two_classifiers_once(rows, checkpoint, tmp_path):
    pytest.importorskip("prometheus_client", reason="an extra; `pip install 'headstart[serve]'` un-skips")
    from headstart.stages.serve import answers
    from headstart.stages.serve.catalog import find_tasks
    from headstart.stages.serve.opening import Opener

    data = {"train": str(rows / "train.csv"), "validation": 10, "test": str(rows / "test.csv")}
    tasks = {name: {"task": {"kind": "classify"}, "data": data} for name in ("one", "other")}
    recipe = recipe_with(rows, checkpoint("bert"), tmp_path / "out", tasks=tasks, compare_with=[])
    folder, opener = stage.run(recipe, quiet=True), Opener()
    one, other = (opener.open(name, path) for name, path in find_tasks([folder]).items())
    assert one.body is other.body
    model = Finetuned(folder / "other", FinetuneManifest.read(folder / "other"))
    row = answers.encode(other, ["And God said"])[0]
    alone = model._run([row.feature], by_tokens=False)[0]
    assert other.body.run([row])[0] == pytest.approx(alone, abs=1e-4)


def test_draws_follow_t5():
    rows = {"large": 90_000, "middle": 8_000, "small": 1_000}
    assert Mixing().shares(rows) == pytest.approx({"large": 90 / 99, "middle": 8 / 99, "small": 1 / 99})
    assert Mixing(limit=8000).shares(rows) == pytest.approx({"large": 8 / 17, "middle": 8 / 17, "small": 1 / 17})
    tempered = Mixing(limit=8000, temperature=3).shares(rows)
    assert tempered == pytest.approx({"large": 2 / 5, "middle": 2 / 5, "small": 1 / 5})


def test_the_recipe_of_a_task_keeps_its_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    recipe = config.load(RECIPES / "minilm" / "multitask.yaml", MultitaskRecipe).of_task("rte")
    assert recipe.data.train == f"{tmp_path}/tasks/rte/train.parquet" and recipe.data.validation == 250
    saved = variables.written(config.to_saved(recipe))
    assert saved["data"]["train"].startswith("${HEADSTART_DATA:-data}/tasks/rte/")
    assert saved["model"].startswith("${MINILM:-")


def test_a_wrong_recipe_is_refused_with_the_name_of_the_task(rows, checkpoint, tmp_path):
    task = {"task": {"kind": "classify"}, "data": {"train": "a", "validation": 5, "test": "b"}}
    with pytest.raises(RecipeError, match=r"tasks\.b\.taks is not a known key; did you mean 'task'"):
        recipe_with(rows, checkpoint("bert"), tmp_path, tasks={"a": task, "b": {**task, "taks": 1}})
    with pytest.raises(RecipeError, match="compare_with has settings for 'full'"):
        recipe_with(rows, checkpoint("bert"), tmp_path, compare_with=[{"name": "full", "learning_rate": 0.1}])
    with pytest.raises(RecipeError, match="cannot name a task"):
        recipe_with(rows, checkpoint("bert"), tmp_path, tasks={"../up": task, "b": task})
