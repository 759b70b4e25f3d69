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
from headstart.corpus.dedup.fingerprints import normalize
from headstart.corpus.parts.engine import evaluate

WORDS = [f"word{number}" for number in range(3000)]


def sentence(rng: random.Random, length: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(length))


def batch(texts: list[str]) -> pa.Table:
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    return table.append_column("normal", evaluate(table, {"n": normalize(col("text"))})["n"])


@pytest.fixture
def planted(tmp_path: Path) -> tuple[ContaminationConfig, dict[str, list[str]], Path]:
    rng = random.Random(1)
    sets = {
        "long": [sentence(rng, 30) for _ in range(60)],
        "short": [sentence(rng, length) for length in range(8, 14) for _ in range(10)],
        "tiny": [sentence(rng, 5) for _ in range(10)],
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
    rng = random.Random(2)
    items = [item for name in ("long", "short") for item in sets[name]]
    dirty = [f"{sentence(rng, 80)}. {item.title().replace(' ', ',  ', 3)}! {sentence(rng, 80)}" for item in items]
    clean = [sentence(rng, 150) for _ in range(100)] + [f"{sentence(rng, 50)} {t}" for t in sets["tiny"]]
    step = Contamination(config, table)
    output = step.apply(batch(dirty + clean))
    assert output.verdict.to_pylist() == ["contamination"] * len(dirty) + [None] * len(clean)
    assert step.found_items == set(range(120))
    assert output.counts == {"documents with long": 60, "documents with short": 60, "documents with tiny": 0}
    assert output.table["evaluation_sets"].to_pylist()[0] == ["long"]


def test_thirteen_words_match_and_twelve_do_not(
    planted: tuple[ContaminationConfig, dict[str, list[str]], Path],
) -> None:
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
    output = Contamination(config.model_copy(update={"action": "mark"}), table).apply(batch([sets["long"][3], "x"]))
    assert output.verdict is None and output.table["evaluation_sets"].to_pylist() == [["long"], []]
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
def test_a_row_that_cannot_be_read_is_an_error_with_its_position(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one two three four five six seven eight nine"}\n' + bad + b"\n")
    with pytest.raises(DataError, match=r"a\.jsonl, row 1, cannot be read: "):
        write_table(configured(path, "a"), tmp_path / "table.parquet")


def test_a_set_without_text_and_two_sets_of_one_name_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": ""}\n{"text": null}\n')
    with pytest.raises(DataError, match="the evaluation set a has no text"):
        write_table(configured(path, "a"), tmp_path / "table.parquet")
    with pytest.raises(ValueError, match="'a' occurs twice"):
        configured(path, "a", "b", "a")


def test_an_item_of_fewer_than_least_words_is_found_if_words_is_smaller(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one two three four five six"}\n{"text": "one two three"}\n')
    config = configured(path, "a", words=5, least_words=8)
    (facts,) = write_table(config, tmp_path / "table.parquet")
    assert facts["too_short"] == 1
    step = Contamination(config, tmp_path / "table.parquet")
    step.apply(batch(["zero one two three four five six"]))
    assert step.found_items == {0}


def test_a_sentence_shared_by_all_items_does_not_slow_the_search(tmp_path: Path) -> None:
    rng, shared = random.Random(3), sentence(random.Random(4), 25)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"{shared} {sentence(rng, 12)}"}) + "\n" for _ in range(3000)))
    config = configured(path, "a", "b")
    write_table(config, tmp_path / "table.parquet")
    step, documents = Contamination(config, tmp_path / "table.parquet"), batch([shared] * 300)
    started = time.process_time()
    for _ in range(2):
        output = step.apply(documents)
        assert output.counts == {"documents with a": 300, "documents with b": 300}
        assert step.found_items == set(range(6000))
        step.found_items.clear()
    # 300 documents × 13 n-grams × 6,000 items took minutes; distinct hashes take hundredths of a second.
    assert time.process_time() - started < 3
