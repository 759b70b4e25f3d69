"""The script that fetches public data: its readers, its table, and a build from a folder instead of the network."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"HEADSTART_DATA[^}]*\}/((?:tasks|corpora|probes|vectors)/[\w/-]*[\w-])(?=[/.])")


@pytest.fixture(scope="module")
def data(load_script) -> ModuleType:
    return load_script("recipes/data.py")


@pytest.fixture
def mirror(data, tmp_path) -> str:
    """RTE's layout in a folder, with fewer rows."""
    for split, count in (("train", 3), ("dev", 2)):
        file = tmp_path / "mirror" / data.RTE / f"{split}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{i}\tIt rains.\tIt is wet.\tentailment\n" for i in range(count)]
        file.write_text("index\tsentence1\tsentence2\tlabel\n" + "".join(lines), encoding="utf-8")
    return (tmp_path / "mirror").as_uri()


def sentence(tokens: str, tags: str) -> dict[str, list[str]]:
    return {"tokens": tokens.split(), "tags": tags.split()}


PROMPT = "Choose the answer to the question: Which?\n\nAnswer1: this Answer2: that\n\nAnswer format: answer1/answer2"
QUESTION = {"id": "q", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]}
ARTICLE = {"paragraphs": [{"context": "Ann did.", "qas": [QUESTION]}]}
UD = "# text = I'm off\n1-2\tI'm\t_\t_\n1\tI\tI\tPRON\n2\t'm\tbe\tAUX\n2.1\tgone\t_\tVERB\n3\toff\toff\tADV\n"
EDGES = {"heads": [3, 0], "relations": ["nsubj", "root"]}
TREE = "# sent_id = s-1\n1-2\tI'm\t_\n1\tI\tI\tPRON\tPRP\t_\t3\tnsubj\n3\toff\toff\tADV\tRB\t_\t0\troot\n\n"
LAYOUTS = {
    "tsv": (lambda d: d.tsv(text=0, label=1), 'text\tlabel\r\nso "so \t0\r\n', [{"text": 'so "so', "label": 0}]),
    "tsv-bare": (lambda d: d.tsv(header=False, text=2, label=1), "a\tno\tb\n\n", [{"text": "b", "label": "no"}]),
    "csv": (lambda d: d.comma(a=0, score=1), '"x, y",2.5\r\n', [{"a": "x, y", "score": 2.5}]),
    "sts": (lambda d: d.sts, "\tunscored\tx\n2.5\ta\tb\n", [{"sentence1": "a", "sentence2": "b", "score": 2.5}]),
    "latin-1": (lambda d: d.before(" ", "label", "text"), b"1 caf\xe9 \n", [{"label": 1, "text": "café"}]),
    "bars": (lambda d: d.before("||", "source", "target"), "a : b||c \n", [{"source": "a : b", "target": "c"}]),
    "trec": (lambda d: d.trec, "NUM:date When is it ?\n", [{"text": "When is it ?", "label": "NUM"}]),
    "topics": (lambda d: d.agnews, '"3","Oil, up","It rose."\n', [{"text": "Oil, up It rose.", "label": 2}]),
    "numbers": (lambda d: d.goemotions, "so\t0,27\tid1\n\n", [{"text": "so", "labels": ["admiration", "neutral"]}]),
    "conll": (lambda d: d.conll(), "a\tO\nB\tB-x\n\t\n\nc\tO", [sentence("a B", "O B-x"), sentence("c", "O")]),
    "conllu": (lambda d: d.conll(token=1, tag=3), UD, [sentence("I 'm off", "PRON AUX ADV")]),
    "trees": (lambda d: d.trees, TREE, [{"id": "s-1", **sentence("I off", "PRON ADV"), **EDGES}]),
    "language": (lambda d: d.wikiann, "en:a\tO\nen::\tB-x\n", [sentence("a :", "O B-x")]),
    "passages": (lambda d: d.passages, '{"text": "a\\n\\u2028b"}\n', [{"text": "a\n\u2028b"}]),
    "jsonl": (lambda d: d.scitldr, '{"source": ["A", "B"], "target": ["x", "y"]}', [{"source": "A B", "target": "x"}]),
    "prompts": (
        lambda d: d.choices,
        json.dumps([{"instruction": PROMPT, "answer": "answer2"}]),
        [{"question": "Which?", "choices": ["this", "that"], "answer": 1}],
    ),
    "squad": (
        lambda d: d.squad,
        json.dumps({"data": [ARTICLE]}),
        [{"id": "q", "context": "Ann did.", "question": "Who?", "answers": {"text": ["Ann"], "answer_start": [0]}}],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_read(data, layout, tmp_path):
    reader, content, expected = LAYOUTS[layout]
    file = tmp_path / "file"
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    assert list(reader(data)(file)) == expected


def test_wics_sentences_are_joined_with_their_labels(data, tmp_path):
    with zipfile.ZipFile(tmp_path / "wic.zip", "w") as archive:
        for part in ("train", "dev", "test"):
            archive.writestr(f"{part}/{part}.data.txt", "go\tV\t1-0\tWe go .\tGo on .\nbed\tN\t0-0\tBed .\tBeds .\n")
            archive.writestr(f"{part}/{part}.gold.txt", "F\nT\n")
    made = data.make_wic(lambda _: tmp_path / "wic.zip")
    first = {"word": "go", "sentence1": "We go .", "sentence2": "Go on .", "indexes": "1-0", "label": "F"}
    assert list(made) == ["train.parquet", "validation.parquet", "test.parquet"]
    assert made["test.parquet"][0] == first and made["test.parquet"][1]["label"] == "T"


def test_facts_get_the_first_pattern_of_their_relation(data, tmp_path):
    files = {
        "data/pattern_data/graphs_json/P1.jsonl": '{"pattern": "[X] is [Y]."}\n{"pattern": "[Y] is [X]."}\n',
        "data/trex_lms_vocab/P1.jsonl": '{"sub_label": "A", "obj_label": "b"}\n' * 401,
        "data/trex_lms_vocab/P2.jsonl": '{"sub_label": "C", "obj_label": "d"}\n',
    }
    with tarfile.open(tmp_path / "facts.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"pararel-1/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode("utf-8")))
    rows = data.make_facts(lambda _: tmp_path / "facts.tar.gz")["facts.parquet"]
    assert rows == [{"relation": "P1", "pattern": "[X] is [Y].", "subject": "A", "object": "b"}] * 400


def test_the_table_has_every_set_that_recipes_and_studies_name(data):
    files = [path for top in ("recipes", "studies") for path in (ROOT / top).rglob("*.yaml")]
    named = {found for path in files for found in NAMED.findall(path.read_text(encoding="utf-8"))}
    known = {one.folder for one in data.SETS.values()}
    known |= {f"{one.folder}/{Path(file).stem}" for one in data.SETS.values() for file in one.rows}
    assert named and not sorted(named - known)


def test_a_set_is_built_once(data, mirror, tmp_path, monkeypatch, capsys):
    expected = {"train.parquet": 3, "validation.parquet": 2}
    monkeypatch.setitem(data.SETS, "rte", dataclasses.replace(data.SETS["rte"], rows=expected))
    call = ["rte", "--to", str(tmp_path / "to"), "--base", mirror]
    assert data.main(call) == 0
    rows = pq.read_table(tmp_path / "to" / "tasks" / "rte" / "train.parquet").to_pylist()
    assert rows == [{"sentence1": "It rains.", "sentence2": "It is wet.", "label": "entailment"}] * 3
    assert sorted(path.name for path in (tmp_path / "to" / "tasks" / "rte").iterdir()) == sorted(expected)
    assert data.main([*call[:-1], "file:///nowhere"]) == 0
    assert capsys.readouterr().out.splitlines() == ["rte: written", "rte: present"]


def test_a_wrong_number_of_rows_is_an_error(data, mirror, tmp_path, capsys):
    assert data.main(["rte", "--to", str(tmp_path / "to"), "--base", mirror]) == 1
    assert "rte/train.parquet has 3 rows; expected were 2,490." in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


def test_wrong_columns_are_an_error(data):
    with pytest.raises(data.DataError, match=r"has the columns text; expected: id, text"):
        data.check("eltec-novels", data.SETS["eltec-novels"], {"novels.parquet": [{"text": "x"}] * 99})


def test_a_failed_download_is_one_sentence(data, tmp_path, capsys):
    assert data.main(["sst2", "--to", str(tmp_path), "--base", (tmp_path / "none").as_uri()]) == 1
    assert re.fullmatch(r"sst2: file:.* could not be fetched: .*\.\n", capsys.readouterr().err)


def test_a_cut_archive_is_one_sentence(data, tmp_path):
    (tmp_path / "cut.tar.gz").write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(data.DataError, match="not a complete tar archive"):
        list(data.members(tmp_path / "cut.tar.gz", ".*"))
