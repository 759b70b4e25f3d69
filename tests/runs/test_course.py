"""Every lesson of the course runs to its end with a tiny budget, and its checks hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headstart

LESSONS = sorted((Path(__file__).parents[2] / "docs" / "course" / "lessons").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs(lesson, tmp_path):
    environment = os.environ | {"LESSON_STEPS": "20", "PYTHONPATH": str(Path(headstart.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(lesson)], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_a_claim_a_verdict_and_an_exercise(lesson):
    text = lesson.read_text(encoding="utf-8")
    assert text.count("# %%") >= 6
    assert all(part in text for part in ("**Claim.**", "**Plan.**", "**Verdict.**", "## Exercise", "assert "))
