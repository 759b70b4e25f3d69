"""Ten messy files: each gets a recipe that is valid and reads its splits, or a sentence about what to decide."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.core import config, registry
from headstart.core.errors import DataError
from headstart.stages.finetune.data import read_data
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.init import columns, run
from headstart.stages.init.run import InitOptions
from headstart.stages.init.splits import split
from headstart.stages.init.start import choose

WORDS = [
    "le",
    "film",
    "est",
    "très",
    "bon",
    "mauvais",
    "nul",
    "acteurs",
    "histoire",
    "lente",
    "belle",
    "musique",
    "triste",
    "drôle",
]


def sentences(count: int = 120, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(5, 12))) + f" numéro {i}" for i in range(count)]


def labels(count: int = 120, values=("positif", "négatif"), seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [rng.choice(values) for _ in range(count)]


def lines(header: str, separator: str, rows) -> str:
    return "\n".join([header, *(separator.join(map(str, row)) for row in rows)]) + "\n"


def excel(path):
    rows = zip(range(120), (f'"{t}"' for t in sentences()), labels(), strict=True)
    path.with_suffix(".csv").write_bytes(lines("id;texte;avis", ";", rows).encode("utf-8-sig"))
    return path.with_suffix(".csv"), {}


def windows(path):
    path.with_suffix(".csv").write_bytes(
        lines("avis;texte", ";", zip(labels(), sentences(), strict=True)).encode("cp1252")
    )
    return path.with_suffix(".csv"), {}


def utf16_tabs(path):
    path.with_suffix(".tsv").write_text(
        lines("text\tlabel", "\t", zip(sentences(), labels(), strict=True)), encoding="utf-16"
    )
    return path.with_suffix(".tsv"), {}


def missing_labels(path):
    rows = [(t, "" if i % 5 == 0 else y) for i, (t, y) in enumerate(zip(sentences(), labels(), strict=True))]
    path.with_suffix(".csv").write_text(lines("text,label", ",", rows))
    return path.with_suffix(".csv"), {"incomplete": 24}


def ratings(path):
    rows = [{"review": t, "stars": i % 5 + 1, "date": f"2024-01-{i % 28 + 1:02d}"} for i, t in enumerate(sentences())]
    path.with_suffix(".json").write_text(json.dumps(rows))
    return path.with_suffix(".json"), {"task": "classify"}


def numbers(path):
    rows = [{"text": t, "score": i * 0.37 % 5} for i, t in enumerate(sentences())]
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.with_suffix(".jsonl"), {"task": "regression"}


def tags(path):
    rows = [{"tokens": t.split(), "ner_tags": ["O"] * (len(t.split()) - 1) + ["B-X"]} for t in sentences()]
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet"), {"task": "tag"}


def texts(path):
    for label in ("pos", "neg"):
        (path / label).mkdir(parents=True)
        for number, text in enumerate(sentences(30, seed=len(label) + ord(label[0]))):
            (path / label / f"{number}.txt").write_text(text)
    return path, {}


def several_labels(path):
    values = ["joy|love", "anger", "joy", "love", "anger|fear", "fear", "joy|fear"]
    path.with_suffix(".csv").write_text(lines("text,label", ",", zip(sentences(), labels(values=values), strict=True)))
    return path.with_suffix(".csv"), {"task": "multi_label"}


def lists_of_labels(path):
    rows = [{"text": t, "labels": [["joy"], ["joy", "love"], ["anger"]][i % 3]} for i, t in enumerate(sentences())]
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.with_suffix(".jsonl"), {"task": "multi_label"}


RUNNABLE = [
    excel, windows, utf16_tabs, missing_labels, ratings, numbers, tags, texts, several_labels, lists_of_labels,
]  # fmt: skip


@pytest.mark.parametrize("make", RUNNABLE, ids=[make.__name__ for make in RUNNABLE])
def test_a_messy_file_gets_a_recipe_that_reads_its_splits(make, tmp_path, checkpoint):
    path, expected = make(tmp_path / "data")
    look = run.run(path, InitOptions(model=checkpoint("bert"), output=tmp_path / "out"))
    recipe = config.load(tmp_path / "out" / "finetune.yaml", FinetuneRecipe)
    splits = read_data(recipe.data, registry.build("tasks", recipe.task))
    assert len(splits.train) > len(splits.test) >= len(splits.validation) > 0
    assert look.roles.task == expected.get("task", "classify")
    assert look.incomplete == expected.get("incomplete", 0)
    assert (tmp_path / "out" / "data.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "out" / "unlabeled.parquet").is_file() == bool(look.incomplete)
    assert "headstart finetune" in look.summary()


def one_class(path):
    path.write_text(lines("text,label", ",", [(t, "yes") for t in sentences()]))
    return "every row of the column 'label' has the label 'yes'"


def ids_as_labels(path):
    path.write_text(lines("text,label", ",", [(t, f"ticket-{i}-{i * 7}") for i, t in enumerate(sentences())]))
    return "no column looks like a label"


def several_columns(path):
    rows = zip(sentences(), labels(), labels(values=("a", "b"), seed=3), strict=True)
    path.write_text(lines("text,kind,mood", ",", rows))
    return "several columns could be the label"


def only_dates(path):
    path.write_text(lines("text,date", ",", [(t, f"2024-01-{i % 28 + 1:02d}") for i, t in enumerate(sentences())]))
    return "no column looks like a label"


def no_text(path):
    path.write_text(lines("a,label", ",", [(i, i % 2) for i in range(50)]))
    return "no column looks like text"


DECISIONS = [one_class, ids_as_labels, several_columns, only_dates, no_text]


@pytest.mark.parametrize("make", DECISIONS, ids=[make.__name__ for make in DECISIONS])
def test_what_a_person_must_decide_is_named(make, tmp_path, checkpoint):
    expected = make(tmp_path / "data.csv")
    with pytest.raises(DataError, match=expected):
        run.run(tmp_path / "data.csv", InitOptions(model=checkpoint("bert"), output=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_named_column_settles_it(tmp_path, checkpoint):
    several_columns(tmp_path / "data.csv")
    look = run.run(tmp_path / "data.csv", InitOptions(label="mood", model=checkpoint("bert"), output=tmp_path / "out"))
    assert look.roles == columns.Roles("classify", ("text",), "mood")
    with pytest.raises(DataError, match="exists already"):
        run.run(tmp_path / "data.csv", InitOptions(label="mood", model=checkpoint("bert"), output=tmp_path / "out"))


def test_splits_are_stratified_and_keep_copies_and_groups_together():
    texts = [f"text {i}" for i in range(100)] + [f"Text  {i}!" for i in range(100)]
    classes = (["a"] * 80 + ["b"] * 20) * 2
    groups = [i % 50 for i in range(200)]
    found = split(texts, classes, None)
    assert found.duplicates == 100 and found.contradictions == 0
    where = {row: name for name, rows in found.rows.items() for row in rows}
    assert all(where[i] == where[i + 100] for i in range(100))
    for name, share in {"train": 0.7, "validation": 0.1, "test": 0.2}.items():
        assert abs(sum(classes[row] == "b" for row in found.rows[name]) - 40 * share) <= 2
    grouped = split([str(i) for i in range(200)], classes, groups)
    where = {row: groups[row] for rows in grouped.rows.values() for row in rows}
    assert all(
        len({name for name, rows in grouped.rows.items() if any(groups[r] == g for r in rows)}) == 1 for g in range(50)
    )
    assert found == split(texts, classes, None)


def test_the_length_is_one_that_fine_tuning_accepts(checkpoint):
    """RoBERTa's config counts positions that no token gets."""
    texts = [" ".join(sentences(60))] * 8
    lengths = {kind: choose(str(checkpoint(kind)), texts, 100).max_length for kind in ("bert", "roberta")}
    assert lengths == {"bert": 128, "roberta": 128}


def test_a_recipe_is_valid_whatever_its_folder_is_called(tmp_path, checkpoint, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    data = tmp_path / "my: data #2.csv"
    data.write_text(lines("text,label", ",", zip(sentences(), labels(), strict=True)), encoding="utf-8")
    for output, name in ((None, "my: data #2"), (Path("."), "here")):
        look = run.run(data, InitOptions(model=str(checkpoint("bert")), output=output))
        assert config.load(look.folder / "finetune.yaml", FinetuneRecipe).output == Path("runs", name)
    written = Path("my: data #2", "finetune.yaml").read_text(encoding="utf-8")
    assert "headstart finetune 'my: data #2/finetune.yaml'" in written


def test_a_name_of_two_columns_is_refused(tmp_path, checkpoint):
    (tmp_path / "twice.csv").write_text("text,text,label\na,b,c\n" * 20, encoding="utf-8")
    with pytest.raises(DataError, match="has several columns 'text'"):
        run.run(tmp_path / "twice.csv", InitOptions(model=str(checkpoint("bert"))))


def test_texts_without_letters_and_texts_that_differ_in_marks_are_not_duplicates():
    texts = ["Hello,  WORLD!", "hello world", "👍", "👎", "का कताब", "कि कताबी"]
    assert split(texts, ["a", "a", "b", "c", "d", "e"], None).duplicates == 1
