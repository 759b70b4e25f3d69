"""The lead baseline: the first sentences of the source."""

from __future__ import annotations

import pytest

from headstart.core.data import Examples
from headstart.evaluation.baselines import NotApplicable
from headstart.evaluation.lead import lead

SOURCES = {"source": ["One is here. Two is there. Three.", "Four it is. Five."]}


def run(gold, columns=SOURCES, metric="rougeL"):
    rows = Examples(columns, gold)
    return lead(rows, rows, rows, metric=metric, seed=0)


def test_the_validation_rows_choose_the_number_of_sentences():
    found = run(["One is here.", "Four it is."])
    assert found.predictions == ["One is here.", "Four it is."] and found.chosen["sentences"] == 1
    longer = run(["One is here. Two is there.", "Four it is. Five."])
    assert longer.predictions == ["One is here. Two is there.", "Four it is. Five."]


def test_a_translation_is_the_unchanged_source():
    assert run(["Isto é tudo"], {"source": ["That is all"]}, "bleu").predictions == ["That is all"]


def test_other_rows_are_refused_with_a_reason():
    with pytest.raises(NotApplicable, match="gold values are of the kind 'label'"):
        run([0, 1], metric="accuracy")
    with pytest.raises(NotApplicable, match="no column has texts"):
        run(["a", "b"], {"words": [["a"], ["b"]]})
