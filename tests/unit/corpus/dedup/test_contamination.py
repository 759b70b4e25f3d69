"""Evaluation sets in the corpus: every planted item is found, and nothing else."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

from daft import col

from headstart.core.errors import DataError
from headstart.corpus.dedup.contamination import Contamination, ContaminationConfig, write_table
from headstart.corpus.dedup.fingerprints import normal
from headstart.corpus.parts.engine import evaluate

WORDS = [f"word{number}" for number in range(3000)]


def sentence(chance: random.Random, length: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(length))


def batch(texts: list[str]) -> pa.Table:
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    return table.append_column("normal", evaluate(table, {"n": normal(col("text"))})["n"])


@pytest.fixture
def planted(tmp_path: Path) -> tuple[ContaminationConfig, dict[str, list[str]], Path]:
    chance = random.Random(1)
    sets = {
        "long": [sentence(chance, 30) for _ in range(60)],
        "short": [sentence(chance, length) for length in range(8, 14) for _ in range(10)],
        "tiny": [sentence(chance, 5) for _ in range(10)],
    }
    for name, items in sets.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": item}) + "\n" for item in items))
    config = ContaminationConfig.model_validate(
        {"sets": [{"name": name, "files": str(tmp_path / f"{name}.jsonl")} for name in sets]}
    )
    return config, sets, tmp_path / "table.parquet"


def test_every_planted_item_is_found(planted: tuple[ContaminationConfig, dict[str, list[str]], Path]) -> None:
    config, sets, table = planted
    facts = write_table(config, table)
    assert [(f["set"], f["items"], f["too_short"]) for f in facts] == [
        ("long", 60, 0),
        ("short", 60, 0),
        ("tiny", 10, 10),
    ]
    chance = random.Random(2)
    items = [item for name in ("long", "short") for item in sets[name]]
    dirty = [f"{sentence(chance, 80)}. {item.title().replace(' ', ',  ', 3)}! {sentence(chance, 80)}" for item in items]
    clean = [sentence(chance, 150) for _ in range(100)] + [f"{sentence(chance, 50)} {t}" for t in sets["tiny"]]
    found = Contamination(config, table)
    outcome = found.apply(batch(dirty + clean))
    assert outcome.verdict.to_pylist() == ["contamination"] * len(dirty) + [None] * len(clean)
    assert found.found == set(range(120))
    assert outcome.counts == {"documents with long": 60, "documents with short": 60, "documents with tiny": 0}
    assert outcome.table["evaluation_sets"].to_pylist()[0] == ["long"]


def test_thirteen_words_tell_and_twelve_do_not(planted: tuple[ContaminationConfig, dict[str, list[str]], Path]) -> None:
    config, sets, table = planted
    write_table(config, table)
    words = sets["long"][0].split()
    texts = [" ".join(["before", *words[5 : 5 + n], "after"]) for n in (12, 13, 14, 20)]
    verdict = Contamination(config, table).apply(batch(texts)).verdict.to_pylist()
    assert verdict == [None, *["contamination"] * 3]
    several = config.model_copy(update={"hits": 3})
    assert Contamination(several, table).apply(batch(texts)).verdict.to_pylist() == [None, None, None, "contamination"]


def test_marking_drops_nothing(planted: tuple[ContaminationConfig, dict[str, list[str]], Path]) -> None:
    config, sets, table = planted
    write_table(config, table)
    outcome = Contamination(config.model_copy(update={"action": "mark"}), table).apply(batch([sets["long"][3], "x"]))
    assert outcome.verdict is None and outcome.table["evaluation_sets"].to_pylist() == [["long"], []]
    assert len(Contamination(config, table).apply(batch([])).table) == 0


def test_a_set_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"other": 1}\n')
    config = ContaminationConfig.model_validate({"sets": [{"name": "a", "files": str(tmp_path / "a.jsonl")}]})
    with pytest.raises(DataError, match="no column 'text'"):
        write_table(config, tmp_path / "table.parquet")


def configured(path: Path, *names: str, **settings: int) -> ContaminationConfig:
    sets = [{"name": name, "files": str(path)} for name in names]
    return ContaminationConfig.model_validate({"sets": sets, **settings})


@pytest.mark.parametrize("bad", [b'{"text": "b\xff"}', b'{"text": ["a list"]}', b"{torn", b'{"question": "x"}'])
def test_a_row_that_cannot_be_read_is_an_error_with_its_place(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one two three four five six seven eight nine"}\n' + bad + b"\n")
    with pytest.raises(DataError, match=r"a\.jsonl, row 1, cannot be read: "):
        write_table(configured(path, "a"), tmp_path / "table.parquet")


def test_a_set_without_text_and_two_sets_of_one_name_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": ""}\n{"text": null}\n')
    with pytest.raises(DataError, match="the evaluation set a holds no text"):
        write_table(configured(path, "a"), tmp_path / "table.parquet")
    with pytest.raises(ValueError, match="'a' stands twice"):
        configured(path, "a", "b", "a")


def test_what_is_found_is_not_too_short(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one two three four five six"}\n{"text": "one two three"}\n')
    config = configured(path, "a", words=5, least_words=8)
    (facts,) = write_table(config, tmp_path / "table.parquet")
    assert facts["too_short"] == 1
    found = Contamination(config, tmp_path / "table.parquet")
    found.apply(batch(["zero one two three four five six"]))
    assert found.found == {0}


def test_a_sentence_that_all_items_share_costs_no_more_than_another(tmp_path: Path) -> None:
    chance, shared = random.Random(3), sentence(random.Random(4), 25)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"{shared} {sentence(chance, 12)}"}) + "\n" for _ in range(3000)))
    config = configured(path, "a", "b")
    write_table(config, tmp_path / "table.parquet")
    step, documents = Contamination(config, tmp_path / "table.parquet"), batch([shared] * 300)
    began = time.process_time()
    for _ in range(2):
        outcome = step.apply(documents)
        assert outcome.counts == {"documents with a": 300, "documents with b": 300}
        assert step.found == set(range(6000))
        step.found.clear()
    # 300 documents × 13 n-grams × 6,000 items took minutes; hashes alone take hundredths of a second.
    assert time.process_time() - began < 3
