"""Every input that fuzzing found to break a parser, and the inputs that it starts from, get a sentence or are read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from targets import LIMIT_SECONDS, TARGETS, run  # noqa: E402

FOUND = sorted((HERE / "found").glob("*/*"))


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.parametrize("path", FOUND, ids=[f"{path.parent.name}-{path.name}" for path in FOUND])
def test_found_inputs_break_nothing(path: Path):
    run(path.parent.name.replace("-", " "), path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_reads_its_seeds_and_refuses_noise(name: str):
    seeds = TARGETS[name].seeds()
    assert seeds
    for data in [*seeds, b"", b"\0", b"\xff\xfe\xff", b"[" * 5000, *(seed[: len(seed) // 2] for seed in seeds)]:
        run(name, data)
