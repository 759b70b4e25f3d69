"""The process server and the undisturbed runs that the tests of this folder share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The campaigns are a package, which `run.py` imports too.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def ground(tmp_path_factory):
    from campaigns.nursery import Nursery
    from campaigns.subjects import Ground

    work = tmp_path_factory.mktemp("faults")
    with Nursery(work / "logs") as nursery:
        yield Ground(work, nursery)
