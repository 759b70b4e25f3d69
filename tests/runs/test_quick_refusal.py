"""A wrong recipe is refused before torch is imported, whatever is wrong with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from headstart.core import registry

HEAVY = ("torch", "transformers", "peft", "sklearn", "daft")
"""Libraries whose import takes seconds."""
SCRIPT = f"""
import atexit, sys
atexit.register(lambda: print("imported:", *[name for name in {HEAVY!r} if name in sys.modules]))
from headstart.cli import main
main(sys.argv[1:])
"""
RECIPES: dict[str, dict[str, Any]] = {
    "pretrain": {
        "output": "out", "corpus": {"files": ["corpus.txt"]}, "backbone": {"family": "encoder"},
        "objective": {"name": "masked_lm"},
    },
    "finetune": {
        "output": "out", "model": "model", "task": {"kind": "classify", "text": "text", "label": "label"},
        "data": {"train": "a.csv", "validation": 0.1, "test": 0.1}, "adaptation": {"name": "full"},
    },
    "corpus build": {"output": "out", "sources": [{"name": "a", "files": ["a.txt"]}]},
    "index": {"output": "out", "model": "model", "passages": {"files": ["a.txt"]}},
    "study run": {"question": "Which is better?", "output": "out"},
}  # fmt: skip
RECIPES["plan"] = RECIPES["finetune"]
CASES = [
    ("pretrain", ["sede=1"], "sede is not a known key"),
    ("pretrain", ["seed"], "override 'seed' has no '='"),
    ("pretrain", ["objective.name=masked_ml"], "objectives has no 'masked_ml'"),
    ("pretrain", ["objective.rat=0.1"], "objective.rat is not a known key"),
    ("pretrain", ["objective.rate=high"], "objective.rate is 'high'"),
    ("pretrain", ["objective={name: mixture, objectives: [{name: masked_lm, rat: 1}]}"], "objectives.0.rat is not"),
    ("pretrain", ["backbone.size=big"], "backbone.size is 'big'"),
    ("pretrain", ["training.optimizer=addam"], "training.optimizer is not a known key"),
    ("pretrain", ["training.learning_rate=-1"], "training.learning_rate is -1"),
    ("pretrain", ["sede=1", "objective.rate=2", "backbone.size=big"], "backbone.size is 'big'"),
    ("pretrain", [], "there is no file corpus.txt"),
    ("pretrain", ["corpus={from: gone}"], "there is no folder gone"),
    ("pretrain", ["corpus={files: [recipe.yaml]}", "backbone={family: checkpoint, path: gone}"], "backbone.path is"),
    ("finetune", ["task.txt=text"], "task.txt is not a known key"),
    ("finetune", ["task.kind=clasify"], "tasks has no 'clasify'"),
    ("finetune", ["adaptation.rank=8"], "adaptation.rank is not a known key"),
    ("finetune", ["adaptation={name: lora, rank: many}"], "adaptation.rank is 'many'"),
    ("finetune", ["data.train_rows=1"], "data.train_rows is 1"),
    ("finetune", [], "model is 'model', but there is no such folder"),
    ("finetune", ["model=pypi:some"], "there is no file a.csv"),
    ("plan", ["training.learning_rate=-1"], "training.learning_rate is -1"),
    ("plan", [], "model is 'model', but there is no such folder"),
    ("plan", ["model=pypi:some"], "there is no file a.csv"),
    ("corpus build", ["sourcs=1"], "sourcs is not a known key"),
    ("index", ["pasages=1"], "pasages is not a known key"),
    ("study run", ["questoin=1"], "questoin is not a known key"),
]


def report_of(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    """Run a command in a new process; returns its exit code, its message, and the libraries that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )
    return done.returncode, done.stderr, done.stdout.rpartition("imported:")[2].strip()


@pytest.mark.parametrize(("verb", "overrides", "problem"), CASES, ids=[" ".join((c[0], *c[1])) for c in CASES])
def test_a_wrong_recipe_is_refused_without_the_slow_imports(verb, overrides, problem, tmp_path):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPES[verb]), encoding="utf-8")
    code, message, imported = report_of(*verb.split(), "recipe.yaml", *overrides, cwd=tmp_path)
    assert code == 2 and problem in message, message
    assert not imported, f"the error was reported after the import of {imported}"


@pytest.mark.parametrize(
    "arguments",
    ["evaluate gone a.csv", "predict gone a.csv --to b.csv", "generate gone Once", "serve gone", "probe gone",
     "export gone --to onnx", "advise . --model gone"],
)  # fmt: skip
def test_a_missing_model_is_refused_without_the_slow_imports(arguments, tmp_path):
    code, message, imported = report_of(*arguments.split(), cwd=tmp_path)
    assert code == 2 and "model is 'gone', but there is no such folder" in message, message
    assert not imported, f"the error was reported after the import of {imported}"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [("advise gone.csv", "there is no file gone.csv"), ("search gone what", "there is no folder gone")],
)
def test_other_missing_files_are_refused_without_the_slow_imports(arguments, problem, tmp_path):
    code, message, imported = report_of(*arguments.split(), cwd=tmp_path)
    assert code == 2 and problem in message, message
    assert not imported


@pytest.mark.parametrize("verb", RECIPES)
def test_a_missing_recipe_is_refused_without_the_slow_imports(verb, tmp_path):
    code, message, imported = report_of(*verb.split(), "none.yaml", cwd=tmp_path)
    assert code == 2 and "there is no recipe at none.yaml" in message
    assert not imported


def test_the_settings_of_every_registered_class_are_known_without_the_slow_imports(tmp_path):
    script = f"""
import sys
from headstart.core import registry
for group in registry.SELECTOR:
    for name in registry.TABLES[group]:
        registry.resolve(group, name).Config.model_json_schema()
        loaded = [library for library in {HEAVY!r} if library in sys.modules]
        assert not loaded, (group, name, loaded)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert sum(len(registry.TABLES[group]) for group in registry.SELECTOR) > 40
