"""The pip command that a message names works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headstart.core import extras


@pytest.mark.parametrize("extra", ["corpus", "search", "study", "quant"])
def test_the_command_names_packages_that_pip_can_resolve(extra):
    command = extras.install_command(extra)
    assert command.startswith("pip install ") and "headstart" not in command
    asked = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--no-index", *extras.packages(extra)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    assert "Invalid requirement" not in done.stderr and "no such option" not in done.stderr
    assert done.returncode == 0 or "No matching distribution" in done.stderr


def test_an_unknown_extra_falls_back_to_the_package_itself():
    assert extras.install_command("nothing") == "pip install 'headstart[nothing]'"
