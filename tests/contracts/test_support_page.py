"""docs/support.md is up to date, and agrees with what the contract suite trains."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.contracts.conftest import combinations

PAGE_MAKER = Path(__file__).parents[2] / "docs" / "make_support.py"


@pytest.fixture(scope="module")
def make_support():
    spec = importlib.util.spec_from_file_location("make_support", PAGE_MAKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(make_support):
    page = make_support.PAGE.read_text(encoding="utf-8")
    assert page == make_support.render(), "docs/support.md is stale; run `make docs`"


def test_the_suite_trains_every_supported_combination(make_support):
    supported = {
        (adaptation, task, family) for adaptation, task, family, reason in make_support.supported() if reason is None
    }
    assert supported == {(adaptation, task, family) for adaptation, task, _, family, _ in combinations()}
