"""docs/support.md says what the entries say, and what the contract suite tries."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.contracts.conftest import fittings

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


def test_what_is_said_to_fit_is_what_the_suite_trains(make_support):
    said = {(adaptation, task, family) for adaptation, task, family, reason in make_support.fits() if reason is None}
    assert said == {(adaptation, task, family) for adaptation, task, _, family, _ in fittings()}
