"""Recipes: pydantic models read from YAML, with dotted overrides, hints for misspelled keys and a complete dump.

A section such as `objective: {name: masked_lm, rate: 0.15}` is validated by the `Config` of the registered class that
it names, so each setting is declared once, by the class that reads it.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    SkipValidation,
    ValidationError,
    create_model,
    model_serializer,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from headstart.core import registry, renames
from headstart.core.errors import RecipeError, first_line, shorten
from headstart.core.recipes import text as recipe_text
from headstart.core.recipes import variables
from headstart.core.recipes.validation_errors import format_validation_errors
from headstart.core.recipes.variables import Expanded

RecipeT = TypeVar("RecipeT", bound=BaseModel)


class Section(BaseModel):
    """Base class of recipe sections: unknown keys are errors, and values are frozen after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
    _variables: dict[variables.Path, Expanded] = PrivateAttr(default_factory=dict)
    """The strings of a recipe in which variables were expanded, by path."""
    newer: ClassVar[tuple[str, ...]] = ()
    """Keys that are written only if they differ from their defaults.

    Runs and tokenizers are addressed by a hash of their settings; so those from before a key was added keep theirs.
    """

    @model_serializer(mode="wrap")
    def _omit_newer_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = dump(self)
        defaults = {name: type(self).model_fields[name].default for name in self.newer}
        return {key: v for key, v in written.items() if key not in defaults or getattr(self, key) != defaults[key]}


@dataclass(frozen=True)
class RegistryField:
    """Marks a recipe field whose class is selected by name from a group of the registry."""

    group: str


ObjectiveSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("objectives")]
BackboneSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("backbones")]
TaskSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("tasks")]
AdaptationSection = Annotated[SkipValidation[SerializeAsAny[Section]], RegistryField("adaptations")]


def load(
    path: str | Path, model: type[RecipeT], overrides: Sequence[str] = (), parsed: dict[str, Any] | None = None
) -> RecipeT:
    """Read a YAML recipe, apply dotted overrides, and validate it into `model`.

    `${here}` expands to the folder of the recipe file, `${NAME:-default}` to an environment variable. `parsed` is what
    `parse` returned for this file, if it was read before.
    """
    if parsed is None:
        path = find(path)
        parsed = parse(path)
    raw = apply_overrides(parsed, overrides)
    return fill(model, raw, where=str(path))


def find(path: str | Path) -> Path:
    """Return the path of a recipe file: the given one, or the recipe of that name in the package."""
    path = Path(path)
    try:
        if path.is_file():
            return path
        shipped = Path(__file__).parent.parent / "shipped" / path
        if path.parts[:1] in (("recipes",), ("studies",)) and shipped.is_file():
            return shipped
        problem = f"{path} is not a file" if path.exists() else ""
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    except (OSError, ValueError) as error:
        # A name that is too long or contains a NUL byte.
        reason = getattr(error, "strerror", None) or first_line(error)
        problem, siblings = f"{shorten(str(path))} is not a path ({reason})", []
    raise RecipeError(
        problem or f"there is no recipe at {path}{registry.suggest(path.name, siblings)}",
        do="Pass the path of a YAML file; `headstart schema VERB` describes its keys",
    )


def parse(path: Path) -> dict[str, Any]:
    """Read a YAML file into plain dictionaries and expand `${…}`."""
    raw = recipe_text.parse(recipe_text.read(path), str(path))
    if not isinstance(raw, dict):
        content = {"NoneType": "empty", "str": "plain text", "list": "a list"}.get(type(raw).__name__, repr(raw))
        raise RecipeError(
            f"{path} is {content}",
            allowed="A recipe is a mapping of keys to values",
            do="`headstart schema VERB` describes every key",
        )
    try:
        expanded: dict[str, Any] = variables.expand(raw, here=path.parent)
    except variables.UnsetVariable as unset:
        raise RecipeError(
            f"{path} uses ${{{unset.name}}}, which is not set",
            do=f"export {unset.name}=… or write ${{{unset.name}:-default}}",
        ) from unset
    return expanded


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy with overrides such as `training.budget=5 min` applied; values are parsed as YAML."""
    raw = copy.deepcopy(raw)
    for override in overrides:
        key, equals, value = override.partition("=")
        key, shown = key.strip(), shorten(repr(override))
        if not equals:
            problem = "has no '='"
        elif not all(key.split(".")) or not key.isprintable():
            problem = "has an empty key" if not key else "has no proper key"
        elif key.count(".") >= recipe_text.MAX_DEPTH:
            problem = f"has a key of {key.count('.') + 1} parts"
        elif len(value) > recipe_text.MAX_BYTES:
            problem = f"has {len(value):,} characters"
        else:
            set_dotted(raw, key, recipe_text.parse(value, f"the value of override {shown}") if value else None)
            continue
        raise RecipeError(
            f"override {shown} {problem}",
            allowed="An override is written key.subkey=value",
            do="Quote values with spaces",
        )
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
            shown = shorten(repr(parent))
            raise RecipeError(
                f"override {shorten(repr(key))} sets a key inside {shown}, which is a value, not a section",
                do=f"Set {shown} itself, or correct the key",
            )
        section[parent] = below
        section = below
    section[last] = value


def fill(model: type[RecipeT], raw: Mapping[str, Any], where: str = "the recipe") -> RecipeT:
    """Validate plain dictionaries into a recipe with all defaults filled in; one error lists every problem."""
    recipe, problems = _validate(model, raw)
    if recipe is None:
        raise _refusal(model, problems, where)
    if isinstance(recipe, Section):
        recipe._variables = _placed_variables(recipe, raw)
    return recipe


def _validate(model: type[RecipeT], raw: Mapping[str, Any]) -> tuple[RecipeT | None, list[str]]:
    """Return the recipe, or None and every problem."""
    problems: list[str] = []
    raw = dict(raw)
    for name, field, group in registry_fields(model):
        if name in raw:
            raw[name] = resolve_section(group, name, raw[name], problems)
        elif field.is_required():
            problems.append(_missing_section(group, name))
            raw[name] = None
        else:
            raw[name] = resolve_section(group, name, field.get_default(call_default_factory=True), problems)
    try:
        recipe = model.model_validate(raw)
    except ValidationError as error:
        return None, format_validation_errors(model, error.errors(include_url=False)) + problems
    return (None, problems) if problems else (recipe, [])


def _refusal(model: type[BaseModel], problems: Sequence[str], where: str) -> RecipeError:
    verb = getattr(model, "verb", None)
    advice = f"`headstart schema {verb}` describes every key" if verb else ""
    return RecipeError(f"{where}: " + "\n  ".join(problems), do=advice)


def _missing_section(group: str, name: str) -> str:
    known = registry.names(group)
    example = f"{name}: {{{registry.SELECTOR[group]}: {known[0]}}}"
    return f"{name} is missing; known: {', '.join(known)}. Add it, for example `{example}`."


def _placed_variables(recipe: Section, raw: Mapping[str, Any]) -> dict[variables.Path, Expanded]:
    """Return the strings of a filled recipe in which variables were expanded, by path.

    Only text and paths are among them. A number, or the name of an entry, is written by its value: a saved recipe must
    be valid where the variable is not set.
    """
    expanded = [(path, leaf) for path, leaf in variables.leaves(raw) if isinstance(leaf, Expanded)]
    if not expanded:
        return {}
    filled = recipe.model_dump(mode="json")
    texts = {path: leaf for path, leaf in variables.leaves(filled) if isinstance(leaf, str)}
    placed: dict[variables.Path, Expanded] = {}
    for path, leaf in expanded:
        same = (str(leaf), str(Path(leaf)))
        # A validator may have moved the text, as from `files: a.txt` to a list.
        moved = [other for other, text in texts.items() if other[0] == path[0] and text in same]
        for other in [path] if texts.get(path) in same else moved:
            placed[other] = leaf
    templates = {path: leaf.template for path, leaf in placed.items()}
    if _validate(type(recipe), variables.replace(filled, templates))[0] is not None:
        return placed
    return {
        path: leaf
        for path, leaf in placed.items()
        if _validate(type(recipe), variables.replace(filled, {path: leaf.template}))[0] is not None
    }


def fill_saved(model: type[RecipeT], raw: Mapping[str, Any], where: str) -> RecipeT:
    """Validate a recipe that was saved in an artifact; keys renamed since then are translated.

    Variables are expanded, `${here}` to the folder of the artifact; one that is not set stays as it is written.
    """
    return fill(model, renames.upgrade(expand_saved(raw, Path(where))), where)


def expand_saved(raw: Any, saved_in: Path) -> Any:
    """Return a saved recipe, or a part of it, with its variables expanded, for an artifact or a file in it."""
    here = saved_in if saved_in.is_dir() else saved_in.parent
    return variables.expand(raw, here=here, keep_unset=True)


def require_unique_names(names: Sequence[str], what: str) -> None:
    """Raise a ValueError, for use in a section's validator, if a name occurs more than once."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated:
        raise ValueError(f"the name {repeated!r} occurs twice; every {what} needs a name of its own.")


def to_dict(recipe: BaseModel) -> dict[str, Any]:
    """Return the filled recipe as plain JSON types, with every default written out.

    Strings in which variables were expanded are `Expanded`; `variables.written` replaces them by their templates.
    """
    filled = recipe.model_dump(mode="json")
    if not isinstance(recipe, Section) or not recipe._variables:
        return filled
    texts = dict(variables.leaves(filled))
    known = {
        path: Expanded(texts[path], leaf.template, leaf.values)
        for path, leaf in recipe._variables.items()
        if texts.get(path) in (str(leaf), str(Path(leaf)))
    }
    marked: dict[str, Any] = variables.replace(filled, known)
    return marked


def to_saved(recipe: BaseModel) -> dict[str, Any]:
    """Return the filled recipe as `to_dict` does, with `${here}` as its output folder, in which it is saved."""
    filled = to_dict(recipe)
    folder = Path(filled["output"])
    marks = {path: leaf.relative_to(folder) for path, leaf in variables.leaves(filled) if isinstance(leaf, Expanded)}
    saved: dict[str, Any] = variables.replace(filled, marks)
    return saved


def to_yaml(recipe: BaseModel, saved: bool = False) -> str:
    """Return the filled recipe as YAML in the order of its fields, with variables as they were written.

    With `saved`, it is for a file in the output folder of the recipe.
    """
    return recipe_text.dump(variables.written(to_saved(recipe) if saved else to_dict(recipe)))


def fingerprint(value: Any, length: int = 16) -> str:
    """Return a short hash of plain JSON data, equal for equal content."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:length]


def registry_fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, str]]:
    """Yield the fields of a recipe that name a registered class: name, field and group of the registry."""
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
        config = with_weight(config) if weighted else config
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


@lru_cache(maxsize=256)
def with_weight(config: type[Section]) -> type[Section]:
    """Return a subclass of a section's `Config` that also has a `weight`."""
    if "weight" in config.model_fields:
        raise RecipeError(f"{config.__module__} already has a setting `weight`", do="Rename it")
    weight = Field(1.0, gt=0, description="how often this objective is drawn, relative to the other weights")
    return create_model(config.__name__, __base__=config, weight=(float, weight))
