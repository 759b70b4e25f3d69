"""The version is written in one place, and what repeats it agrees."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml

import headstart

ROOT = Path(__file__).parents[2]


def test_pyproject_reads_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"] and "version" in project["project"]["dynamic"]
    path = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert re.search(r'^__version__ = "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)[1] == version(
        "headstart"
    )


def test_the_citation_has_the_same_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == headstart.__version__


def test_the_command_line_prints_the_version():
    command = [sys.executable, "-m", "headstart", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert printed == f"headstart {headstart.__version__}\n"
