"""Studies by the real command line: killed and gone on with, on Ray and submitit, reported, timed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from headstart.cli import main
from headstart.core import artifact
from headstart.studies import study as stage
from headstart.studies.run import jobs as study_cells, expand as study_graph
from headstart.studies.run.expand import build

TABLES = ("table.csv", "table.md", "table.tex", "claims.csv", "holes.csv")


def write_rows(folder: Path) -> None:
    chance = random.Random(0)
    for name, count in (("train", 200), ("validation", 40), ("test", 60)):
        rows = ["text,label"]
        for _ in range(count):
            label = chance.random() < 0.6
            told = label == (chance.random() < 0.85)
            word = chance.choice(["good", "fine", "great"] if told else ["bad", "poor", "awful"])
            rows.append(f"a {word} day number {chance.randint(0, 30)},{'yes' if label else 'no'}")
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_study(folder: Path, name: str, model: Path | None = None, **sections: Any) -> Path:
    """A study of baselines, and where a model is given of two adaptations on it."""
    finetune: dict[str, Any] = {
        "task": {"kind": "classify", "text": ["text"], "label": "label"},
        "data": {split: f"{folder}/{split}.csv" for split in ("train", "validation", "test")},
    }
    axes: dict[str, Any] = {"labels": {"finetune.data.train_rows": [16, 100]}}
    compare, baselines = [], ["majority", "svm"]
    claims = [{"statement": "an SVM learns", "contrast": "svm > majority"}]
    if model is not None:
        finetune["model"] = str(model)
        finetune["training"] = {"budget": "4 steps", "batch_size": 8, "max_length": 16, "eval_count": 1}
        axes["adaptation"] = {kind: {"finetune.adaptation": kind} for kind in ("full", "features")}
        compare, baselines = ["adaptation"], [*baselines, "scratch"]
    made = {
        "question": "Does it learn?", "output": str(folder / name), "base": {"finetune": finetune}, "axes": axes,
        "compare": compare, "baselines": baselines, "seeds": 3, "claims": claims, "overlap": False,
        "reference": "majority", **sections,
    }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(made, sort_keys=False), encoding="utf-8")
    return path


def tables_of(folder: Path) -> dict[str, str]:
    return {name: (folder / "tables" / name).read_text(encoding="utf-8") for name in TABLES}


def kill_at_random(start, command, moments: int, chance: random.Random, longest: float, total: int, folder: Path):
    """Start the command and kill its process with SIGKILL, again and again; returns how often it was caught alive."""
    caught = 0
    for _ in range(moments):
        process = start(*command)
        until = time.monotonic() + chance.uniform(0.0, longest)
        begun = len(list((folder / "cells").glob("*"))) if (folder / "cells").is_dir() else 0
        # The clock of a busy machine tells little: wait for some cells as well, whichever comes first.
        wanted = min(total - 1, begun + chance.randint(1, max(2, total // moments)))
        while process.poll() is None and time.monotonic() < until:
            if (folder / "cells").is_dir() and len(list((folder / "cells").glob("*"))) >= wanted:
                break
            time.sleep(0.02)
        caught += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    return caught


def attempts(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What workers noted of each cell: when they began, and when it was whole."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        found.setdefault(entry["cell"], []).append(entry)
    return found


def require_once(folder: Path, cells: int) -> None:
    """No cell was begun once its artifact was there, and none ended twice."""
    found = attempts(folder)
    assert len(found) == cells
    for cell, lines in found.items():
        whole = (folder / "cells" / cell / artifact.MANIFEST).stat().st_mtime
        assert sum(line["what"] == "ended" for line in lines) <= 1, cell
        assert not [line for line in lines if line["what"] == "began" and line["at"] > whole + 0.05], cell


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    write_rows(folder)
    return folder


@pytest.fixture(scope="module")
def body(tmp_path_factory, tiny_tokenizer) -> Path:
    """A tiny encoder that was trained on nothing, as a plain Hugging Face folder."""
    import torch

    from headstart.backbones.encoder import Encoder
    from headstart.core.vocabulary import vocabulary_of

    torch.manual_seed(0)
    encoder = Encoder(Encoder.Config.model_validate({"kind": "bert", "size": "tiny", "max_length": 64}))
    folder = tmp_path_factory.mktemp("body")
    encoder.build(vocabulary_of(tiny_tokenizer), 64, "AutoModelForMaskedLM").save_pretrained(str(folder))
    tiny_tokenizer.save_pretrained(str(folder))
    return folder


@pytest.fixture
def cli(capsys):
    """Runs the command line in this process, where everything is imported; returns what it said."""

    def run(*arguments: str, expect: int = 0) -> str:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        said = capsys.readouterr()
        assert (stop.value.code or 0) == expect, said.err + said.out
        return said.out

    return run


@pytest.fixture(scope="module")
def undisturbed(place, body) -> Path:
    """A study of 30 cells, 18 of which train, that nobody disturbs."""
    study = stage.load(write_study(place, "undisturbed", body))
    tally = stage.run(study, quiet=True)
    assert (tally.finished, tally.total, tally.failed) == (30, 30, {})
    return place / "undisturbed.yaml"


def test_a_study_ends_with_its_table_and_verdicts(undisturbed, cli, place):
    table = cli("study", "table", str(undisturbed), "--format", "csv")
    assert table == tables_of(place / "undisturbed")["table.csv"]
    for name in ("full", "features", "scratch", "majority", "svm"):
        assert f"16,{name},accuracy,3," in table
    assert "mean (95 %" in cli("study", "table", str(undisturbed))
    again = cli("study", "run", str(undisturbed), "--quiet")
    assert "30 of 30 cells" in again and "“an SVM learns” is" in again
    require_once(place / "undisturbed", 30)


def test_a_killed_study_goes_on_and_ends_alike(undisturbed, place, body, start):
    """The short form of the long test below: two moments, every kind of cell."""
    path = write_study(place, "killed", body)
    folder = place / "killed"
    assert kill_at_random(start, ("study", "run", str(path), "--quiet"), 2, random.Random(1), 200, 30, folder)
    stage.run(stage.load(path), quiet=True)
    assert tables_of(folder) == tables_of(place / "undisturbed")
    require_once(folder, 30)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_two_hundred_cells_killed_at_twenty_moments(place, body, start):
    sections = {"seeds": 20}
    calm, wild = (write_study(place, name, body, **sections) for name in ("calm", "wild"))
    stage.run(stage.load(calm), quiet=True)
    command = ("study", "run", str(wild), "--quiet")
    caught = kill_at_random(start, command, 20, random.Random(2), 600, 200, place / "wild")
    assert caught == 20, "it was over before all moments had come"
    stage.run(stage.load(wild), quiet=True)
    assert tables_of(place / "wild") == tables_of(place / "calm")
    require_once(place / "wild", 200)


def test_a_hole_is_named_and_the_rest_stands(place, cli):
    broken = {"axes": {
        "labels": {"finetune.data.train_rows": [16]},
        "test": {name: {"finetune.data.test": f"{place}/{name}.csv"} for name in ("test", "no")},
    }}  # fmt: skip
    (place / "no.csv").write_text("words\nNo label here.\n", encoding="utf-8")
    path = write_study(place, "holes", **broken)
    said = cli("study", "run", str(path), "--quiet", expect=1)
    assert "6 of 12 cells" in said and said.count(f"and 5 more failed: {place}/no.csv has no column") == 1
    table = tables_of(place / "holes")["table.csv"]
    assert table.count(f"failed with seeds 0, 1, 2: {place}/no.csv has no column") == 2
    (place / "no.csv").write_bytes((place / "test.csv").read_bytes())
    study_graph._content.cache_clear()
    cli("study", "run", str(path), "--quiet")
    assert "failed with" not in tables_of(place / "holes")["table.csv"]


ELSEWHERE = [
    pytest.param({"on": "ray", "workers": 2}, id="ray"),
    pytest.param({"on": "slurm", "workers": 2, "slurm": {"cluster": "local"}}, id="submitit"),
]


@pytest.mark.parametrize("settings", ELSEWHERE)
def test_elsewhere_the_table_is_the_same(settings, place):
    pytest.importorskip("ray" if settings["on"] == "ray" else "submitit", reason="`pip install 'headstart[study]'`")
    names = [f"{where}-{settings['on']}" for where in ("here", "there")]
    for name, execution in zip(names, ({}, settings), strict=True):
        path = write_study(place, name, seeds=1, axes={}, execution=execution)
        tally = stage.run(stage.load(path), quiet=True)
        assert tally.finished == 2, tally
    assert tables_of(place / names[1]) == tables_of(place / names[0])
    assert not (place / names[1] / "jobs").exists()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_study_with_training_is_the_same_on_ray(undisturbed, place, body):
    pytest.importorskip("ray", reason="`pip install 'headstart[study]'`")
    stage.run(stage.load(write_study(place, "on-ray", body, execution={"on": "ray", "workers": 2})), True)
    assert tables_of(place / "on-ray") == tables_of(place / "undisturbed")


def test_plan_report_and_power(undisturbed, cli, place):
    plan = cli("study", "plan", str(undisturbed), "seeds=4")
    assert "40 places: 5 systems, 2 contexts, 4 seeds" in plan and "30 are there" in plan
    assert "forecast" in plan and "full on" in plan and "h with" in plan
    page = Path(cli("study", "report", str(undisturbed), "--to", str(place / "page")).strip())
    html = page.read_text(encoding="utf-8")
    assert "Does it learn?" in html and "<svg" in html and "http" not in html.replace("http-equiv", "")
    assert "adaptation:" in html and "torch" in html, "recipes and versions"
    assert {path.suffix for path in (place / "page" / "tables").iterdir()} == {".md", ".csv", ".tex", ".parquet"}
    power = cli("study", "power", str(undisturbed), "--difference", "5")
    assert "The chance that a true difference of 5 points is confirmed" in power and "test examples takes" in power


def test_a_checkpoint_is_made_once_and_its_text_is_looked_for(place, verses):
    """Pre-training inside a study; the test rows that stand in its text are counted."""
    pytest.importorskip("daft", reason="`pip install 'headstart[corpus]'`")
    told = [verse for verse in verses[:400] if len(verse.split()) > 13][:12]
    (place / "corpus.txt").write_text("\n\n".join(verses[:600]) + "\n", encoding="utf-8")
    rows = [f'"{text.replace(chr(34), "")}",{number % 2}' for number, text in enumerate(told)]
    (place / "told.csv").write_text("text,label\n" + "\n".join([*rows, '"not a verse of any book, this one",1']) + "\n")
    pretrain = {
        "corpus": {"files": [f"{place}/corpus.txt"], "validation": 0.1}, "tokenizer": {"vocab_size": 300},
        "backbone": {"family": "encoder", "size": "tiny"}, "objective": "masked_lm",
        "training": {"budget": "2 steps", "seq_length": 16, "batch_tokens": 64, "eval_count": 0},
    }  # fmt: skip
    finetune = {
        "task": {"kind": "classify", "text": ["text"], "label": "label"}, "adaptation": "full",
        "data": dict.fromkeys(("train", "validation", "test"), f"{place}/told.csv"),
        "training": {"budget": "1 steps", "batch_size": 4, "max_length": 16, "eval_count": 1},
    }  # fmt: skip
    sections = {"base": {"pretrain": pretrain, "finetune": finetune}, "axes": {}, "overlap": True, "seeds": 2}
    path = write_study(place, "whole", **sections, baselines=["majority"], claims=[])
    study = stage.load(path)
    tally = stage.run(study, quiet=True)
    assert tally.finished == tally.total == 1 + 1 + 2 + 2 + 1, tally
    table = stage.StudyState(study).scores
    names = [column.name for column in table.columns]
    assert table.rows[0][names.index("overlap")] == "12 of 13"
    assert table.rows[0][names.index("mean without overlap")] in (0.0, 50.0, 100.0)


def test_two_hundred_cells_of_nothing_take_seconds(place):
    """By the processor's clock, which other work on the machine does not change."""
    study = stage.load(write_study(place, "nothing", baselines=["majority"], seeds=100, claims=[]))
    began = time.process_time()
    graph = build(study)
    for node in graph.nodes.values():
        said = json.loads(study_cells.run_job(study_cells.order(node, study.output)))
        assert said["ended"] == "finished", said
    assert len(graph.nodes) == 200 and time.process_time() - began < 15
    stage.run(study, quiet=True)
    assert len(tables_of(study.output)["table.csv"].splitlines()) == 3


@pytest.mark.long
def test_two_hundred_cells_of_nothing_by_the_clock(place):
    """By the whole engine, its workers' start included; for a machine that does nothing else."""
    nothing = stage.load(write_study(place, "nothing-timed", baselines=["majority"], seeds=100, claims=[]))
    start = time.monotonic()
    stage.run(nothing, quiet=True)
    took = time.monotonic() - start
    print(f"200 cells of nothing took {took:.1f} s")
    assert took < 20


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_cell_costs_what_the_run_costs_by_hand(place, body):
    """At most 3 % more processor time than the same fine-tuning without a study."""
    import resource

    from headstart.core import config, registry
    from headstart.stages.finetune import run as finetune
    from headstart.stages.finetune.recipe import FinetuneRecipe, methods_of
    from headstart.tasks import labelled

    training = {"budget": "300 steps", "batch_size": 16, "max_length": 48, "eval_count": 1}
    path = write_study(place, "cost", body, seeds=1, baselines=[], reference="full", claims=[], axes={
        "adaptation": {"full": {"finetune.adaptation": "full"}},
    })  # fmt: skip
    study = stage.load(path, [f"base.finetune.training={json.dumps(training)}"])
    (node,) = build(study).nodes.values()

    def by_hand(folder: Path) -> None:
        recipe = config.fill(FinetuneRecipe, node.recipe)
        task = registry.build("tasks", recipe.task)
        whole = finetune.read_data(recipe.data, task)
        splits = finetune.Splits(labelled.choose(whole.train, None, 0, "labels"), whole.validation, whole.test)
        (method, section), *_ = methods_of(recipe)
        finetune.run_adaptation(recipe, task, splits, method, section, 0, folder, "x", quiet=True)

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    ratios = []
    by_hand(place / "warm")
    for turn in range(3):
        start = spent()
        by_hand(place / f"hand-{turn}")
        middle = spent()
        said = study_cells.run_job(study_cells.order(node, place / f"cell-{turn}"))
        assert json.loads(said)["ended"] == "finished", said
        ratios.append((spent() - middle) / (middle - start))
    print(f"a cell takes {min(ratios):.3f} to {max(ratios):.3f} of the run by hand")
    assert min(ratios) < 1.03, ratios
