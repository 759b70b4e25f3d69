"""What pydantic finds wrong in a recipe, in sentences: what was found, what is allowed, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel, Tag
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headstart.core import registry

_BOUNDS = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}


def sentences(model: type[BaseModel], details: Sequence[ErrorDetails], prefix: tuple[str, ...] = ()) -> list[str]:
    """Turn pydantic's errors into sentences; of unknown keys in a row, the last says what is allowed there."""
    sentences = [_sentence(model, detail, prefix) for detail in details]
    for place, (detail, following) in enumerate(pairwise(details)):
        if detail["type"] == following["type"] == "extra_forbidden" and detail["loc"][:-1] == following["loc"][:-1]:
            sentences[place] = sentences[place].partition(" Allowed here:")[0]
    return sentences


def _sentence(model: type[BaseModel], detail: ErrorDetails, prefix: tuple[str, ...] = ()) -> str:
    """Turn one pydantic error into: what was found, what is allowed, what to do."""
    location = [str(part) for part in detail["loc"]]
    path = ".".join((*prefix, *(part for part in location if not _is_tag(part))))
    field = _field(model, location)
    hint = f" ({field.description})" if field is not None and field.description else ""
    kind, found = detail["type"], _short(detail["input"])
    if kind == "extra_forbidden":
        owner = _owner(model, location)
        known = list(owner.model_fields) if owner else []
        return (
            f"{path} is not a known key{registry.suggest(location[-1], known) or '.'} Allowed here: {', '.join(known)}."
        )
    if kind == "sections":
        return "\n  ".join(".".join((*prefix, fault)) for fault in detail["ctx"]["faults"])
    if kind == "missing":
        section = _owner(model, [*location, ""])
        return f"{path} is missing{hint}." + (f" Its keys: {', '.join(section.model_fields)}." if section else "")
    if kind in _BOUNDS:
        return f"{path} is {found}; it must lie in {_interval(field, detail.get('ctx', {}))}{hint}."
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ").partition(", unable to")[0]
    if not location:
        return f"{path}: {message}" if path else message
    return (
        f"{path} is {found}; it must be {message}{hint}." if kind != "value_error" else f"{path} is {found}; {message}"
    )


def _interval(field: FieldInfo | None, broken: dict[str, Any]) -> str:
    """Write a field's bounds, or the one that was broken where they stand on one of several forms of a value."""
    bounds = broken | {
        name: getattr(mark, name)
        for mark in (field.metadata if field else ())
        for name in ("gt", "ge", "lt", "le")
        if hasattr(mark, name)
    }
    low = f"({bounds['gt']:g}" if "gt" in bounds else f"[{bounds['ge']:g}" if "ge" in bounds else "(−∞"
    high = f"{bounds['lt']:g})" if "lt" in bounds else f"{bounds['le']:g}]" if "le" in bounds else "∞)"
    return f"{low}, {high}"


def _owner(model: type[BaseModel], location: Sequence[str]) -> type[BaseModel] | None:
    """Return the section that the last part of a location is looked up in; None where it leads out of the recipe."""
    here: Any = model
    for part in location[:-1]:
        if _is_tag(part):
            here = next((form for form in get_args(here) if Tag(part) in get_args(form)), None)
        elif not part.isdigit():
            owner = _first_model(here)
            here = owner.model_fields[part].annotation if owner and part in owner.model_fields else None
    return _first_model(here)


def _field(model: type[BaseModel], location: Sequence[str]) -> FieldInfo | None:
    named = [*location]
    while named and (_is_tag(named[-1]) or named[-1].isdigit()):
        named.pop()
    owner = _owner(model, named) if named else None
    return owner.model_fields.get(named[-1]) if owner else None


def _is_tag(part: str) -> bool:
    """Say whether a part of a location names one of several forms of a value, which are tagged `<form>`."""
    return part.startswith("<")


def _first_model(annotation: Any) -> type[BaseModel] | None:
    """Return the first section that an annotation names: itself, or inside a list, a union, an optional."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_first_model, get_args(annotation))), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
