"""Preparing text: raw files are read once, and several runs share a folder."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headstart.core import artifact
from headstart.core.errors import DataError
from headstart.corpus.read.mixture import CorpusMixture, NamedCorpus
from headstart.corpus.read.readers import CorpusConfig
from headstart.stages.pretrain import prepare
from headstart.tokens import shards, tokenizer
from headstart.tokens.settings import TokenizerConfig

_RUN = """
import pathlib, sys
from headstart.corpus.read.readers import CorpusConfig
from headstart.stages.pretrain import prepare
from headstart.tokens import tokenizer
train = tokenizer.train_on
def slowly(*given):
    print("training", flush=True)
    sys.stdin.readline()
    return train(*given)
tokenizer.train_on = slowly
corpus = CorpusConfig.model_validate_json(sys.argv[1])
prepare.prepare(corpus, tokenizer.TokenizerConfig(vocab_size=600), 0, pathlib.Path("own"), quiet=True)
"""
_COUNT_OPENS = """
import json, sys
from pathlib import Path
from headstart.corpus.read.mixture import CorpusMixture
from headstart.corpus.read.readers import CorpusConfig
from headstart.stages.pretrain import prepare
from headstart.tokens.settings import TokenizerConfig

opened = []
sys.addaudithook(lambda event, arguments: event == "open" and opened.append(str(arguments[0])))
for i, (section, settings) in enumerate(json.loads(sys.argv[1])):
    corpus = (CorpusMixture if "parts" in section else CorpusConfig).model_validate(section)
    opened.clear()
    prepare.prepare(corpus, TokenizerConfig.model_validate(settings), 0, Path(sys.argv[2]) / str(i), quiet=True)
    files = [file for part in section.get("parts", [section]) for file in part["files"]]
    print(json.dumps([opened.count(file) for file in files]))
"""


@pytest.fixture
def text(verses, tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(verse for verse in verses[:1000] if verse), encoding="utf-8")
    return path


@pytest.fixture
def existing(tiny_tokenizer, tmp_path) -> Path:
    tiny_tokenizer.save_pretrained(str(tmp_path / "tokenizer"))
    return tmp_path / "tokenizer"


def test_two_runs_that_share_a_folder_prepare_it_once(text, tmp_path, monkeypatch):
    """The second run starts while the first trains the tokenizer, waits, and reads what the first has written."""
    shared = tmp_path / "shared"
    corpus = CorpusConfig(files=[str(text)], validation=0.1, prepared=shared)
    command = [sys.executable, "-c", _RUN, corpus.model_dump_json()]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "training\n"
    trained, prepared = [], []
    train = tokenizer.train_on
    monkeypatch.setattr(tokenizer, "train_on", lambda *given: trained.append(1) or train(*given))
    given = (corpus, TokenizerConfig(vocab_size=600), 0, tmp_path / "own", True)
    second = threading.Thread(target=lambda: prepared.append(prepare.prepare(*given)))
    second.start()
    second.join(0.5)
    assert second.is_alive()
    first.communicate("continue\n")
    second.join(120)
    assert first.returncode == 0 and len(prepared) == 1 and not trained
    kinds = sorted(path.name.partition("-")[0] for path in shared.iterdir())
    assert kinds == ["tokenizer", "train", "validation"]


def test_raw_files_are_opened_once_to_be_read(text, existing, tmp_path):
    """Each is opened twice: for the hash of its ends, which addresses the shards, and to be read."""
    other = tmp_path / "other.jsonl"
    lines = text.read_text(encoding="utf-8").split("\n\n")[:200]
    other.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    corpora = [{"files": [str(path)], "validation": 0.1} for path in (text, other)]
    mixture = {"parts": [{**corpus, "name": f"c{i}"} for i, corpus in enumerate(corpora)]}
    new, extended, loaded = {"vocab_size": 600}, {"path": str(existing), "extend": 20}, {"path": str(existing)}
    tasks = [(section, settings) for section in (corpora[0], mixture) for settings in (new, extended, loaded)]
    command = [sys.executable, "-c", _COUNT_OPENS, json.dumps(tasks), str(tmp_path / "prepared")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == 3 * [[2]] + 3 * [[2, 2]]


def test_the_shards_are_those_of_one_pass_per_split(text, existing, tmp_path):
    """The single pass over both splits writes the bytes of two separate passes, from the spool and directly."""
    corpus = CorpusConfig(files=[str(text)], validation=0.1)
    spooled = prepare.prepare(corpus, TokenizerConfig(vocab_size=600), 0, tmp_path / "spooled")
    folder = next((tmp_path / "spooled").glob("tokenizer-*"))
    direct = prepare.prepare(corpus, TokenizerConfig(path=folder), 0, tmp_path / "direct")
    for split in ("train", "validation"):
        documents = (d for s, d in prepare.mixture.split_documents(corpus, 0, prepare.Receipt()) if s == split)
        shards.write(documents, tokenizer.load(folder), tmp_path / split)
        expected = {path.name: path.read_bytes() for path in (tmp_path / split).iterdir()}
        for prepared in (spooled, direct):
            written = getattr(prepared.corpora[0], split).folder
            assert {name: (written / name).read_bytes() for name in expected} == expected
            receipt = artifact.verify(written, "shards")["reading"]["receipt"]
            assert receipt["documents"] == len(text.read_text(encoding="utf-8").split("\n\n"))
    assert spooled.parents == direct.parents


def test_a_missing_split_alone_is_written_again(text, existing, tmp_path):
    corpus, settings = CorpusConfig(files=[str(text)], validation=0.1), TokenizerConfig(path=existing)
    before = prepare.prepare(corpus, settings, 0, tmp_path / "out")
    train, validation = before.corpora[0].train.folder, before.corpora[0].validation.folder
    created = artifact.read_manifest(train)["created"], (train / artifact.MANIFEST).stat().st_mtime_ns
    for path in validation.iterdir():
        path.unlink()
    validation.rmdir()
    again = prepare.prepare(corpus, settings, 0, tmp_path / "out")
    assert again.parents == before.parents
    assert created == (artifact.read_manifest(train)["created"], (train / artifact.MANIFEST).stat().st_mtime_ns)


def test_a_crash_leaves_nothing_that_counts(text, tmp_path, monkeypatch):
    """A run that dies while it encodes leaves a tokenizer; the next one removes its spool and gives the same shards."""
    corpus, settings = CorpusConfig(files=[str(text)], validation=0.1), TokenizerConfig(vocab_size=600)
    whole = prepare.prepare(corpus, settings, 0, tmp_path / "whole")
    killed = (
        f"import os; from headstart.tokens import shards; shards.write_splits = lambda *a, **k: os._exit(9)\n{_RUN}"
    )
    killed = killed.replace("slowly(*given):", "slowly(*given):\n    return train(*given)")
    section = corpus.model_copy(update={"prepared": tmp_path / "crashed"}).model_dump_json()
    assert subprocess.run([sys.executable, "-c", killed, section], check=False).returncode == 9
    left = {path.name.partition("-")[0] + path.suffix for path in (tmp_path / "crashed").iterdir()}
    assert {"tokenizer", ".tokenizer.spool", ".train.staging"} <= left and not any(n == "train" for n in left)
    opened = prepare.prepare(corpus, settings, 0, tmp_path / "crashed")
    assert opened.parents == whole.parents
    assert sorted(path.name for path in (tmp_path / "crashed").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )


def test_an_error_while_reading_leaves_nothing(tmp_path):
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n' * 5 + "{broken\n", encoding="utf-8")
    corpus = CorpusConfig(files=[str(tmp_path / "text.jsonl")], validation=0.5)
    with pytest.raises(DataError, match="1 of 6 rows cannot be read"):
        prepare.prepare(corpus, TokenizerConfig(vocab_size=300), 0, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_rejected_rows_are_reported_once(text, existing, tmp_path, caplog):
    broken = tmp_path / "broken.jsonl"
    lines = [json.dumps({"text": line}) for line in text.read_text(encoding="utf-8").split("\n\n")[:300]]
    broken.write_text("\n".join([*lines, "{broken"]) + "\n", encoding="utf-8")
    corpus = CorpusConfig(files=[str(broken)], validation=0.1)
    prepare.prepare(corpus, TokenizerConfig(path=existing), 0, tmp_path / "out")
    (record,) = [record for record in caplog.records if "could not be read" in record.message]
    assert (
        record.levelname == "WARNING" and "prepare: 1 rows could not be read; the first: broken.jsonl" in record.message
    )


def test_weighted_corpora_are_not_measured(text, existing, tmp_path, monkeypatch):
    """Shares by weight need no sizes, which would decompress packed files."""
    packed = tmp_path / "packed.txt.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    parts = [NamedCorpus(name=name, files=[str(path)], weight=1) for name, path in (("a", text), ("b", packed))]
    monkeypatch.setattr(prepare.mixture, "text_bytes", lambda _: pytest.fail("the size is not needed"))
    prepared = prepare.prepare(CorpusMixture(parts=parts), TokenizerConfig(vocab_size=600), 0, tmp_path / "out")
    assert [corpus.share for corpus in prepared.corpora] == [0.5, 0.5]
