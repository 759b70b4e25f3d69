"""Recipes: pydantic models read from YAML, with dotted overrides, hints for misspelled keys and a complete dump.

A section such as `objective: {name: masked_lm, rate: 0.15}` is validated by the `Config` of the registered class that
it names, so each setting is declared once, by the class that reads it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, SkipValidation, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from headstart.core import registry, renames
from headstart.core.errors import RecipeError, first_line
from headstart.core.validation_errors import format_validation_errors

RecipeT = TypeVar("RecipeT", bound=BaseModel)


class Section(BaseModel):
    """Base class of recipe sections: unknown keys are errors, and values are frozen after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


@dataclass(frozen=True)
class RegistryField:
    """Marks a recipe field whose class is selected by name from a group of the registry."""

    group: str


ObjectiveSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("objectives")]
BackboneSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("backbones")]
TaskSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("tasks")]
AdaptationSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("adaptations")]


def load(path: str | Path, model: type[RecipeT], overrides: Sequence[str] = ()) -> RecipeT:
    """Read a YAML recipe, apply dotted overrides, and validate it into `model`.

    `${here}` expands to the folder of the recipe file, `${NAME:-default}` to an environment variable.
    """
    path = find(path)
    raw = parse(path)
    return fill(model, apply_overrides(raw, overrides), where=str(path))


def find(path: str | Path) -> Path:
    """Return the path of a recipe file: the given one, or the recipe of that name in the package."""
    path = Path(path)
    if path.is_file():
        return path
    shipped = Path(__file__).parent.parent / "shipped" / path
    if path.parts[:1] in (("recipes",), ("studies",)) and shipped.is_file():
        return shipped
    siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    raise RecipeError(
        f"there is no recipe at {path}{registry.suggest(path.name, siblings)}",
        do="Pass the path of a YAML file; `headstart schema VERB` describes its keys",
    )


def parse(path: Path) -> dict[str, Any]:
    """Read a YAML file into plain dictionaries and expand `${…}`."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8 text (byte {error.start})", do="Save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise RecipeError(
            f"{path}{position} is not valid YAML: {getattr(error, 'problem', error)}",
            do="Fix that line; quote text that contains `: `, `[` or `#`",
        ) from error
    except (ValueError, RecursionError) as error:
        # A number with thousands of digits, or brackets nested a thousand deep.
        raise RecipeError(f"{path} is not a recipe ({first_line(error)})", do="Fix the file") from error
    if not isinstance(raw, dict):
        content = {"NoneType": "empty", "str": "plain text", "list": "a list"}.get(type(raw).__name__, repr(raw))
        raise RecipeError(
            f"{path} is {content}",
            allowed="A recipe is a mapping of keys to values",
            do="`headstart schema VERB` describes every key",
        )
    filled: dict[str, Any] = _interpolate(raw, {"here": str(path.parent)}, str(path))
    return filled


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy with overrides such as `training.budget=5 min` applied; values are parsed as YAML."""
    raw = copy.deepcopy(raw)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise RecipeError(
                f"override {override!r} has no '='",
                allowed="An override is written key.subkey=value",
                do="Quote values with spaces",
            )
        try:
            parsed = yaml.load(value, Loader=_Loader) if value else None
        except yaml.YAMLError as error:
            raise RecipeError(f"the value of override {override!r} is not valid YAML") from error
        set_dotted(raw, key.strip(), parsed)
    return raw


def set_dotted(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a value in nested sections by its dotted key, such as `training.budget`; missing sections are created.

    A registered section that is given by its name alone, such as `adaptation: lora`, becomes a section first.
    """
    *parents, last = key.split(".")
    section = tree
    for parent in parents:
        below = section.get(parent)
        selector = registry.SELECTOR.get(f"{parent}s")
        if below is None:
            below = {}
        elif isinstance(below, str) and selector is not None:
            below = {selector: below}
        if not isinstance(below, dict):
            raise RecipeError(
                f"override {key!r} sets a key inside {parent!r}, which is a value, not a section",
                do=f"Set {parent!r} itself, or correct the key",
            )
        section[parent] = below
        section = below
    section[last] = value


def fill(model: type[RecipeT], raw: dict[str, Any], where: str = "the recipe") -> RecipeT:
    """Validate plain dictionaries into a recipe with all defaults filled in; one error lists every problem."""
    problems: list[str] = []
    raw = dict(raw)
    for name, field, group in _registry_fields(model):
        if name in raw:
            raw[name] = resolve_section(group, name, raw[name], problems)
        elif field.is_required():
            known = registry.names(group)
            example = f"{name}: {{{registry.SELECTOR[group]}: {known[0]}}}"
            problems.append(f"{name} is missing; known: {', '.join(known)}. Add it, for example `{example}`.")
            raw[name] = None
        else:
            raw[name] = resolve_section(group, name, field.get_default(call_default_factory=True), problems)
    try:
        recipe = model.model_validate(raw)
    except ValidationError as error:
        problems = format_validation_errors(model, error.errors()) + problems
    if problems:
        verb = getattr(model, "verb", None)
        advice = f"`headstart schema {verb}` describes every key" if verb else ""
        raise RecipeError(f"{where}: " + "\n  ".join(problems), do=advice)
    return recipe


def fill_saved(model: type[RecipeT], raw: Mapping[str, Any], where: str) -> RecipeT:
    """Validate a recipe that was saved in an artifact; keys renamed since then are translated."""
    return fill(model, renames.upgrade(raw), where)


def require_unique_names(names: Sequence[str], what: str) -> None:
    """Raise a ValueError, for use in a section's validator, if a name occurs more than once."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated:
        raise ValueError(f"the name {repeated!r} occurs twice; every {what} needs a name of its own.")


def to_dict(recipe: BaseModel) -> dict[str, Any]:
    """Return the filled recipe as plain JSON types, with every default written out."""
    return recipe.model_dump(mode="json")


def to_yaml(recipe: BaseModel) -> str:
    """Return the filled recipe as YAML in the order of its fields."""
    return yaml.dump(to_dict(recipe), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def fingerprint(value: Any, length: int = 16) -> str:
    """Return a short hash of plain JSON data, equal for equal content."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:length]


def schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a recipe, including every registered section, for completion in editors."""
    document = model.model_json_schema()
    for name, _, group in _registry_fields(model):
        names = registry.names(group)
        document["properties"][name] = {"oneOf": [{"enum": names}, *(_section_schema(group, entry) for entry in names)]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


def _section_schema(group: str, name: str, weighted: bool = False) -> dict[str, Any]:
    config: type[Section] = registry.resolve(group, name).Config
    section = (_weighted(config) if weighted else config).model_json_schema()
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


def _registry_fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, str]]:
    for name, field in model.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, RegistryField):
                yield name, field, mark.group


def resolve_section(group: str, name: str, value: Any, problems: list[str], weighted: bool = False) -> Any:
    """Validate one section with the `Config` of the registered class that it names; append problems to the list.

    With `weighted`, the section is one of several in a mixture and has a `weight` among its settings.
    """
    selector = registry.SELECTOR[group]
    if isinstance(value, Section):
        if not weighted:
            return value
        value = value.model_dump()
    if isinstance(value, str):
        value = {selector: value}
    if not isinstance(value, dict) or not isinstance(value.get(selector), str):
        problems.append(f"{name} needs a {selector}; known: {', '.join(registry.names(group))}.")
        return None
    try:
        config: type[Section] = registry.resolve(group, value[selector]).Config
        config = _weighted(config) if weighted else config
        return config.model_validate(value)
    except RecipeError as error:
        problems.append(f"{name}.{selector}: {error}")
    except ValidationError as error:
        problems.extend(format_validation_errors(config, error.errors(), prefix=(name,)))
    return None


def resolve_sections(group: str, name: str, values: Sequence[Any], exclude: Sequence[str] = ()) -> list[Section]:
    """Validate a list of weighted sections, for use in a field's validator; entries named in `exclude` are refused."""
    problems: list[str] = []
    sections = [resolve_section(group, f"{name}.{i}", value, problems, weighted=True) for i, value in enumerate(values)]
    for i, section in enumerate(sections):
        entry = getattr(section, registry.SELECTOR[group], None)
        if entry in exclude:
            problems.append(f"{name}.{i} is {entry!r}, which is not allowed here.")
    if problems:
        raise PydanticCustomError("sections", "{sentences}", {"sentences": " ".join(problems), "problems": problems})
    return sections


def weighted_section_schema(group: str, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON Schema of one section in a list of weighted sections."""
    configs = {name: registry.resolve(group, name).Config for name in registry.names(group) if name not in exclude}
    names = [name for name, config in configs.items() if "weight" not in config.model_fields]
    return {"oneOf": [{"enum": names}, *(_section_schema(group, name, weighted=True) for name in names)]}


@lru_cache(maxsize=256)
def _weighted(config: type[Section]) -> type[Section]:
    """Return a subclass of a section's `Config` that also has a `weight`."""
    if "weight" in config.model_fields:
        raise RecipeError(f"{config.__module__} already has a setting `weight`", do="Rename it")
    weight = Field(1.0, gt=0, description="how often this objective is drawn, relative to the other weights")
    return create_model(config.__name__, __base__=config, weight=(float, weight))


_PLACEHOLDER = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def _interpolate(node: Any, values: dict[str, str], where: str) -> Any:
    if isinstance(node, dict):
        return {key: _interpolate(value, values, where) for key, value in node.items()}
    if isinstance(node, list):
        return [_interpolate(item, values, where) for item in node]
    if not isinstance(node, str):
        return node

    def replace(match: re.Match[str]) -> str:
        name, default = match.groups()
        value = values.get(name) or os.environ.get(name) or default
        if value is None:
            raise RecipeError(
                f"{where} uses ${{{name}}}, which is not set", do=f"export {name}=… or write ${{{name}:-default}}"
            )
        return value

    return _PLACEHOLDER.sub(replace, node)


class _Loader(yaml.SafeLoader):
    """YAML without its pitfalls: `1e-3` is a number, `on` and `no` are strings, and duplicate keys are errors."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse duplicate keys, of which YAML would silently keep the last."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a plain word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} occurs twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse aliases: no recipe needs them, and nested aliases can exhaust memory."""
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) are not allowed in recipes", event.start_mark
            )
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    letter: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:bool" or letter in "tTfF"]
    for letter, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """Quotes strings that the loader would parse as numbers."""


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(
            r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)$|^[-+]?[0-9][0-9_]*\.[0-9_]*$|^[-+]?\.(?:inf|Inf)$|^\.(?:nan|NaN)$"
        ),
        list("-+0123456789."),
    )
