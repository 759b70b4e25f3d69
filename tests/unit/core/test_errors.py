"""Every error says what was found, what is allowed and what to do."""

from __future__ import annotations

import pytest

from headstart.core.errors import ArtifactError, DataError, HeadstartError, RecipeError, ResourceError


def test_three_parts_become_three_sentences():
    error = HeadstartError("x is 3", allowed="It must be 2", do="Set x to 2.")
    assert str(error) == "x is 3. It must be 2. Set x to 2."
    assert (error.found, error.allowed, error.do) == ("x is 3", "It must be 2", "Set x to 2.")


def test_parts_are_optional_and_full_stops_are_not_doubled():
    assert str(HeadstartError("did you mean 'x'?", do="Look")) == "did you mean 'x'? Look."
    assert str(HeadstartError("many\n  lines")) == "many\n  lines"


@pytest.mark.parametrize("kind", [RecipeError, DataError, ArtifactError, ResourceError])
def test_all_user_facing_errors_have_one_base_class(kind):
    assert issubclass(kind, HeadstartError) and kind("x").exit_code == 2
