"""Recipes: pydantic models in YAML, with dotted overrides, hints for misspelt keys and a full dump.

A section such as `objective: {name: masked_lm, rate: 0.15}` is validated by the Config of the class that
its selector names, so a setting is declared once, by the class that reads it.
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
from headstart.core.validation_errors import sentences

RecipeT = TypeVar("RecipeT", bound=BaseModel)


class Section(BaseModel):
    """Base of every part of a recipe: unknown keys are errors, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


@dataclass(frozen=True)
class RegistryField:
    """Marks a field whose class is chosen by name from a group of the registry."""

    group: str


ObjectiveSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("objectives")]
BackboneSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("backbones")]
TaskSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("tasks")]
AdaptationSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("adaptations")]


def load(path: str | Path, model: type[RecipeT], overrides: Sequence[str] = ()) -> RecipeT:
    """Read a YAML recipe, apply dotted overrides, and validate it into `model`.

    `${here}` stands for the recipe's own folder and `${NAME:-default}` for an environment variable.
    """
    path = find(path)
    raw = parse(path)
    return fill(model, apply_overrides(raw, overrides), where=str(path))


def find(path: str | Path) -> Path:
    """Return the recipe file: as given, or the one of that name that the package ships."""
    path = Path(path)
    if path.is_file():
        return path
    shipped = Path(__file__).parent.parent / path
    if path.parts[:1] == ("recipes",) and shipped.is_file():
        return shipped
    siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    raise RecipeError(
        f"there is no recipe at {path}{registry.suggest(path.name, siblings)}",
        do="Give the path of a YAML file; `headstart schema VERB` describes one",
    )


def parse(path: Path) -> dict[str, Any]:
    """Read a YAML file into plain dictionaries, with `${…}` replaced."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8 text (byte {error.start})", do="Save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise RecipeError(
            f"{path}{place} is not valid YAML: {getattr(error, 'problem', error)}",
            do="Mend that line; text with `: `, `[` or `#` in it wants quotes",
        ) from error
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, brackets nested a thousand deep.
        raise RecipeError(f"{path} holds what no recipe needs ({first_line(error)})", do="Mend the file") from error
    if not isinstance(raw, dict):
        held = {"NoneType": "nothing", "str": "plain text", "list": "a list"}.get(type(raw).__name__, repr(raw))
        raise RecipeError(
            f"{path} holds {held}",
            allowed="A recipe is a mapping of keys to values",
            do="`headstart schema VERB` describes every key",
        )
    filled: dict[str, Any] = _interpolate(raw, {"here": str(path.parent)}, str(path))
    return filled


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy with `training.budget=5 min` and the like set; values are read as YAML."""
    raw = copy.deepcopy(raw)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise RecipeError(
                f"override {override!r} has no '='",
                allowed="Overrides read key.subkey=value",
                do="Quote values with spaces",
            )
        node: Any = raw
        *parents, last = key.strip().split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise RecipeError(
                    f"override {override!r} goes into {parent!r}, which is a value, not a section",
                    do="Set it as a whole, or leave out what follows the dot",
                )
        try:
            node[last] = yaml.load(value, Loader=_Loader) if value else None
        except yaml.YAMLError as error:
            raise RecipeError(f"override {override!r} has a value that is not YAML") from error
    return raw


def fill(model: type[RecipeT], raw: dict[str, Any], where: str = "the recipe") -> RecipeT:
    """Validate plain dictionaries into a recipe, every default filled, or raise one error with all faults."""
    faults: list[str] = []
    raw = dict(raw)
    for name, field, group in _chosen_fields(model):
        if name in raw:
            raw[name] = choose(group, name, raw[name], faults)
        elif field.is_required():
            known = registry.names(group)
            example = f"{name}: {{{registry.SELECTOR[group]}: {known[0]}}}"
            faults.append(f"{name} is missing; known: {', '.join(known)}. Add it, such as `{example}`.")
            raw[name] = None
        else:
            raw[name] = choose(group, name, field.get_default(call_default_factory=True), faults)
    try:
        recipe = model.model_validate(raw)
    except ValidationError as error:
        faults = sentences(model, error.errors()) + faults
    if faults:
        verb = getattr(model, "verb", None)
        described = f"`headstart schema {verb}` describes every key" if verb else ""
        raise RecipeError(f"{where}: " + "\n  ".join(faults), do=described)
    return recipe


def fill_saved(model: type[RecipeT], raw: Mapping[str, Any], where: str) -> RecipeT:
    """Validate the recipe that an artifact holds; keys that were renamed since are translated."""
    return fill(model, renames.upgrade(raw), where)


def require_own_names(names: Sequence[str], what: str) -> None:
    """Raise ValueError, for a section's validator, where two of some things have one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"the name {twice!r} stands twice; every {what} needs its own.")


def to_dict(recipe: BaseModel) -> dict[str, Any]:
    """Return the filled recipe as plain JSON types: every default written out."""
    return recipe.model_dump(mode="json")


def to_yaml(recipe: BaseModel) -> str:
    """Return the filled recipe as YAML in the order of its fields."""
    return yaml.dump(to_dict(recipe), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def fingerprint(value: Any, length: int = 16) -> str:
    """Return a short hash of plain JSON data, equal for equal content."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:length]


def schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a recipe with every registered section in it, for editors to complete from."""
    document = model.model_json_schema()
    for name, _, group in _chosen_fields(model):
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


def _chosen_fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, str]]:
    for name, field in model.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, RegistryField):
                yield name, field, mark.group


def choose(group: str, name: str, value: Any, faults: list[str], weighted: bool = False) -> Any:
    """Validate one section by the Config of the class that it names; faults are collected, not raised.

    One of several that are weighed against each other has a `weight` among its settings.
    """
    selector = registry.SELECTOR[group]
    if isinstance(value, Section):
        if not weighted:
            return value
        value = value.model_dump()
    if isinstance(value, str):
        value = {selector: value}
    if not isinstance(value, dict) or not isinstance(value.get(selector), str):
        faults.append(f"{name} needs a {selector}; known: {', '.join(registry.names(group))}.")
        return None
    try:
        config: type[Section] = registry.resolve(group, value[selector]).Config
        config = _weighted(config) if weighted else config
        return config.model_validate(value)
    except RecipeError as error:
        faults.append(f"{name}.{selector}: {error}")
    except ValidationError as error:
        faults.extend(sentences(config, error.errors(), prefix=(name,)))
    return None


def resolve_sections(group: str, name: str, values: Sequence[Any], without: Sequence[str] = ()) -> list[Section]:
    """Validate a list of weighed sections, for a field's validator; `without` names entries that may not be there."""
    faults: list[str] = []
    sections = [choose(group, f"{name}.{place}", value, faults, weighted=True) for place, value in enumerate(values)]
    for place, section in enumerate(sections):
        found = getattr(section, registry.SELECTOR[group], None)
        if found in without:
            faults.append(f"{name}.{place} is {found!r}, which cannot stand here.")
    if faults:
        raise PydanticCustomError("sections", "{sentences}", {"sentences": " ".join(faults), "faults": faults})
    return sections


def schema_of_several(group: str, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON Schema of one of the weighed sections of a list."""
    configs = {name: registry.resolve(group, name).Config for name in registry.names(group) if name not in without}
    names = [name for name, config in configs.items() if "weight" not in config.model_fields]
    return {"oneOf": [{"enum": names}, *(_section_schema(group, name, weighted=True) for name in names)]}


@lru_cache(maxsize=256)
def _weighted(config: type[Section]) -> type[Section]:
    """Add a weight to the settings of a section."""
    if "weight" in config.model_fields:
        raise RecipeError(f"{config.__module__} has a setting `weight` of its own", do="Rename it")
    described = Field(1.0, gt=0, description="how often this one is drawn, relative to the others' weights")
    return create_model(config.__name__, __base__=config, weight=(float, described))


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
    """YAML without the traps of recipes: 1e-3 is a number, `on` and `no` are words, and a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that stands twice, where YAML would silently keep the last."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key is no plain word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse aliases: no recipe needs them, and nested ones can fill the memory."""
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
    """Quotes the words that the loader would read as numbers."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(
            r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)$|^[-+]?[0-9][0-9_]*\.[0-9_]*$|^[-+]?\.(?:inf|Inf)$|^\.(?:nan|NaN)$"
        ),
        list("-+0123456789."),
    )
