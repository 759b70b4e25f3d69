"""Write docs/reference/ from the package itself: `python docs/make_reference.py`.

Recipe keys come from the schemas, methods from the registry, and the Python interface from signatures and docstrings.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headstart
from headstart import verbs
from headstart.core import errors, registry
from headstart.stages.runs import result
from headstart.stages.runs.launch import RESUMABLE

FOLDER = Path(__file__).parent / "reference"
MARK = "<!-- Written by docs/make_reference.py; do not edit. -->"
GROUPS = {"objectives": "objective", "backbones": "backbone", "tasks": "task", "adaptations": "adaptation"}
OTHERS = ("metrics", "baselines", "exports")
EXIT_CODES = {
    0: "the command is done; a run that was finished before counts as done",
    1: "something is missing or failed: a cell of a study, a worker, or an internal error",
    errors.HeadstartError.exit_code: "the input was refused; the message says why and what to do",
    RESUMABLE: "the run was asked to stop and has saved a checkpoint; the same command resumes it",
}

Rows = Iterator[tuple[str, str, str, str]]


def kind_of(node: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return the type of a key in words, from its JSON Schema."""
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        return "section" if "properties" in target else kind_of(target, definitions)
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in node:
            kinds = [kind_of(each, definitions) for each in node[choice]]
            return " or ".join(dict.fromkeys(kinds))
    if node.get("type") == "array":
        return f"list of {kind_of(node.get('items', {}), definitions)}"
    names = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
    return names.get(str(node.get("type")), "section" if node.get("type") == "object" else "any") + bounds(node)


def bounds(node: dict[str, Any]) -> str:
    """Return the allowed range of a number, such as " > 0, ≤ 1"."""
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    parts = [f"{sign} {node[key]:g}" for key, sign in signs.items() if key in node]
    return " " + ", ".join(parts) if parts else ""


def sections_of(node: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the sections that a key can hold, with "" or "[]" if it is a list of them."""
    if "$ref" in node:
        yield "", definitions[node["$ref"].rpartition("/")[2]]
    for each in node.get("anyOf", []):
        yield from sections_of(each, definitions)
    if isinstance(node.get("additionalProperties"), dict):
        yield from ((".NAME", section) for _, section in sections_of(node["additionalProperties"], definitions))
    if node.get("type") == "array" and isinstance(node.get("items"), dict):
        yield from (("[]", section) for _, section in sections_of(node["items"], definitions))


def rows(schema: dict[str, Any], definitions: dict[str, Any], prefix: str = "", skip: str = "") -> Rows:
    """Yield key, type, default and meaning of every setting of a schema; keys of sections are dotted."""
    required = schema.get("required", [])
    for name, node in schema.get("properties", {}).items():
        if name == skip:
            continue
        below = [each for each in sections_of(node, definitions) if "properties" in each[1]]
        default = "required" if name in required else "" if below else f"`{json.dumps(node.get('default'))}`"
        meaning = node.get("description") or " ".join(each[1].get("description", "") for each in below)
        meaning = re.sub(r"<(?=[A-Za-z])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\<", " ".join(meaning.split()))  # no HTML tag
        yield prefix + name, kind_of(node, definitions), default, meaning
        for suffix, section in below:
            yield from rows(section, definitions, f"{prefix}{name}{suffix}.")


def table(lines: Rows) -> str:
    """Return the rows as a Markdown table."""
    cells = [[f"`{key}`", *rest] for key, *rest in lines]
    text = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells]
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *text])


def recipes_page() -> str:
    """Return the page of all recipe keys that do not depend on a method."""
    parts = [
        f"# Recipe keys\n\n{MARK}\n\nEvery key of every recipe. Keys of a section are dotted, as on the command line "
        "(`training.budget='5 min'`). The keys of objectives, backbones, tasks and adaptations are in "
        "[methods](methods.md). `headstart schema VERB` prints the same as JSON Schema for editors."
    ]
    for verb, model in verbs.by_verb().items():
        schema = model.model_json_schema()
        command = "headstart corpus build" if verb == "corpus" else f"headstart {verb}"
        parts.append(f"## {verb}\nRead by `{command}`. " + " ".join((model.__doc__ or "").split("\n\n")[0].split()))
        parts.append(table(rows(schema, schema.get("$defs", {}))))
    return "\n\n".join(parts) + "\n"


def methods_page() -> str:
    """Return the page of everything in the registry, with its paper and its settings."""
    parts = [
        f"# Methods\n\n{MARK}\n\nWhat a recipe can name, with the paper and the settings of each. "
        "[Supported combinations](../support.md) shows what fits what."
    ]
    for group, section in GROUPS.items():
        parts.append(f"## {group.capitalize()}")
        for entry in registry.describe(group):
            schema = registry.resolve(group, entry.name).Config.model_json_schema()
            selector = registry.SELECTOR[group]
            parts.append(
                f"### {section} {entry.name}\n{entry.help}" + (f" Paper: {entry.paper}." if entry.paper else "")
            )
            settings = list(rows(schema, schema.get("$defs", {}), skip=selector))
            parts.append(table(iter(settings)) if settings else "It has no settings.")
    for group in OTHERS:
        lines = [f"- `{entry.name}`: {entry.help}" + (f" Paper: {entry.paper}." if entry.paper else "")
                 for entry in registry.describe(group)]  # fmt: skip
        parts += [f"## {group.capitalize()}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def python_page() -> str:
    """Return the page of the Python functions, the results that they return, the errors and the exit codes."""
    parts = [f"# Python, errors and exit codes\n\n{MARK}\n\n{_docstring(headstart)}", "## Functions"]
    for name in headstart.__all__:
        function = getattr(headstart, name)
        parts.append(f"### headstart.{name}\n```python\n{_call(name, function)}\n```\n{_docstring(function)}")
    parts.append("## Results\nEvery result can be used as a path.")
    for name, kind in inspect.getmembers(result, inspect.isclass):
        if kind.__module__ == result.__name__ and not name.startswith("_"):
            members = [
                f"- `{key}`: {_docstring(member).partition(chr(10))[0]}"
                for key, member in inspect.getmembers(kind)
                if not key.startswith("_") and _docstring(member) and _is_ours(member)
            ]
            parts.append("\n\n".join([f"### {name}\n{_docstring(kind)}", "\n".join(members)]).rstrip())
    parts.append(
        "## Errors\nAll are in `headstart.core.errors`. The message has the parts `found`, `allowed` and `do`."
    )
    kinds = [errors.HeadstartError, *errors.HeadstartError.__subclasses__()]
    ours = [kind for kind in kinds if kind.__module__ == errors.__name__]
    parts.append("\n".join(f"- `{kind.__name__}` (exit code {kind.exit_code}): {_docstring(kind)}" for kind in ours))
    lines = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    parts.append(f"## Exit codes\n| code | meaning |\n|---|---|\n{lines}")
    return "\n\n".join(parts) + "\n"


def _call(name: str, function: Any) -> str:
    """Return a signature with one argument per line where it is long."""
    signature = inspect.signature(function)
    text = f"{name}{signature}".replace("PathLike", "str | os.PathLike[str]")
    if len(text) <= 100:
        return text
    lines, star = [], False
    for argument in signature.parameters.values():
        if argument.kind is argument.KEYWORD_ONLY and not star:
            lines, star = [*lines, "    *,"], True
        star = star or argument.kind is argument.VAR_POSITIONAL
        lines.append(f"    {argument},")
    return f"{name}(\n" + "\n".join(lines) + f"\n) -> {signature.return_annotation}"


def _is_ours(member: Any) -> bool:
    function = member.fget if isinstance(member, property) else getattr(member, "func", member)
    return getattr(function, "__module__", "").startswith("headstart")


def _docstring(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def pages() -> dict[str, str]:
    """Return the text of every page by its name."""
    return {"recipes.md": recipes_page(), "methods.md": methods_page(), "python.md": python_page()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"wrote {FOLDER / name}")
