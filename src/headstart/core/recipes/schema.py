"""The JSON Schema of a recipe, including every registered section, for completion in editors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from headstart.core import registry
from headstart.core.config import Section, registry_fields, with_weight


def schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a recipe, including every registered section, for completion in editors."""
    document = model.model_json_schema()
    for name, _, group in registry_fields(model):
        document["properties"][name] = section_schema(group)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


def section_schema(group: str) -> dict[str, Any]:
    """Return the JSON Schema of a section that names a registered class."""
    names = registry.names(group)
    return {"oneOf": [{"enum": names}, *(_section_schema(group, entry) for entry in names)]}


def _section_schema(group: str, name: str, weighted: bool = False) -> dict[str, Any]:
    config: type[Section] = registry.resolve(group, name).Config
    section = (with_weight(config) if weighted else config).model_json_schema()
    section["properties"][registry.SELECTOR[group]] = {"const": name}
    section["required"] = sorted({*section.get("required", []), registry.SELECTOR[group]})
    definitions = section.pop("$defs", {})
    inlined: dict[str, Any] = _inline(section, definitions)
    return inlined


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if "$ref" in node:
            return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {key: _inline(value, definitions) for key, value in node.items()}
    return [_inline(item, definitions) for item in node] if isinstance(node, list) else node


def weighted_section_schema(group: str, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON Schema of one section in a list of weighted sections."""
    configs = {name: registry.resolve(group, name).Config for name in registry.names(group) if name not in exclude}
    names = [name for name, config in configs.items() if "weight" not in config.model_fields]
    return {"oneOf": [{"enum": names}, *(_section_schema(group, name, weighted=True) for name in names)]}
