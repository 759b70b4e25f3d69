"""Rows that splits share are found before training, counted by kind, and refused if a split is the training file."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest

import headstart
from headstart.core import artifact, config
from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.stages.finetune import leakage
from headstart.stages.finetune.leakage import find_overlaps
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.runs.manifest import FinetuneManifest


def examples(*texts: str) -> Examples:
    return Examples({"text": list(texts)}, [0] * len(texts), "rows.csv")


def counts(train: list[str], test: list[str], validation: list[str] | None = None) -> dict[tuple[str, str], list[int]]:
    overlaps = find_overlaps(examples(*train), examples(*(validation or ["apart"])), examples(*test))
    return {(o.split, o.other): [o.exact, o.normalized, o.near] for o in overlaps}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = random.Random(0)
    words = [f"w{number}" for number in range(4000)]
    return [" ".join(rng.choices(words, k=rng.randint(16, 40))) for _ in range(600)]


def test_a_long_list_of_training_files_is_compared():
    train = Examples({"text": ["a", "b"]}, [0, 1], ", ".join(f"data/train-{part:05d}.csv" for part in range(300)))
    leakage.require_other_rows(train, Examples({"text": ["c", "d"]}, [0, 1], "test.csv"), "test")
    with pytest.raises(DataError, match="has the same rows"):
        leakage.require_other_rows(train, Examples({"text": ["b", "a"]}, [1, 0], "test.csv"), "test")


def test_each_kind_is_counted_once(texts):
    train, test = texts[:300], texts[300:400]
    test[:3] = train[:3]
    test[3:5] = [f"  {text.upper()}!!\n" for text in train[3:5]]
    test[5:9] = [text.replace(text.split()[8], "other", 1) for text in train[5:9]]
    assert counts(train, test) == {("test", "train"): [3, 2, 4]}
    assert counts(train[20:], test) == {}


def test_every_pair_of_splits_is_compared(texts):
    train, validation, test = texts[:100], texts[100:120], texts[200:230]
    validation[0] = train[0]
    test[:3] = [train[0], train[1], validation[5]]
    found = counts(train, test, validation)
    assert found == {
        ("validation", "train"): [1, 0, 0],
        ("test", "train"): [2, 0, 0],
        ("test", "validation"): [2, 0, 0],
    }


def test_near_means_the_jaccard_similarity_of_shingles():
    text = "a b c d e f g h i j k l m n o p"
    assert counts([text], [text + " q"]) == {("test", "train"): [0, 0, 1]}
    assert counts([text], ["a b c d e f g h and then something else altogether was written here"]) == {}
    assert counts(["one two three"], ["one two four"]) == {}, "short texts share most of their words by chance"


def test_all_columns_of_a_row_count_and_lists_are_texts():
    pair = Examples({"premise": ["it rains"], "hypothesis": ["it is wet"]}, [0])
    same_premise = Examples({"premise": ["it rains"], "hypothesis": ["it is dry"]}, [1])
    words = Examples({"words": [["it", "rains"]]}, [0])
    assert find_overlaps(pair, same_premise, same_premise)[0].other == "validation"
    assert find_overlaps(words, pair, words)[0].exact == 1
    empty = examples("", "?!", "…")
    assert find_overlaps(examples("!"), examples("a"), empty) == [], "texts without letters are not all equal"


@pytest.mark.parametrize(
    "text", ["今日はとても良い天気なので公園まで歩いて行きました", "\ud800 half a pair", "🙂" * 50]
)
def test_any_text_can_be_compared(text):
    assert counts([text], [text]) == {("test", "train"): [1, 0, 0]}


def test_batches_do_not_change_the_counts(texts, monkeypatch):
    train, test = texts[:300], texts[250:400]
    whole = counts(train, test)
    monkeypatch.setattr(leakage, "_BATCH_ROWS", 7)
    monkeypatch.setattr(leakage, "_PAIRS", 3)
    assert counts(train, test) == whole == {("test", "train"): [50, 0, 0]}


def test_rows_that_share_all_bands_are_not_compared_pair_by_pair():
    """A template with 4,000 names on either side: half of the shingles of each pair are equal."""
    one, other = ([f"the person {side}{n} came to the town by train today again" for n in range(4000)] for side in "ab")
    started = time.perf_counter()
    assert counts(one, other) == {}
    assert time.perf_counter() - started < 20


def test_the_report_is_logged_and_recorded(way, recipe_of, tmp_path, labelled_rows, caplog):
    test = [*labelled_rows[60:100], *labelled_rows[:5]]
    data = {"train": str(way / "train.csv"), "validation": 20, "test": recipe_of["rows"](tmp_path / "test.csv", test)}
    folder = headstart.finetune(recipe_of["finetune"](way, output=str(tmp_path / "out"), data=data), quiet=True).path
    manifest = FinetuneManifest.read(folder)
    by_other = {overlap.other: overlap for overlap in manifest.data.overlap if overlap.split == "test"}
    shared = sum(overlap.exact for overlap in by_other.values())
    assert shared == 5 and all(overlap.rows == 45 for overlap in by_other.values())
    warnings = [record.getMessage() for record in caplog.records if "rows" in record.getMessage()]
    assert warnings == [overlap.sentence() for overlap in manifest.data.overlap]
    assert warnings[-1] in headstart.stages.finetune.run.summary(folder)
    cell = json.loads((folder / "cells" / "full-seed-0" / "result.json").read_text(encoding="utf-8"))
    assert cell["details"]["overlap"] == artifact.read_manifest(folder)["data"]["overlap"]
    assert set(manifest.data.hashes) == {"train", "test"}


def test_rows_that_are_not_trained_on_do_not_count(way, recipe_of, tmp_path, labelled_rows):
    """With `train_rows`, only the rows that some seed samples are training rows."""
    data = {"train": str(way / "train.csv"), "validation": str(way / "test.csv"), "train_rows": 8}
    data["test"] = recipe_of["rows"](tmp_path / "test.csv", [*labelled_rows[:59], *labelled_rows[:59]])
    raw = recipe_of["finetune"](way, output=str(tmp_path / "out"), data=data, seeds=2, compare_with=[])
    folder = headstart.finetune(raw, "training.budget=1 steps", quiet=True).path
    (overlap,) = (o for o in FinetuneManifest.read(folder).data.overlap if (o.split, o.other) == ("test", "train"))
    assert 2 * 8 <= overlap.exact <= 4 * 8, "both seeds' rows, each twice in the test file"


def rows_as(path: Path, rows: list[tuple[str, str]]) -> str:
    lines = (json.dumps({"text": text, "label": label}) for text, label in rows)
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("split", ["test", "validation"])
@pytest.mark.parametrize("how", ["path", "copy", "other format and order"])
def test_the_training_file_is_refused_as_another_split(way, recipe_of, tmp_path, labelled_rows, split, how):
    path = way / ".." / way.name / "train.csv"
    if how == "copy":
        path = tmp_path / "copy.csv"
        path.write_bytes((way / "train.csv").read_bytes())
    elif how != "path":
        path = Path(rows_as(tmp_path / "copy.jsonl", labelled_rows[:60][::-1]))
    raw = recipe_of["finetune"](way, output=str(tmp_path / "out"), compare_with=[])
    raw["data"] = {**raw["data"], split: str(path), "test_rows": 50}
    found = "is also data.train" if how == "path" else "has the same rows as data.train"
    with pytest.raises(DataError, match=rf"data\.{split} is .*{found}.*data\.allow_overlap to true"):
        headstart.finetune(raw, quiet=True)
    with pytest.raises(DataError, match=found):
        headstart.plan(raw)
    raw["data"]["allow_overlap"] = True
    folder = headstart.finetune(raw, "training.budget=1 steps", quiet=True).path
    assert any(overlap.split == split for overlap in FinetuneManifest.read(folder).data.overlap)


def test_the_key_is_left_out_of_recipes_at_its_default(way, recipe_of):
    """Hashes of recipes from before the key stay the same."""
    raw = recipe_of["finetune"](way)
    assert "allow_overlap" not in config.to_dict(config.fill(FinetuneRecipe, raw))["data"]
    raw["data"] = {**raw["data"], "allow_overlap": True}
    filled = config.to_dict(config.fill(FinetuneRecipe, raw))
    assert filled["data"]["allow_overlap"] and config.to_dict(config.fill(FinetuneRecipe, filled)) == filled


def test_ten_thousand_rows_take_a_moment():
    rng = np.random.default_rng(0)
    rows = [" ".join(f"w{number}" for number in rng.integers(0, 20_000, 25)) for _ in range(10_000)]
    started = time.process_time()
    assert counts(rows[:8000], rows[7990:]) == {("test", "train"): [10, 0, 0]}
    assert time.process_time() - started < 2, "0.4 s on two cores"
