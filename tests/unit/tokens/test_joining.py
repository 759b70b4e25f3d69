"""Joined shards equal those of a single pass."""

from __future__ import annotations

import json

import pytest

from headstart.core.data import Document
from headstart.tokens import joining, shards


@pytest.mark.parametrize("limit", [500, 1 << 28])
def test_joined_shards_equal_those_of_one_pass(tmp_path, verses, tiny_tokenizer, limit):
    documents = [Document(str(n), "\n".join(verses[n : n + 4])) for n in range(0, 200, 4)]
    shards.write(documents, tiny_tokenizer, tmp_path / "whole", limit_tokens=limit)
    for number in range(3):
        shards.write(documents[number * 20 : number * 20 + 20], tiny_tokenizer, tmp_path / f"part-{number}")
    counts = joining.join([tmp_path / f"part-{number}" for number in range(3)], tmp_path / "joined", limit_tokens=limit)
    whole, joined = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("whole", "joined"))
    assert whole.keys() == joined.keys()
    assert {name for name in whole if whole[name] != joined[name]} <= {"counts.json"}
    assert counts == json.loads(whole["counts.json"])
    opened = shards.Shards(tmp_path / "joined")
    assert opened.tokens == counts["tokens"]
