"""The Python API: every function can be called in any order, twice, and returns a result object."""

from __future__ import annotations

import inspect
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import DataError
from headstart.stages.runs.result import FinetuneRun, Table

RUNNING = ("build_corpus", "pretrain", "finetune", "index", "study")


@pytest.fixture(scope="module")
def tuned(way, recipe_of) -> FinetuneRun:
    return headstart.finetune(recipe_of["finetune"](way), quiet=True)


def test_the_api_is_complete_and_shadowed_by_no_module():
    functions = [name for name, value in vars(headstart).items() if inspect.isfunction(value) and name[0] != "_"]
    assert sorted(functions) == sorted(headstart.__all__) and set(RUNNING) <= set(functions)
    modules = {module.name for module in pkgutil.iter_modules(headstart.__path__)}
    assert not modules & set(functions), "an import of the module would replace the function"


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, headstart, headstart.stages.runs.result; print({'torch', 'transformers'} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout == "set()\n"


_TWICE = """
import sys
from pathlib import Path
import headstart
way, work, order = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(",")
pretrained, tuned = way / "pretrained", way / "tuned"
rows = {"train": way / "train.csv", "validation": 20, "test": way / "test.csv"}
training = {"budget": "1 steps", "seq_length": 32, "batch_tokens": 256, "eval_count": 1}
pretrain = {
    "output": work / "pretrained", "corpus": {"files": [way / "text.txt"], "validation": 0.1},
    "tokenizer": {"path": pretrained}, "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"},
    "objective": "masked_lm", "training": training,
}
finetune = {
    "output": work / "tuned", "model": pretrained, "task": "classify", "seeds": 1, "data": rows, "adaptation": "full",
    "compare_with": ["majority"], "training": {"budget": "1 steps", "max_length": 32, "batch_size": 16},
}
several = {
    "output": work / "several", "model": pretrained, "adaptation": "full", "compare_with": [], "seeds": 1,
    "tasks": {name: {"task": "classify", "data": rows} for name in ("one", "other")}, "training": finetune["training"],
}
corpus = {"output": work / "corpus", "sources": [{"name": "verses", "files": [way / "text.txt"]}]}
index = {
    "output": work / "index", "model": pretrained, "corpus": {"files": [way / "other.txt"]}, "passages": {"limit": 20}
}
task = {"task": {"kind": "classify"}, "data": {**rows, "validation": way / "train.csv", "allow_overlap": True}}
study = {
    "question": "Does it run?", "output": work / "study", "seeds": 1, "reference": "majority", "compare": ["method"],
    "baselines": ["majority"], "overlap": False, "execution": {"workers": 1},
    "base": {"finetune": {**task, "model": pretrained, "training": finetune["training"]}},
    "axes": {"method": {"full": {"finetune.adaptation": "full"}}},
}
(work.parent / "pairs.csv").write_text("good,bad\\nhe said,said he\\nthe king,king the\\n")
calls = {
    "build_corpus": lambda: headstart.build_corpus(corpus, quiet=True),
    "pretrain": lambda: headstart.pretrain(pretrain, quiet=True),
    "finetune": lambda: headstart.finetune(finetune, quiet=True),
    "multitask": lambda: headstart.multitask(several, quiet=True),
    "plan": lambda: headstart.plan(finetune),
    "evaluate": lambda: headstart.evaluate(tuned, way / "test.csv"),
    "export": lambda: headstart.export(
        tuned, "merged", work / "merged", data=way / "test.csv", repetitions=1, overwrite=True, quiet=True
    ),
    "predict": lambda: headstart.predict(tuned, way / "test.csv", work / "rows.csv", quiet=True, overwrite=True),
    "generate": lambda: headstart.generate(pretrained, "In the ___ God created"),
    "probe": lambda: headstart.probe(
        pretrained, probes=["minimal_pairs"], text=work.parent / "pairs.csv", output=work / "probe", overwrite=True,
        quiet=True,
    ),
    "index": lambda: headstart.index(index, quiet=True),
    "search": lambda: headstart.search(headstart.index(index, quiet=True), "Who made the world?"),
    "study": lambda: headstart.study(study, quiet=True),
    "load": lambda: headstart.load(tuned),
    "advise": lambda: headstart.advise(
        way / "train.csv", model=pretrained, minutes=0.05, output=work / "advice", quiet=True
    ),
}
if __name__ == "__main__":
    assert sorted(calls) == sorted(headstart.__all__)
    for name in order:
        for attempt in range(2):
            result = calls[name]()
            assert result is not None
            if name not in ("evaluate", "generate", "load", "plan", "predict", "search"):
                assert result.path.is_dir() and result.scores and result.cost.seconds > 0
                assert result.recipe and result.manifest and result.summary()
                assert str(result) in repr(result) and "<table>" in result._repr_html_()
        print(name, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
def test_every_function_can_be_called_twice_in_any_order(way, tmp_path, backwards):
    for package in ("daft", "usearch"):
        pytest.importorskip(package, reason=f"{package} is an extra; `pip install 'headstart[corpus,search]'` un-skips")
    script = tmp_path / "twice.py"
    script.write_text(_TWICE, encoding="utf-8")
    order = sorted(headstart.__all__, reverse=backwards)
    command = [sys.executable, script, way, tmp_path / "work", ",".join(order)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == order


def test_a_run_is_a_path(tuned, way):
    assert os.fspath(tuned) == str(tuned) == f"{tuned}" == str(way / "tuned")
    assert Path(tuned) == tuned.path == way / "tuned" and tuned / "README.md" == way / "tuned" / "README.md"
    assert tuned == FinetuneRun(way / "tuned") == way / "tuned" and tuned != FinetuneRun(way) and tuned != "tuned"
    assert {tuned: 1}[FinetuneRun(way / "tuned")] == 1
    assert artifact.verify(tuned) == tuned.manifest


def test_a_run_has_its_scores_recipe_and_cost(tuned):
    assert [(row["method"], row["seed"]) for row in tuned.scores] == [("majority", 0), ("full", 0)]
    assert all(0 <= row["accuracy"] <= 1 for row in tuned.scores)
    assert tuned.recipe["adaptation"]["name"] == "full" and tuned.cost.tokens > 0
    assert list(tuned.scores.to_pandas().columns)[:3] == ["method", "seed", "accuracy"]
    assert "majority" in tuned.summary()


def test_a_run_loads_its_model_and_predicts(tuned):
    assert tuned.model is tuned.model and type(tuned.model).__name__ == "BertForSequenceClassification"
    texts = ["In the beginning God created the heaven and the earth.", "Thou shalt not steal."]
    predicted = tuned.predict(texts)
    assert len(predicted) == 2 and set(predicted) <= set(tuned.manifest["task"]["labels"])
    ids = tuned.tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=32)
    best = tuned.model(**ids).logits.argmax(-1).tolist()
    assert [tuned.model.config.id2label[index] for index in best] == predicted


def test_wrong_rows_for_predict_are_refused(tuned):
    pairs = FinetuneRun(tuned.path)
    pairs._finetuned.task.config = pairs._finetuned.task.config.model_copy(update={"text": ["text", "other"]})
    with pytest.raises(DataError, match="The task reads: text, other"):
        pairs.predict([("one",)])


def test_a_run_is_shown_as_text_and_as_html(tuned, tmp_path):
    assert repr(tuned).startswith(f"FinetuneRun('{tuned}')\nmethod") and "cost: " in repr(tuned)
    assert "<td>majority</td>" in tuned._repr_html_()
    assert repr(FinetuneRun(tmp_path)) == f"FinetuneRun('{tmp_path}')", "no error while a run is unfinished"


def test_a_table_is_a_list_of_rows_and_escapes_its_html():
    table = Table([{"a": 1, "b": "<x>"}, {"a": 0.123456, "c": None}])
    assert repr(table) == "a       b    c\n1       <x>\n0.1235"
    assert table == [{"a": 1, "b": "<x>"}, {"a": 0.123456, "c": None}]
    assert "<td>&lt;x&gt;</td>" in table._repr_html_() and "<x>" not in table._repr_html_()
    assert repr(Table()) == ""
