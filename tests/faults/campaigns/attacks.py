"""Hostile checkpoints, recipes and overrides, as the tests of `tests/attacks` have them: each is one fault."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from .report import Found
from .subjects import Ground

_TESTS = Path(__file__).parents[2] / "attacks"


def checkpoints(ground: Ground, count: int) -> Found:
    """Give every hostile checkpoint to generate, finetune, pretrain and index."""
    found = Found(
        "hostile checkpoints, each given to four verbs (stdin answers `y`)",
        "no code runs, no traceback; a sentence, or the run finishes",
        count,
    )
    return _run(ground, found, "test_checkpoints.py", "hostile")


def recipes(ground: Ground, count: int) -> Found:
    """Give every hostile recipe and override to its verb."""
    found = Found("hostile recipes and overrides", "no code runs, no traceback; a sentence within two seconds", count)
    return _run(ground, found, "test_recipes.py", "")


def _run(ground: Ground, found: Found, file: str, keyword: str) -> Found:
    report = ground.fresh("attacks")
    report.mkdir()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        str(_TESTS / file),
        "-k",
        keyword,
        f"--junitxml={report / 'x.xml'}",
    ]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    cases = list(ElementTree.parse(report / "x.xml").iter("testcase"))
    found.count = len(cases)
    found.failures = [
        case.get("name", "") for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    return found
