"""`headstart probe` by the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    rows = ["good,bad", "And God said unto Moses,And God unto said Moses", "the king answered,the answered king"]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_probe_writes_a_page_beside_the_model(headstart, pretrained, pairs):
    done = headstart("probe", str(pretrained.folder), "minimal_pairs", "--text", str(pairs))
    folder = pretrained.folder.with_name(f"{pretrained.folder.name}-probe")
    assert f"page: {folder / 'probe.html'}" in done.stdout and "probe: minimal_pairs of" in done.stderr
    assert {path.name for path in folder.iterdir()} == {
        "card.md", "headstart.json", "minimal_pairs.parquet", "probe.html", "probe.json"
    }  # fmt: skip
    numbers = json.loads((folder / "probe.json").read_text(encoding="utf-8"))
    assert numbers["probes"]["minimal_pairs"]["pairs"] == 2
    listed = headstart("runs", str(folder.parent)).stdout
    assert any(line.split()[:3] == [folder.name, "probe", "finished"] for line in listed.splitlines())


def test_a_misspelled_probe_is_named(headstart, pretrained):
    refused = headstart("probe", str(pretrained.folder), "minimal_pair", expect=2)
    assert "'minimal_pair' is neither a folder nor a probe; did you mean 'minimal_pairs'?" in refused.stderr
