"""A study as a graph: shared work, what an address depends on, and what a change recomputes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.core import artifact, config
from headstart.core.errors import DataError, RecipeError
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.studies import study as stage
from headstart.studies.definition import Study
from headstart.studies.run import expand, nodes
from headstart.studies.run.engine import RunSummary
from headstart.studies.run.expand import build

ROWS = "text,label\n" + "".join(f"a {'good' if n % 2 else 'bad'} day {n},{n % 2}\n" for n in range(40))


@pytest.fixture
def files(tmp_path) -> Path:
    nodes._content.cache_clear()
    nodes._rows_content.cache_clear()
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "corpus.txt").write_text("In the beginning.\n\nAnd so on.\n", encoding="utf-8")
    return tmp_path


def study(files: Path, **sections) -> Study:
    finetune = {
        "task": {"kind": "classify", "text": ["text"], "label": "label"},
        "data": {"train": f"{files}/train.csv", "validation": 10, "test": f"{files}/test.csv"},
    }
    pretrain = {
        "corpus": {"files": [f"{files}/corpus.txt"]}, "backbone": {"family": "encoder", "size": "tiny"},
        "objective": "masked_lm",
    }  # fmt: skip
    axes = {
        "labels": {"finetune.data.train_rows": [8, 16]},
        "objective": {"masked": {"pretrain.objective": "masked_lm"}, "spans": {"pretrain.objective": "span_boundary"}},
        "adaptation": {name: {"finetune.adaptation": name} for name in ("full", "lora")},
    }
    made = {
        "question": "Why?", "output": str(files / "out"), "base": {"pretrain": pretrain, "finetune": finetune},
        "axes": axes, "compare": ["objective", "adaptation"], "baselines": ["majority", "scratch"], "seeds": 3,
        "reference": "majority",
    }  # fmt: skip
    return config.fill(Study, made | sections)


def kinds(graph):
    return {
        kind: [n for n in graph.nodes.values() if n.kind == kind] for kind in {n.kind for n in graph.nodes.values()}
    }


def test_one_text_one_pretraining_for_many_cells(files):
    graph = build(study(files))
    by_kind = kinds(graph)
    assert {kind: len(nodes) for kind, nodes in by_kind.items()} == {
        "prepare": 1, "pretrain": 2, "finetune": 2 * 2 * 2 * 3 + 2 * 3, "baseline": 6, "overlap": 1,
    }  # fmt: skip
    served = {node.kind: count for node, count in graph.shared()}
    assert served == {"prepare": 2, "pretrain": 12}, "scratch uses the network of the first pre-training"
    assert {cell.system.name for cell in graph.cells} == {
        "masked/full", "masked/lora", "spans/full", "spans/lora", "majority", "scratch",
    }  # fmt: skip
    assert len(graph.cells) == 2 * 3 * 6
    names = list(graph.nodes)
    assert all(names.index(parent) < index for index, n in enumerate(graph.nodes.values()) for parent in n.parents)


def test_without_the_engine_the_corpus_is_not_searched(files, monkeypatch):
    monkeypatch.setattr(expand, "find_spec", lambda name: None)
    made = study(files)
    graph = build(made)
    assert "overlap" not in kinds(graph) and not graph.overlaps and made.overlap
    assert "pip install" in "\n".join(stage.summary(stage.StudyState(made), RunSummary(1, 1)))


def test_scratch_runs_once_for_each_shape_of_network(files):
    levels = {
        "masked": {"pretrain.objective": "masked_lm"}, "spans": {"pretrain.objective": "span_boundary"},
        "wide": {"pretrain.objective": "masked_lm", "pretrain.backbone": {"family": "encoder", "size": "mini"}},
    }  # fmt: skip
    sections = {"axes": {"objective": levels}, "compare": ["objective"]}
    names = [cell.system.name for cell in build(study(files, **sections)).cells]
    assert {name: names.count(name) for name in names if "scratch" in name} == {"scratch/masked": 3, "scratch/wide": 3}


def test_seed_pretraining_pretrains_once_per_seed(files):
    assert len(kinds(build(study(files, seed_pretraining=True)))["pretrain"]) == 6


def test_an_address_depends_on_content_and_not_on_paths(files, tmp_path_factory):
    before = build(study(files))
    moved = tmp_path_factory.mktemp("moved")
    for path in files.glob("*.*"):
        (moved / path.name).write_bytes(path.read_bytes())
    assert build(study(moved)).nodes.keys() == before.nodes.keys()


def test_the_content_of_a_teacher_is_a_part_of_the_address(files):
    def train(folder: Path, weights: bytes) -> None:
        with artifact.staged(folder, "model of finetune") as staging:
            (staging.path / "model.safetensors").write_bytes(weights)

    data = {"train": f"{files}/train.csv", "validation": 10, "test": f"{files}/test.csv"}
    (files / "model").mkdir()

    def address(teacher: Path) -> str:
        nodes._content.cache_clear()
        adaptation = {"name": "distillation", "teacher": str(teacher)}
        raw = {"output": "out", "model": f"{files}/model", "task": {"kind": "classify"}, "data": data}
        return nodes.finetune_node(config.to_dict(config.fill(FinetuneRecipe, raw | {"adaptation": adaptation}))).id

    train(files / "teacher", b"weights")
    before = address(files / "teacher")
    (files / "teacher").rename(files / "elsewhere")
    assert address(files / "elsewhere") == before
    train(files / "teacher", b"other weights")
    assert address(files / "teacher") != before


def test_test_rows_in_several_files_are_searched_for(files):
    (files / "test-2.csv").write_text(ROWS, encoding="utf-8")
    for test in (f"{files}/test*.csv", [f"{files}/test.csv", f"{files}/test-2.csv"]):
        base = study(files).base.model_dump()
        base["finetune"]["data"]["test"] = test
        graph = build(study(files, base=base))
        assert len(kinds(graph)["overlap"]) == 1 and not graph.absent()


def test_different_missing_files_have_different_addresses(files):
    tasks = {name: {"finetune.data.train": f"{files}/{name}.csv"} for name in ("no", "none")}
    sections = {"axes": {"task": tasks}, "base": study(files).base.model_dump() | {"pretrain": None}, "compare": []}
    graph = build(study(files, **sections, baselines=["majority"]))
    assert len(graph.nodes) == len(graph.cells) == 2 * 3
    assert graph.absent() == {f"{files}/no.csv": 3, f"{files}/none.csv": 3}


def test_no_cell_starts_if_an_input_file_is_missing(files):
    (files / "corpus.txt").unlink()
    nodes._described_files.cache_clear()
    with pytest.raises(DataError, match=r"corpus\.txt \(read by \d+ cells\)"):
        stage.run(study(files), quiet=True)
    assert not (files / "out").exists()


def test_a_change_recomputes_only_what_depends_on_it(files):
    before = build(study(files))
    more_seeds = build(study(files, seeds=4))
    assert before.nodes.keys() < more_seeds.nodes.keys()
    (files / "test.csv").write_text(ROWS + "a fine day,1\n", encoding="utf-8")
    nodes._content.cache_clear()
    nodes._rows_content.cache_clear()
    other_test = build(study(files))
    same = {before.nodes[name].kind for name in before.nodes.keys() & other_test.nodes.keys()}
    assert same == {"prepare", "pretrain"}, "other test rows change everything but the pre-training"


def test_baselines_alone_need_no_model(files):
    alone = study(files, base={"finetune": study(files).base.finetune}, axes={}, compare=[], baselines=["majority"])
    graph = build(alone)
    assert [node.kind for node in graph.nodes.values()] == ["baseline"] * 3
    assert {cell.context for cell in graph.cells} == {()}


def test_a_reference_that_is_not_a_row_is_refused(files):
    with pytest.raises(RecipeError, match=r"'full' is not a row of the table.*masked/full, majority"):
        build(study(files, reference="full"))


def test_a_corpus_that_has_moved_is_not_searched(files):
    made = study(files)
    checkpoint = files / "checkpoint"
    corpus = made.base.pretrain["corpus"]
    with artifact.staged(checkpoint, "checkpoint", recipe={"corpus": corpus}) as staging:
        (staging / "config.json").write_text("{}")
    base = {"finetune": {**made.base.finetune, "model": str(checkpoint), "adaptation": "full"}}
    axes = {"labels": {"finetune.data.train_rows": [8]}}
    sections = {"base": base, "axes": axes, "compare": [], "claims": []}
    assert kinds(build(study(files, **sections)))["overlap"]
    (files / "corpus.txt").unlink()
    nodes._described_files.cache_clear()
    graph = build(study(files, **sections))
    assert "overlap" not in kinds(graph) and graph.unsearched == [str(checkpoint)] and not graph.absent()
    lines = stage.summary(stage.StudyState(study(files, **sections)), RunSummary(1))
    assert any("was not searched for test items" in line for line in lines)


def test_settings_of_the_study_are_refused_in_the_base_recipe(files):
    base = study(files).base
    with pytest.raises(RecipeError, match=r"base\.finetune has `seeds`"):
        build(study(files, base={"finetune": {**base.finetune, "seeds": 2}, "pretrain": base.pretrain}))


def test_an_invalid_recipe_names_its_point(files):
    axes = {"rate": {"finetune.training.learning_rate": [1e-3, 7.0]}}
    finetune = {**study(files).base.finetune, "adaptation": "full", "model": "somewhere"}
    with pytest.raises(RecipeError, match=r"at rate 7\.0 .*learning_rate is 7"):
        build(study(files, base={"finetune": finetune}, axes=axes, compare=[]))
