"""A corpus by the real command line: no row lost, killed and resumed, the same bytes everywhere."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from corpus_faults import Planted, plant

from headstart.cli import main
from headstart.core import artifact

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart" / "data"
OWN = ("headstart.json", "recipe.yaml", "inputs.json", ".lock")
"""Files that record when and where a corpus was built."""
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chapters of the King James Bible as documents, some of them duplicated, with menus, addresses and noise."""
    folder = tmp_path_factory.mktemp("raw")
    with gzip.open(QUICKSTART / "kjv.txt.gz", "rt", encoding="utf-8") as file:
        verses = [line.strip() for line in file if line.strip()][:6000]
    chapters = ["\n".join(verses[start : start + 30]) for start in range(0, len(verses), 30)]
    rows = [
        {"text": f"Home | Books | Contact\n{chapter}", "url": f"http://bible.example/{n}"}
        for n, chapter in enumerate(chapters)
    ]
    rows[3]["text"] += "\nWrite to scribe@bible.example or call +44 20 7946 0958."
    rows += [{"text": rows[5]["text"]}, {"text": rows[6]["text"].upper()}]  # exact, once the case is folded
    rows += [{"text": "\n".join(rows[7]["text"].split("\n")[:-1])}]  # nearly the same
    rows += [
        {"text": "too short, says scribe@bible.example"},
        {"text": "buy now " * 200},
        {"text": "Der Herr sprach zu mir und ich antwortete ihm. " * 20},
    ]
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    lines.insert(9, b'{"text": "b\xff, says scribe@bible.example"}\n')
    (folder / "a.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[len(lines) // 2 :])))
    items = [
        {"text": " ".join(chapters[11].split()[40:80])},
        {"text": "a question that is nowhere in this book, I am sure of it"},
    ]
    (folder / "eval.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    recipe = {
        "title": "Chapters",
        "output": "corpus",
        "sources": [{"name": "kjv", "files": [str(folder / "[ab].jsonl*")], "license": "public domain"}],
        "reading": {"part_mb": 0.1},
        "clean": {"language": {"keep": ["en"]}},
        "contamination": {"sets": [{"name": "quiz", "files": str(folder / "eval.jsonl")}]},
        "lines": {"documents": 50},
        "tokenizer": {"vocab_size": 800, "sample_mb": 0.3},
        "validation": 0.1,
        "engine": {"workers": 2},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Built:
    """A finished corpus, what the command printed, and how long it took."""

    raw: Path
    folder: Path
    printed: str
    seconds: float


@pytest.fixture(scope="module")
def built(headstart: Command, raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder, began = tmp_path_factory.mktemp("built") / "corpus", time.monotonic()
    done = headstart("corpus", "build", str(raw / "recipe.yaml"), f"output={folder}")
    return Built(raw, folder, done.stdout, time.monotonic() - began)


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in OWN)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def texts(folder: Path, split: str = "*") -> list[str]:
    return [
        t for p in sorted(folder.glob(f"documents/{split}/*.parquet")) for t in pq.read_table(p)["text"].to_pylist()
    ]


def test_the_documents_and_the_counts(built: Built) -> None:
    folder = built.folder
    manifest = json.loads((folder / "headstart.json").read_text(encoding="utf-8"))
    books = {step["step"]: step for step in manifest["facts"]["books"]}
    assert books["read"]["rows_in"] == 207 and books["read"]["dropped"] == {"rejects": 1}
    assert books["duplicates"]["dropped"] == {"duplicates.exact": 2, "duplicates.near": 1}
    assert books["contamination"]["dropped"] == {"contamination": 1}
    assert {"gopher.few_words": 1}.items() <= books["quality"]["dropped"].items()
    assert books["language"]["dropped"] == {"language.other": 1}
    assert "duplicates: " in built.printed and "rejects" in built.printed
    kept = texts(folder)
    assert len(kept) == books["lines"]["rows_out"] == sum(s["documents"] for s in manifest["facts"]["splits"].values())
    assert not any("Home | Books" in text for text in kept)
    assert sum("<EMAIL>" in text and "<PHONE>" in text for text in kept) == 1
    assert texts(folder, "validation") and not (folder / "work").exists()
    (reject,) = pq.read_table(folder / "rejects.parquet").to_pylist()
    assert reject["file"] == "a.jsonl" and "not UTF-8" in reject["reason"] and b"\xff" in reject["raw"]
    assert manifest["facts"]["sets"][0]["items_found"] == 1
    assert manifest["facts"]["domains"]["bible.example"] > 100


def test_the_datasheet_states_facts_and_asks_questions(built: Built) -> None:
    folder = built.folder
    sheet = (folder / "DATASHEET.md").read_text(encoding="utf-8")
    for part in ("# Datasheet: Chapters", "public domain", "gopher.few_words", "[blank: motivation.purpose]", "quiz"):
        assert part in sheet, part
    assert r"says \<EMAIL>" in sheet, "markup in a sample is escaped"
    assert not [
        name for name, held in content(folder).items() if b"scribe@" in held and name.endswith((".md", ".html"))
    ]
    page = (folder / "datasheet.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 3 and "blank: uses.unfit" in page and "<script" not in page
    metadata = json.loads((folder / "croissant.json").read_text(encoding="utf-8"))
    assert metadata["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert [records["name"] for records in metadata["recordSet"]] == ["train", "validation"]


def test_dropped_rows_contain_no_address(built: Built) -> None:
    for path in [*built.folder.glob("dropped/*.parquet"), built.folder / "rejects.parquet"]:
        table = pq.read_table(path)
        held = [*table["text"].drop_null().to_pylist()] if "text" in table.column_names else table["raw"].to_pylist()
        assert not [shown for shown in held if "scribe@" in str(shown)]


def test_an_answer_is_written_into_a_finished_corpus(built: Built, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    shutil.copytree(built.folder, folder)
    main_quietly(
        "corpus",
        "build",
        str(built.raw / "recipe.yaml"),
        f"output={folder}",
        "answers={motivation.purpose: To try it.}",
    )
    sheet = (folder / "DATASHEET.md").read_text(encoding="utf-8")
    assert "To try it." in sheet and "[blank: motivation.purpose]" not in sheet
    assert artifact.verify(folder, "corpus")["facts"]["answers"] == {"motivation.purpose": "To try it."}
    assert texts(folder) == texts(built.folder)


def main_quietly(*arguments: str) -> None:
    with contextlib.suppress(SystemExit):
        main([*arguments])


def test_mlcroissant_reads_every_document(built: Built) -> None:
    import mlcroissant

    dataset = mlcroissant.Dataset(built.folder / "croissant.json")
    for split in ("train", "validation"):
        read = [record[f"{split}/text"].decode() for record in dataset.records(split)]
        assert sorted(read) == sorted(texts(built.folder, split))


def test_stats_explain_sample_and_diff(
    built: Built, faulty: tuple[Path, Planted], capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> str:
        with contextlib.suppress(SystemExit):
            main(["corpus", *arguments])
        captured = capsys.readouterr()
        return captured.out or captured.err

    folder = str(built.folder)
    assert "read: 207 rows in" in printed("stats", folder)
    explained = printed("explain", folder, "--limit", "2")
    for part in ("gopher.few_words: 1 dropped", "too short", "duplicates.near: 1 dropped", "jaccard 0.9", "not UTF-8"):
        assert part in explained, part
    assert list(json.loads(printed("explain", folder, "--rule", "language.other", "--json"))) == ["language.other"]
    assert "did you mean 'language.other'?" in printed("explain", folder, "--rule", "language.othr")
    drawn = [printed("sample", folder, "--limit", "2", "--seed", seed, "--json") for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2] and len(json.loads(drawn[0])) == 2
    other = json.loads(printed("diff", folder, str(faulty[0])))
    assert other["in both"] == 0 and other["only in the second"] == len(faulty[1].good)
    before, after = other["dropped differently"]["read"]["rejects"]
    assert before == 1 and after >= len(faulty[1].faults), "a lost row group counts as many rows as it had"
    same = json.loads(printed("diff", folder, folder))
    assert same["only in the first"] == same["only in the second"] == 0 and not same["dropped differently"]
    assert "Missing argument 'B'" in printed("diff", folder)
    assert "read: 207 rows in" in printed("build", str(built.raw / "recipe.yaml"), f"output={folder}")
    dry = printed("build", str(built.raw / "recipe.yaml"), f"output={folder}", "--dry-run")
    assert yaml.safe_load(dry)["output"] == folder
    assert "Run `headstart corpus build a.yaml x=1`" in printed("a.yaml", "x=1")


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(7200)])])
def test_a_build_that_was_killed_gives_the_same_bytes(
    built: Built, tmp_path: Path, start: Callable[..., subprocess.Popen[str]], kills: int
) -> None:
    folder, rng = tmp_path / "corpus", random.Random(kills)
    command = ("corpus", "build", str(built.raw / "recipe.yaml"), f"output={folder}", "--quiet")
    killed = 0
    while killed < kills:
        process = start(*command)
        try:
            process.wait(timeout=rng.uniform(0.2, 0.9) * built.seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
        if (folder / "headstart.json").is_file():
            shutil.rmtree(folder)  # It finished before it was killed: start over.
    done = start(*command)
    _, errors = done.communicate(timeout=280)
    assert done.returncode == 0, errors
    assert content(folder) == content(built.folder)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ray_gives_the_same_bytes(built: Built, tmp_path: Path) -> None:
    # Workers of Ray start in other folders, where a relative PYTHONPATH is wrong.
    pytest.importorskip("ray", reason="Ray is missing; pip install ray")
    folder = tmp_path / "corpus"
    command = [sys.executable, "-m", "headstart", "corpus", "build", str(built.raw / "recipe.yaml"), f"output={folder}"]
    done = subprocess.run(
        [*command, "engine.runner=ray", "engine.workers=2"], capture_output=True, text=True, timeout=1100, check=False,
        env=os.environ | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert content(folder) == content(built.folder)


@pytest.mark.slow
def test_shards_are_the_same_bytes_whatever_the_number_of_workers(
    headstart: Command, built: Built, tmp_path: Path
) -> None:
    from headstart.tokens.shards import Shards

    alone = tmp_path / "alone"
    headstart("corpus", "build", str(built.raw / "recipe.yaml"), f"output={alone}", "engine.workers=1", "--quiet")
    assert content(alone) == content(built.folder)
    facts = json.loads((alone / "headstart.json").read_text(encoding="utf-8"))["facts"]
    for split in ("train", "validation"):
        opened = Shards(alone / "shards" / split)
        assert opened.counts["documents"] == facts["splits"][split]["documents"]
        assert opened.tokens == facts["shards"][split]["tokens"]


def corpus_of_faults(headstart: Command, folder: Path, faults: int, longest: int) -> tuple[Path, Planted]:
    """Build a corpus from files with planted faults, without cleaning."""
    inputs = folder / "inputs"
    inputs.mkdir()
    planted = plant(inputs, faults, seed=faults, max_bytes=longest)
    recipe = {
        "output": str(folder / "corpus"),
        "sources": [{"name": "odd", "files": [str(inputs)]}],
        "max_reject_share": 0.9,
        "reading": {"part_mb": longest / 2e7, "longest_mb": longest / 1e6},
        "clean": {"unicode": None, "language": None, "quality": None, "personal": None},
        "duplicates": None,
        "lines": None,
        "validation": 0.1,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    headstart("corpus", "build", str(folder / "recipe.yaml"), "--quiet")
    return folder / "corpus", planted


@pytest.fixture(scope="module")
def faulty(headstart: Command, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Planted]:
    return corpus_of_faults(headstart, tmp_path_factory.mktemp("faulty"), faults=240, longest=1_000_000)


def require_all_reported(folder: Path, planted: Planted, faults: int) -> None:
    kept = texts(folder)
    assert len(planted.faults) == faults
    assert len(kept) == len(set(kept)) and set(kept) == planted.good
    rejects = pq.read_table(folder / "rejects.parquet").to_pylist()
    reported = {(row["file"], position) for row in rejects for position in (f"offset {row['offset']}", row["place"])}
    assert not planted.faults - reported, sorted(planted.faults - reported)[:10]
    assert len(rejects) == faults
    (read,) = [s for s in json.loads((folder / "receipt.json").read_text(encoding="utf-8")) if s["step"] == "read"]
    assert read["rows_out"] == len(planted.good) and read["dropped"].get("read.empty", 0) == planted.empty


def test_among_faults_every_good_row_is_kept_and_every_bad_one_reported(faulty: tuple[Path, Planted]) -> None:
    require_all_reported(*faulty, faults=240)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_among_two_thousand_faults_with_lines_of_100_mb(headstart: Command, tmp_path: Path) -> None:
    require_all_reported(*corpus_of_faults(headstart, tmp_path, faults=2000, longest=100_000_000), faults=2000)


def test_too_many_rejects_fail_the_run(headstart: Command, raw: Path, tmp_path: Path) -> None:
    where = f"output={tmp_path / 'none'}"
    command = ("corpus", "build", str(raw / "recipe.yaml"), where, "max_reject_share=0", "--quiet")
    few = headstart(*command, expect=2).stderr
    assert "1 of 207 rows cannot be read" in few and "a.jsonl, row 9: not UTF-8" in few and "max_reject_share" in few
    shown = headstart("corpus", "explain", str(tmp_path / "none"), "--rule", "rejects").stdout
    assert "a.jsonl" in shown and "not UTF-8" in shown


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("clean.qualty=1", "clean.qualty is not a known key; did you mean 'quality'?"),
        ("sources=[{name: a, files: [x]}, {name: a, files: [y]}]", "'a' occurs twice"),
        ("sources=[{name: a, files: [x], weight: 1}, {name: b, files: [y]}]", "'b' has no weight"),
        ("sources=[{name: a, files: [nowhere/*.jsonl]}]", "no file matches nowhere"),
        ("contamination.sets=[]", "contamination.sets"),
        ("answers={motivation.purpos: why}", "no question 'motivation.purpos'; did you mean 'motivation.purpose'?"),
        ("sources=[{name: a, files: [x], without: [gopher.few_word]}]", "did you mean 'gopher.few_words'?"),
        ("clean.quality.repetition.max_top={1: 0.2}", "max_top"),
    ],
)
def test_a_wrong_recipe_is_refused_with_advice(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, words: str
) -> None:
    with pytest.raises(SystemExit):
        main(["corpus", "build", str(raw / "recipe.yaml"), f"output={tmp_path / 'none'}", override])
    assert words in capsys.readouterr().err
