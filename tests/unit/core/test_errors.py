"""Every error says what was found, what is allowed and what to do."""

from __future__ import annotations

import pytest

from headstart.core.errors import (
    ArtifactError,
    DataError,
    HeadstartError,
    RecipeError,
    ResourceError,
    error_from_dict,
    shorten,
)


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


def test_an_error_of_another_process_is_rebuilt():
    error = error_from_dict(DataError("x", allowed="y", do="z").to_dict())
    assert isinstance(error, DataError) and str(error) == "x. y. z."


def test_an_error_class_defined_elsewhere_is_rebuilt_as_the_base_class():
    class DivergedError(HeadstartError):
        pass

    error = error_from_dict(DivergedError("the loss is NaN").to_dict())
    assert type(error) is HeadstartError and str(error) == "the loss is NaN."


def test_a_long_text_is_cut_to_the_given_length():
    assert shorten("abc", 3) == "abc" and shorten("abcd", 3) == "ab…"
