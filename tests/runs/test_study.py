"""Studies by the real command line: killed and resumed, on Ray and submitit, reported, timed."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from headstart.cli import main
from headstart.core import artifact
from headstart.studies import study as stage
from headstart.studies.run import jobs, nodes
from headstart.studies.run.expand import build

TABLES = ("table.csv", "table.md", "table.tex", "claims.csv", "missing.csv")


def write_rows(folder: Path) -> None:
    rng = random.Random(0)
    for name, count in (("train", 200), ("validation", 40), ("test", 60)):
        rows = ["text,label"]
        for _ in range(count):
            label = rng.random() < 0.6
            agrees = label == (rng.random() < 0.85)
            word = rng.choice(["good", "fine", "great"] if agrees else ["bad", "poor", "awful"])
            rows.append(f"a {word} day number {rng.randint(0, 30)},{'yes' if label else 'no'}")
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_study(folder: Path, name: str, model: Path | None = None, **sections: Any) -> Path:
    """A study of baselines and, with a model, of two adaptations."""
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
    study = {
        "question": "Does it learn?", "output": str(folder / name), "base": {"finetune": finetune}, "axes": axes,
        "compare": compare, "baselines": baselines, "seeds": 3, "claims": claims, "overlap": False,
        "reference": "majority", **sections,
    }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return path


def tables_of(folder: Path) -> dict[str, str]:
    return {name: (folder / "tables" / name).read_text(encoding="utf-8") for name in TABLES}


def kill_at_random(start, command, moments: int, rng: random.Random, longest: float, total: int, folder: Path):
    """Start the command and kill its process with SIGKILL, several times; return how often it was still running."""
    killed = 0
    for _ in range(moments):
        process = start(*command)
        until = time.monotonic() + rng.uniform(0.0, longest)
        finished = len(list((folder / "cells").glob("*"))) if (folder / "cells").is_dir() else 0
        # A busy machine is slow: stop after some seconds or after some cells, whichever comes first.
        expected = min(total - 1, finished + rng.randint(1, max(2, total // moments)))
        while process.poll() is None and time.monotonic() < until:
            if (folder / "cells").is_dir() and len(list((folder / "cells").glob("*"))) >= expected:
                break
            time.sleep(0.02)
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    return killed


def attempts(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what the journal records about each cell: when workers began it and when it ended."""
    entries: dict[str, list[dict[str, Any]]] = {}
    for line in (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        entries.setdefault(entry["cell"], []).append(entry)
    return entries


def require_once(folder: Path, cells: int) -> None:
    """No cell began after its artifact was complete, and none ended twice."""
    entries = attempts(folder)
    assert len(entries) == cells
    for cell, lines in entries.items():
        complete = (folder / "cells" / cell / artifact.MANIFEST).stat().st_mtime
        assert sum(line["what"] == "ended" for line in lines) <= 1, cell
        assert not [line for line in lines if line["what"] == "began" and line["at"] > complete + 0.05], cell


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    write_rows(folder)
    return folder


@pytest.fixture(scope="module")
def body(tmp_path_factory, tiny_tokenizer) -> Path:
    """A tiny untrained encoder as a plain Hugging Face folder."""
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
    """Runs the command line in this process, where everything is imported; returns its output."""

    def run(*arguments: str, expect: int = 0) -> str:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        output = capsys.readouterr()
        assert (stop.value.code or 0) == expect, output.err + output.out
        return output.out

    return run


@pytest.fixture(scope="module")
def undisturbed(folder, body) -> Path:
    """A study of 30 cells, 18 of which train, that is not interrupted."""
    study = stage.load(write_study(folder, "undisturbed", body))
    outcome = stage.run(study, quiet=True)
    assert (outcome.finished, outcome.total, outcome.failed) == (30, 30, {})
    return folder / "undisturbed.yaml"


def test_a_study_ends_with_its_table_and_verdicts(undisturbed, cli, folder):
    table = cli("study", "table", str(undisturbed), "--format", "csv")
    assert table == tables_of(folder / "undisturbed")["table.csv"]
    for name in ("full", "features", "scratch", "majority", "svm"):
        assert f"16,{name},accuracy,3," in table
    assert "mean (95 %" in cli("study", "table", str(undisturbed))
    again = cli("study", "run", str(undisturbed), "--quiet")
    assert "30 of 30 cells" in again and "“an SVM learns” is" in again
    require_once(folder / "undisturbed", 30)


def test_a_killed_study_resumes_to_the_same_tables(undisturbed, folder, body, start):
    """The short form of the long test below: killed twice, every kind of cell."""
    path = write_study(folder, "killed", body)
    output = folder / "killed"
    assert kill_at_random(start, ("study", "run", str(path), "--quiet"), 2, random.Random(1), 200, 30, output)
    stage.run(stage.load(path), quiet=True)
    assert tables_of(output) == tables_of(folder / "undisturbed")
    require_once(output, 30)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_two_hundred_cells_killed_twenty_times(folder, body, start):
    sections = {"seeds": 20}
    calm, wild = (write_study(folder, name, body, **sections) for name in ("calm", "wild"))
    stage.run(stage.load(calm), quiet=True)
    command = ("study", "run", str(wild), "--quiet")
    killed = kill_at_random(start, command, 20, random.Random(2), 600, 200, folder / "wild")
    assert killed == 20, "it ended before it was killed twenty times"
    stage.run(stage.load(wild), quiet=True)
    assert tables_of(folder / "wild") == tables_of(folder / "calm")
    require_once(folder / "wild", 200)


def test_a_failed_cell_is_reported_and_the_others_remain(folder, cli):
    broken = {"axes": {
        "labels": {"finetune.data.train_rows": [16]},
        "test": {name: {"finetune.data.test": f"{folder}/{name}.csv"} for name in ("test", "no")},
    }}  # fmt: skip
    (folder / "no.csv").write_text("words\nNo label here.\n", encoding="utf-8")
    path = write_study(folder, "failing", **broken)
    output = cli("study", "run", str(path), "--quiet", expect=1)
    assert "6 of 12 cells" in output and output.count(f"and 5 more failed: {folder}/no.csv has no column") == 1
    table = tables_of(folder / "failing")["table.csv"]
    assert table.count(f"failed with seeds 0, 1, 2: {folder}/no.csv has no column") == 2
    (folder / "no.csv").write_bytes((folder / "test.csv").read_bytes())
    nodes._content.cache_clear()
    nodes._rows_content.cache_clear()
    cli("study", "run", str(path), "--quiet")
    assert "failed with" not in tables_of(folder / "failing")["table.csv"]


EXECUTORS = [
    pytest.param({"on": "ray", "workers": 2}, id="ray"),
    pytest.param({"on": "slurm", "workers": 2, "slurm": {"cluster": "local"}}, id="submitit"),
]


@pytest.mark.parametrize("settings", EXECUTORS)
def test_the_table_is_the_same_on_other_executors(settings, folder):
    pytest.importorskip("ray" if settings["on"] == "ray" else "submitit", reason="`pip install 'headstart[study]'`")
    names = [f"{where}-{settings['on']}" for where in ("here", "there")]
    for name, execution in zip(names, ({}, settings), strict=True):
        path = write_study(folder, name, seeds=1, axes={}, execution=execution)
        outcome = stage.run(stage.load(path), quiet=True)
        assert outcome.finished == 2, outcome
    assert tables_of(folder / names[1]) == tables_of(folder / names[0])
    assert not (folder / names[1] / "jobs").exists()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_study_with_training_is_the_same_on_ray(undisturbed, folder, body):
    pytest.importorskip("ray", reason="`pip install 'headstart[study]'`")
    stage.run(stage.load(write_study(folder, "on-ray", body, execution={"on": "ray", "workers": 2})), True)
    assert tables_of(folder / "on-ray") == tables_of(folder / "undisturbed")


def test_plan_report_and_power(undisturbed, cli, folder):
    plan = cli("study", "plan", str(undisturbed), "seeds=4")
    assert "40 entries: 5 systems, 2 contexts, 4 seeds" in plan and "30 finished" in plan
    assert "forecast" in plan and "full on" in plan and "h with" in plan
    page = Path(cli("study", "report", str(undisturbed), "--to", str(folder / "page")).strip())
    html = page.read_text(encoding="utf-8")
    assert "Does it learn?" in html and "<svg" in html and "http" not in html and "<script" not in html
    assert "adaptation:" in html and "torch" in html, "recipes and versions"
    assert {path.suffix for path in (folder / "page" / "tables").iterdir()} == {".md", ".csv", ".tex", ".parquet"}
    power = cli("study", "power", str(undisturbed), "--difference", "5")
    assert "The power to confirm a true difference of 5 points" in power and "test examples takes" in power


def test_a_checkpoint_is_trained_once_and_its_corpus_is_searched(folder, verses):
    """Pre-training inside a study; the test rows that occur in its corpus are counted."""
    pytest.importorskip("daft", reason="`pip install 'headstart[corpus]'`")
    shared = [verse for verse in verses[:400] if len(verse.split()) > 13][:12]
    (folder / "corpus.txt").write_text("\n\n".join(verses[:600]) + "\n", encoding="utf-8")
    rows = [f'"{text.replace(chr(34), "")}",{number % 2}' for number, text in enumerate(shared)]
    (folder / "shared.csv").write_text("text,label\n" + "\n".join([*rows, '"not a verse of any book",1']) + "\n")
    pretrain = {
        "corpus": {"files": [f"{folder}/corpus.txt"], "validation": 0.1}, "tokenizer": {"vocab_size": 300},
        "backbone": {"family": "encoder", "size": "tiny"}, "objective": "masked_lm",
        "training": {"budget": "2 steps", "seq_length": 16, "batch_tokens": 64, "eval_count": 0},
    }  # fmt: skip
    finetune = {
        "task": {"kind": "classify", "text": ["text"], "label": "label"}, "adaptation": "full",
        "data": {
            **dict.fromkeys(("train", "validation", "test"), f"{folder}/shared.csv"), "allow_overlap": True,
        },
        "training": {"budget": "1 steps", "batch_size": 4, "max_length": 16, "eval_count": 1},
    }  # fmt: skip
    sections = {"base": {"pretrain": pretrain, "finetune": finetune}, "axes": {}, "overlap": True, "seeds": 2}
    path = write_study(folder, "whole", **sections, baselines=["majority"], claims=[])
    study = stage.load(path)
    outcome = stage.run(study, quiet=True)
    assert outcome.finished == outcome.total == 1 + 1 + 2 + 2 + 1, outcome
    table = stage.StudyState(study).scores
    names = [column.name for column in table.columns]
    assert table.rows[0][names.index("overlap")] == "12 of 13"
    assert table.rows[0][names.index("mean without overlap")] in (0.0, 50.0, 100.0)


def test_two_hundred_trivial_cells_take_seconds(folder):
    """Processor time, which other work on the machine does not change."""
    study = stage.load(write_study(folder, "nothing", baselines=["majority"], seeds=100, claims=[]))
    began = time.process_time()
    graph = build(study)
    for node in graph.nodes.values():
        answer = json.loads(jobs.run_job(jobs.serialize_job(node, study.output)))
        assert answer["ended"] == "finished", answer
    assert len(graph.nodes) == 200 and time.process_time() - began < 15
    stage.run(study, quiet=True)
    assert len(tables_of(study.output)["table.csv"].splitlines()) == 3


@pytest.mark.long
def test_two_hundred_trivial_cells_by_the_clock(folder):
    """Wall time of the whole engine, including the start of its workers; for an otherwise idle machine."""
    nothing = stage.load(write_study(folder, "nothing-timed", baselines=["majority"], seeds=100, claims=[]))
    start = time.monotonic()
    stage.run(nothing, quiet=True)
    took = time.monotonic() - start
    print(f"200 trivial cells took {took:.1f} s")
    assert took < 20


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_cell_costs_as_much_as_the_run_by_hand(folder, body):
    """At most 3 % more processor time than the same fine-tuning without a study."""
    import resource

    from headstart.core import config
    from headstart.stages.finetune.cell import MethodRequest, run_method
    from headstart.stages.finetune.recipe import FinetuneRecipe
    from headstart.stages.finetune.setup import open_setup

    training = {"budget": "300 steps", "batch_size": 16, "max_length": 48, "eval_count": 1}
    path = write_study(folder, "cost", body, seeds=1, baselines=[], reference="full", claims=[], axes={
        "adaptation": {"full": {"finetune.adaptation": "full"}},
    })  # fmt: skip
    study = stage.load(path, [f"base.finetune.training={json.dumps(training)}"])
    (node,) = build(study).nodes.values()

    def by_hand(folder: Path) -> None:
        recipe = config.fill(FinetuneRecipe, node.recipe)
        setup = open_setup(recipe)
        run_method(MethodRequest(setup, setup.chosen, recipe.adaptation, 0, folder, "x", quiet=True))

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    ratios = []
    by_hand(folder / "warm")
    for turn in range(3):
        start = spent()
        by_hand(folder / f"hand-{turn}")
        middle = spent()
        answer = jobs.run_job(jobs.serialize_job(node, folder / f"cell-{turn}"))
        assert json.loads(answer)["ended"] == "finished", answer
        ratios.append((spent() - middle) / (middle - start))
    print(f"a cell takes {min(ratios):.3f} to {max(ratios):.3f} of the run by hand")
    assert min(ratios) < 1.03, ratios


@pytest.fixture(scope="module")
def probe_study(folder, verses) -> Path:
    """A study without fine-tuning: two objectives, pre-trained twice, on a few minimal pairs."""
    (folder / "probed.txt").write_text("\n\n".join(verses[:300]) + "\n", encoding="utf-8")
    texts = [" ".join(verse.split()[:6]) for verse in verses if len(verse.split()) > 6][:12]
    pairs = [f'"{text}","{" ".join(reversed(text.split()))}"' for text in texts]
    (folder / "pairs.csv").write_text("\n".join(["good,bad", *pairs]) + "\n", encoding="utf-8")
    decoder = {"family": "decoder", "kind": "gpt2", "size": "tiny"}
    study = {
        "question": "Which objective learns the order of words?", "output": str(folder / "probes"),
        "base": {
            "pretrain": {
                "corpus": {"files": [f"{folder}/probed.txt"], "validation": 0.1}, "tokenizer": {"vocab_size": 300},
                "backbone": {"family": "encoder", "size": "tiny"}, "objective": "masked_lm",
                "training": {"budget": "2 steps", "seq_length": 32, "batch_tokens": 64, "eval_count": 1},
            },
            "probe": {"probes": ["minimal_pairs"], "text": f"{folder}/pairs.csv"},
        },
        "axes": {
            "objective": {
                "masked": {"pretrain.objective": "masked_lm"},
                "causal": {"pretrain.objective": "causal_lm", "pretrain.backbone": decoder},
            }
        },
        "compare": ["objective"], "seeds": 2, "seed_pretraining": True,
        "claims": [
            {"statement": "masks are better", "contrast": "masked > causal on probe.minimal_pairs"},
            {"statement": "masks are faster", "contrast": "masked < causal on tokens_to(loss, 0.01)"},
        ],
    }  # fmt: skip
    path = folder / "probes.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return path


def test_probes_are_cells_with_items_that_a_claim_compares(probe_study, folder, cli):
    output = cli("study", "run", str(probe_study), "--quiet")
    state = stage.StudyState(stage.load(probe_study))
    kinds = [node.kind for node in state.graph.nodes.values()]
    assert {kind: kinds.count(kind) for kind in kinds} == {"prepare": 2, "pretrain": 4, "probe": 4}
    assert "10 of 10 cells" in output and "“masks are better” is undecided" in output
    assert "The sides have different measures: accuracy (likelihood), accuracy (pseudo-likelihood)." in output
    assert "2 of 2 runs of masked, 2 of 2 runs of causal never reached it" in output
    verdict, _ = state.verdicts
    assert (verdict.comparison.units, verdict.comparison.examples) == (2, 12), "seeds of pre-training, and pairs"
    means = {
        system.levels[0]: sum(cell.score for cell in runs.values()) / 2
        for (system, _), runs in state.results.scores.items()
    }
    assert verdict.comparison.difference == pytest.approx(means["masked"] - means["causal"])
    probed = next(node.id for node in state.graph.nodes.values() if node.kind == "probe")
    shutil.rmtree(folder / "probes" / "cells" / probed)
    before = len(attempts(folder / "probes"))
    assert "10 of 10 cells" in cli("study", "run", str(probe_study), "--quiet")
    entries = attempts(folder / "probes")
    assert len(entries) == before and len(entries.pop(probed)) == 4, "only the removed cell ran again"
    assert all(len(lines) == 2 for lines in entries.values())
    cli("study", "report", str(probe_study))
    assert "accuracy (likelihood)" in (folder / "probes" / "tables" / "probes.md").read_text(encoding="utf-8")


def test_a_study_with_looks_ends_when_its_claims_are_decided(folder, cli):
    path = write_study(folder, "looks", seeds=12, looks=[8])
    output = cli("study", "run", str(path), "--quiet")
    assert "Tested after 8 of 12 seeds at p ≤" in output, output
    assert f"{folder}/looks: 32 of 32 cells" in output and "16 cells were not needed" in output
    assert len(list((folder / "looks" / "cells").iterdir())) == 32
    assert cli("study", "run", str(path), "--quiet") == output, "nothing is left to run"
