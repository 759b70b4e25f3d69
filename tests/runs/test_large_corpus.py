"""A run on a terabyte of token shards starts at once: sizes and samples of the files are checked, not every byte."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import headstart as package
from headstart.core import artifact, file_hashes
from headstart.core.errors import ArtifactError

FILE_TOKENS = 1 << 28
FILES = 1863
"""Files of 2^28 tokens of two bytes: 1.0 TB."""


@pytest.fixture(scope="module")
def terabyte(tiny_tokenizer, tmp_path_factory) -> Path:
    """A corpus whose token files are sparse: they occupy no disk, and every id is 0."""
    folder = tmp_path_factory.mktemp("large") / "corpus"
    with artifact.staged(folder, "corpus") as staging:
        tiny_tokenizer.save_pretrained(str(staging / "tokenizer"))
        counts = {split: _shards(staging, split, files) for split, files in (("train", FILES), ("validation", 1))}
        (staging / "DATASHEET.md").write_text("none")
        staging.facts |= {"facts": {"title": "sparse", "shards": counts}, "recipe": {"tokenizer": {}}}
    return folder


def _shards(staging, split: str, files: int) -> dict[str, int]:
    folder = staging / "shards" / split
    folder.mkdir(parents=True)
    tokens, documents, vocab = files * FILE_TOKENS, 1000, 700
    facts = None
    for i in range(files):
        path = folder / f"tokens-{i:05d}.bin"
        path.touch()
        with path.open("r+b") as file:
            file.truncate(2 * FILE_TOKENS)
        samples = facts["samples"] if facts else file_hashes.sampled_sha256(path)
        facts = {"bytes": 2 * FILE_TOKENS, "sha256": "0" * 64, "samples": samples}
        staging.hashed[f"shards/{split}/{path.name}"] = facts
    starts = np.arange(documents, dtype="<i8") * (tokens // documents)
    for name in ("documents.bin", "sentences.bin"):
        (folder / name).write_bytes(starts.tobytes())
    (folder / "unigrams.bin").write_bytes(np.ones(vocab, dtype="<i8").tobytes())
    counts = {
        "documents": documents, "empty_documents": 0, "characters": tokens, "bytes": tokens, "sentences": documents,
        "tokens": tokens, "vocab": vocab, "dtype": "uint16", "limit_tokens": FILE_TOKENS, "unigram_entropy_nats": 6.5,
    }  # fmt: skip
    (folder / "counts.json").write_text(json.dumps(counts))
    return counts


def recipe_of(output: Path, corpus: Path) -> dict:
    return {
        "output": str(output), "corpus": {"from": str(corpus)},
        "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"}, "objective": {"name": "masked_lm"},
        "training": {"budget": "2 steps", "seq_length": 32, "batch_tokens": 256, "eval_count": 1, "report_to": "none"},
    }  # fmt: skip


def test_a_run_on_a_terabyte_starts_within_ten_seconds(terabyte, tmp_path):
    import headstart.stages.pretrain.run  # noqa: F401  # only the start of the run is measured

    # Time of the processor, because this machine may be busy; sparse files are read without a disk.
    started = time.process_time()
    run = package.pretrain(recipe_of(tmp_path / "run", terabyte), quiet=True)
    seconds = time.process_time() - started
    assert artifact.read_manifest(run.path)["data"]["train"]["tokens"] == FILES * FILE_TOKENS
    assert seconds < 10, "the files are hashed whole, which takes minutes"


def test_a_large_file_that_was_damaged_is_refused_at_the_start(terabyte, tmp_path):
    copy = tmp_path / "corpus"
    shutil.copytree(terabyte, copy, copy_function=lambda source, target: Path(target).hardlink_to(source))
    victim = copy / "shards" / "train" / "tokens-01000.bin"
    victim.unlink()
    with victim.open("wb") as file:
        file.truncate(2 * FILE_TOKENS - 100)
        file.seek(0, 2)
        file.write(b"\1" * 100)
    with pytest.raises(ArtifactError, match=r"tokens-01000.bin was modified"):
        package.pretrain(recipe_of(tmp_path / "run", copy), quiet=True)
