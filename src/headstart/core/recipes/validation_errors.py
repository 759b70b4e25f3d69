"""Formats pydantic's validation errors as sentences: what was found, what is allowed, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Tag
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headstart.core import registry
from headstart.core.errors import shorten
from headstart.core.recipes.variables import written

_SHOWN = 20
"""How many problems of a recipe are described."""
_BOUNDS = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}


def format_validation_errors(
    model: type[BaseModel], details: Sequence[ErrorDetails], prefix: tuple[str, ...] = ()
) -> list[str]:
    """Return one sentence per pydantic error; consecutive unknown keys of one section list the allowed keys once."""
    # Each sentence may look for similar names, which would take minutes for the errors of a very long recipe.
    shown, more = details[:_SHOWN], len(details) - _SHOWN
    sentences = [_sentence(model, detail, prefix) for detail in shown]
    for i, (detail, following) in enumerate(pairwise(shown)):
        if detail["type"] == following["type"] == "extra_forbidden" and detail["loc"][:-1] == following["loc"][:-1]:
            sentences[i] = sentences[i].partition(" Allowed here:")[0]
    return [*sentences, f"There are {more:,} more problems."] if more > 0 else sentences


def _sentence(model: type[BaseModel], detail: ErrorDetails, prefix: tuple[str, ...] = ()) -> str:
    location = [shorten(str(part)) for part in detail["loc"]]
    path = ".".join((*prefix, *(part for part in location if not _is_tag(part))))
    field = _field(model, location)
    hint = f" ({field.description})" if field is not None and field.description else ""
    kind, value = detail["type"], _short(detail["input"])
    if kind == "extra_forbidden":
        owner = _owner(model, location)
        known = _keys(owner) if owner else []
        return (
            f"{path} is not a known key{registry.suggest(location[-1], known) or '.'} Allowed here: {', '.join(known)}."
        )
    if kind == "sections":
        return "\n  ".join(".".join((*prefix, problem)) for problem in detail["ctx"]["problems"])
    if kind == "missing":
        section = _owner(model, [*location, ""])
        return f"{path} is missing{hint}." + (f" Its keys: {', '.join(_keys(section))}." if section else "")
    if kind in _BOUNDS:
        return f"{path} is {value}; it must be {_range(field, detail.get('ctx', {}))}{hint}."
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ").partition(", unable to")[0]
    # The message of a section's validator names the keys that it is about.
    if not location or (kind == "value_error" and isinstance(detail["input"], dict)):
        return f"{path}: {message}" if path else message
    if kind == "value_error":
        return f"{path} is {value}; {message}"
    return f"{path} is {value}; it must be {message}{hint}."


def _range(field: FieldInfo | None, violated: dict[str, Any]) -> str:
    """Write the bounds of a field, or only the violated bound if the field is a union with bounds on its members."""
    bounds = violated | {
        name: getattr(mark, name)
        for mark in (field.metadata if field else ())
        for name in ("gt", "ge", "lt", "le")
        if hasattr(mark, name)
    }
    has_low, has_high = "gt" in bounds or "ge" in bounds, "lt" in bounds or "le" in bounds
    if has_low and has_high:
        low = f"({bounds['gt']:g}" if "gt" in bounds else f"[{bounds['ge']:g}"
        high = f"{bounds['lt']:g})" if "lt" in bounds else f"{bounds['le']:g}]"
        return f"in the range {low}, {high}"
    words = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
    return " and ".join(f"{words[name]} {bounds[name]:g}" for name in words if name in bounds)


def _owner(model: type[BaseModel], location: Sequence[str]) -> type[BaseModel] | None:
    """Return the section that contains the last part of a location, or None if the location leaves the recipe."""
    here: Any = model
    for part in location[:-1]:
        if _is_tag(part):
            here = _tagged(here, part)
        elif get_origin(here) is dict:  # the part is a name of the user's
            here = get_args(here)[1]
        elif not part.isdigit():
            owner = _first_model(here)
            here = owner.model_fields[part].annotation if owner and part in owner.model_fields else None
    return _first_model(here)


def _field(model: type[BaseModel], location: Sequence[str]) -> FieldInfo | None:
    named = [*location]
    while named and (_is_tag(named[-1]) or named[-1].isdigit()):
        named.pop()
    owner = _owner(model, named) if named else None
    fields = owner.model_fields.items() if owner else ()
    return next((field for name, field in fields if named[-1] in (name, field.alias)), None)


def _keys(section: type[BaseModel]) -> list[str]:
    """Return the keys of a section as a recipe writes them: the alias of a field if it has one."""
    return [field.alias or name for name, field in section.model_fields.items()]


def _tagged(annotation: Any, tag: str) -> Any:
    """Return the member of a tagged union, which may be inside a list, or None."""
    for member in get_args(annotation):
        found = member if Tag(tag) in get_args(member) else _tagged(member, tag)
        if found is not None:
            return found
    return None


def _is_tag(part: str) -> bool:
    """True for a part of a location that names a member of a tagged union, written `<tag>`."""
    return part.startswith("<")


def _first_model(annotation: Any) -> type[BaseModel] | None:
    """Return the first section in an annotation: the annotation itself, or a member of a list, union or optional."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_first_model, get_args(annotation))), None)


def _short(value: Any) -> str:
    """Return a value for a message: variables as they are written, and no more than a line."""
    try:
        return shorten(repr(written(value)))
    except ValueError:
        # Python does not print an integer of thousands of digits.
        return f"a {type(value).__name__}"
