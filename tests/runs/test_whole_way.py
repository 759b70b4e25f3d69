"""From raw text to an evaluated model by the real command line: finished, refused, killed, resumed, described."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from headstart.core import artifact, config
from headstart.core.recipes import variables
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.pretrain.recipe import PretrainRecipe

ROOT = Path(__file__).parents[2]
DATA = ROOT / "recipes" / "quickstart" / "data"
METHODS = {"majority", "svm", "full", "scratch", "features"}
WHOLE = " (reads whole texts)"
UNTIMED = ("loss", "gradient_norm", "learning_rate", "tokens", "share", "validation/loss", "validation/accuracy")


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file of a folder with its size and its modification time."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def curve(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run by step, without those that depend on the clock."""
    lines = (folder / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key in ("step", *UNTIMED)} for line in lines]


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*"))


def wait_for_a_step_after(step: int, folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until there is a checkpoint later than `step`, while the process runs."""
    deadline = time.monotonic() + 200
    while not any(saved > step for saved in saved_steps(folder)):
        assert process.poll() is None, f"it ended before it was interrupted: {process.communicate()}"
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.01)


def test_pretraining_prints_its_scores_and_cost(pretrained):
    assert re.search(r"pretrained: [\d,]+ parameters, 30,720 tokens, 60 updates", pretrained.process.stdout)
    assert re.search(r"held-out loss \d\.\d+, accuracy 0\.\d+ \(a unigram model's loss: \d", pretrained.process.stdout)
    assert re.search(r"cost: 30\.7 k tokens, .* FLOPs, .* s, .* kWh", pretrained.process.stdout)
    losses = [line["loss"] for line in curve(pretrained.folder) if "loss" in line]
    assert len(losses) == 60 and losses[-1] < losses[0] - 0.5, "it learned nothing"


def test_a_finished_run_is_not_changed(pretrained, headstart):
    before = snapshot(pretrained.folder)
    again = headstart(*pretrained.command)
    assert "is already finished with this recipe; nothing to do" in again.stderr
    assert again.stdout == pretrained.process.stdout, "the summary is shown again"
    assert snapshot(pretrained.folder) == before


def test_another_recipe_is_refused(pretrained, headstart):
    before = snapshot(pretrained.folder)
    refused = headstart(*pretrained.command, "seed=1", "training.learning_rate=2e-3", expect=2)
    assert "contains a run of another recipe" in refused.stderr
    assert "seed" in refused.stderr and "training.learning_rate" in refused.stderr
    assert "Choose another output" in refused.stderr
    assert snapshot(pretrained.folder) == before


def test_a_run_that_was_killed_and_interrupted_ends_like_an_uninterrupted_one(pretrained, headstart, start, tmp_path):
    """It uses the filled recipe in the first output, so this also shows that the filled recipe repeats the run."""
    folder = tmp_path / "interrupted"
    command = ("pretrain", str(pretrained.folder / "recipe.yaml"), f"output={folder}", "--quiet")

    process = start(*command)
    wait_for_a_step_after(0, folder, process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not artifact.is_complete(folder)
    killed_at = saved_steps(folder)[-1]
    logged = (folder / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()

    process = start(*command)
    wait_for_a_step_after(killed_at, folder, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "headstart: interrupted; run the same command again to resume." in stderr and "Traceback" not in stderr
    assert not artifact.is_complete(folder)
    interrupted_at = saved_steps(folder)[-1]
    assert killed_at < interrupted_at < 60, "it was not interrupted in the middle"

    headstart(*command)
    kept = [line for line in logged if line.endswith("}") and json.loads(line)["step"] <= killed_at]
    now = (folder / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(kept) >= killed_at and now[: len(kept)] == kept, "it started over: earlier lines have other timings"
    assert curve(folder) == curve(pretrained.folder)
    weights = "model.safetensors"
    assert (folder / weights).read_bytes() == (pretrained.folder / weights).read_bytes()
    manifest = artifact.verify(folder, "checkpoint of pretrain")
    assert manifest["metrics"] == pretrained.manifest["metrics"]
    assert manifest["parents"] == pretrained.manifest["parents"]
    assert runs_of(folder) == runs_of(pretrained.folder), "another fingerprint"


def runs_of(folder: Path) -> set[str]:
    """The fingerprints of the recipe in a run's checkpoints."""
    return {artifact.read_manifest(path)["run"] for path in (folder / "checkpoints").glob("step-*")}


def test_the_filled_recipe_has_every_setting_and_repeats_itself(pretrained, finetuned):
    for run, model in ((pretrained, PretrainRecipe), (finetuned, FinetuneRecipe)):
        text = (run.folder / "recipe.yaml").read_text(encoding="utf-8")
        filled = config.load(run.folder / "recipe.yaml", model)
        assert config.to_yaml(filled) == text
        assert variables.written(config.to_dict(filled)) == run.manifest["recipe"]
        assert set(yaml.safe_load(text)) == set(model.model_fields) - set(model.newer)


def test_finetuning_prints_the_scores_of_all_methods(finetuned):
    output = finetuned.process.stdout
    rows = {line.split("|")[1].strip() for line in output.splitlines() if line.startswith("| ")} - {"method"}
    # The texts are longer than `training.max_length`, so the table marks the baseline that reads them whole.
    assert {row.removesuffix(WHOLE) for row in rows} == METHODS
    for other in METHODS - {"full"}:
        lead = rf"full is (ahead of|behind) {other}( \(reads whole texts\))? by \d+\.\d points of accuracy \(.* to "
        lead += r".*\), undecided \(p "
        assert re.search(lead, output)
    assert "cost of all trained models:" in output
    facts = finetuned.manifest
    assert set(facts["metrics"]) == METHODS
    assert all(len(scores) == 2 for scores in facts["metrics"].values()), "one score for each seed"
    validation = [scores["accuracy"] for scores in facts["validation"]["full"]]
    assert facts["seed"] == validation.index(max(validation)), "the weights are not those of the best seed"
    assert facts["data"]["train_rows"] == 200
    assert facts["parents"]["model"]


def test_a_finished_comparison_is_not_changed(finetuned, headstart):
    """Started with its filled recipe, it has the same fingerprint, so there is nothing to do."""
    before = snapshot(finetuned.folder)
    again = headstart("finetune", str(finetuned.folder / "recipe.yaml"))
    assert "is already finished with this recipe; nothing to do" in again.stderr
    assert again.stdout == finetuned.process.stdout
    assert snapshot(finetuned.folder) == before


def test_manifests_verify_and_list_every_file_of_the_model(pretrained, finetuned):
    for run, kind in ((pretrained, "checkpoint of pretrain"), (finetuned, "model of finetune")):
        manifest = artifact.verify(run.folder, kind)
        expected = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
        page = {f"evaluation.{suffix}" for suffix in ("html", "md", "json")} if run is finetuned else set()
        assert set(manifest["files"]) == expected | page
        assert {"python", "torch", "transformers"} <= set(manifest["versions"])
        assert manifest["cost"]["seconds"] > 0 and manifest["cost"]["flops"] > 0
        assert not list(run.folder.glob(".*")), "staging is left behind"
    assert finetuned.manifest["parents"]["model"] == artifact.identity(pretrained.folder)


@pytest.mark.parametrize("name", ["pretrained", "finetuned"])
def test_the_model_card_is_complete(name, request):
    run = request.getfixturevalue(name)
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    front, body = card.split("---\n")[1:3]
    assert yaml.safe_load(front)["library_name"] == "transformers"
    recipe = re.search(r"```yaml\n(.*?)```", body, re.DOTALL)
    assert recipe and yaml.safe_load(recipe[1]) == run.manifest["recipe"]
    for heading in ("## Data", "## Cost", "## Recipe"):
        assert heading in body
    assert " kWh" in body or "energy unknown" in body
    facts = run.manifest
    if name == "pretrained":
        assert "`kjv.txt.gz`" in body
        assert f"{facts['data']['train']['tokens']:,}" in body
        assert f"{facts['metrics']['validation']['loss']:.3f}" in body
        assert f"{facts['metrics']['unigram_entropy']:.3f}" in body, "the unigram model is this one's baseline"
    else:
        for method in METHODS:
            mean = 100 * sum(scores["accuracy"] for scores in facts["metrics"][method]) / 2
            assert f"| {method} | {mean:.1f} |" in body.replace(WHOLE, "")
        assert all(f"{split}.csv`" in body for split in ("train", "validation", "test"))


def test_tensorboard_has_the_curve(pretrained, finetuned):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(pretrained.folder / "logs")).Reload()
    lines = [line for line in curve(pretrained.folder) if "loss" in line]
    scalars = events.Scalars("loss")
    assert [scalar.step for scalar in scalars] == [line["step"] for line in lines]
    assert [scalar.value for scalar in scalars] == pytest.approx([line["loss"] for line in lines])
    assert "validation/loss" in events.Tags()["scalars"]
    trained = {path.parent.name for path in (finetuned.folder / "logs").glob("*/events.out.tfevents.*")}
    assert trained == {f"{method}-seed-{seed}" for method in ("full", "scratch", "features") for seed in (0, 1)}


def test_evaluating_on_the_test_rows_gives_the_stored_scores(finetuned, headstart):
    scores = json.loads(headstart("evaluate", str(finetuned.folder), str(DATA / "order-test.csv")).stdout)
    assert scores["rows"] == 1000
    facts = finetuned.manifest
    stored = facts["metrics"]["full"][facts["seed"]]
    assert {name: scores[name] for name in stored} == stored
    assert artifact.verify(finetuned.folder)


def test_evaluating_a_checkpoint_scores_its_objective(pretrained, headstart, tmp_path):
    import gzip

    with gzip.open(DATA / "kjv.txt.gz", "rt", encoding="utf-8") as file:
        (tmp_path / "other.txt").write_text(file.read(60_000), encoding="utf-8")
    scores = json.loads(headstart("evaluate", str(pretrained.folder), str(tmp_path / "other.txt")).stdout)
    assert scores["rows"] > 300
    assert scores["loss"] == pytest.approx(pretrained.manifest["metrics"]["validation"]["loss"], abs=0.5)
    assert 0 < scores["accuracy"] < 1
    assert artifact.verify(pretrained.folder)


@pytest.mark.parametrize("name", ["pretrained", "finetuned"])
def test_plan_forecasts_and_writes_nothing(name, request, headstart, tmp_path):
    run = request.getfixturevalue(name)
    output = tmp_path / "planned"
    printed = headstart("plan", str(run.folder / "recipe.yaml"), f"output={output}").stdout
    assert re.search(r"speed here +[\d,]+ tokens per second", printed)
    assert re.search(r"forecast +.* tokens, .* FLOPs, .* kWh", printed)
    assert not output.exists()
    if name == "pretrained":
        assert re.search(r"parameters +" + f"{run.manifest['parameters']:,}", printed)
        assert re.search(r"updates +60\b", printed)


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("objectives", ["masked_lm"]),
        ("backbones", ["encoder"]),
        ("tasks", ["classify"]),
        ("adaptations", ["full", "scratch", "features"]),
        ("metrics", ["accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman"]),
        ("baselines", ["majority", "svm"]),
    ],
)
def test_list_names_the_entries_of_a_group(group, names, headstart):
    lines = headstart("list", group).stdout.splitlines()
    assert set(names) <= {line.split()[0] for line in lines}
    assert all(len(line.split()) > 3 for line in lines), "an entry has no help"


def test_list_without_a_group_names_the_groups(headstart):
    lines = headstart("list").stdout.splitlines()
    groups = {line.split()[0]: line for line in lines}
    assert {
        "objectives",
        "backbones",
        "tasks",
        "adaptations",
        "metrics",
        "baselines",
        "exports",
        "probes",
    } == groups.keys()
    assert "masked_lm, " in groups["objectives"]


@pytest.mark.parametrize(("verb", "name"), [("pretrain", "pretrained"), ("finetune", "finetuned")])
def test_schema_describes_the_filled_recipe(verb, name, request, headstart):
    described = json.loads(headstart("schema", verb).stdout)
    recipe = request.getfixturevalue(name).manifest["recipe"]
    newer = {"pretrain": PretrainRecipe, "finetune": FinetuneRecipe}[verb].newer
    assert set(described["properties"]) - set(newer) == set(recipe)
    sections = {"pretrain": ["objective", "backbone"], "finetune": ["task", "adaptation"]}[verb]
    for section in sections:
        forms = [form.get("properties", {}) for form in described["properties"][section]["oneOf"]]
        assert any(set(recipe[section]) <= set(keys) for keys in forms)


def test_doctor_describes_the_machine(headstart):
    printed = headstart("doctor").stdout
    for topic in ("versions", "device", "memory", "precision", "compiler"):
        assert re.search(rf"^{topic} ", printed, re.MULTILINE)
