"""Variables in recipes: `${NAME}` is expanded for the run, and written back as `${NAME}` beside its output.

A value may be a secret or a path of one machine, so it must not reach a card, a manifest, a saved recipe or a message.
A string that was expanded remembers its template (`Expanded`), `written` replaces such strings by their templates, and
`hide` removes the values of variables from messages.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

Path = tuple[str | int, ...]
"""The keys and indices that lead to a value in nested data."""
HERE = "here"
"""`${here}` is the folder of the recipe file."""
_SAVED = "${here}/./"
"""The start of a path in a saved recipe, relative to its folder. It expands to the path without `..`."""
# A placeholder that is never closed reaches the end of the text, so that the rest is not read again for each of them.
_PLACEHOLDER = re.compile(r"\$\{(\w+)(?::-([^}]*+))?+(?:\}|\Z)")
_ORDINARY_WORD = 8
"""A value of fewer lowercase letters may be an ordinary word of a message; it is hidden only as a part of a path."""
_hidden: dict[str, str] = {}
"""What messages must not show → what they show instead. It is global because any message of the process may show it."""


class UnsetVariable(Exception):
    """A variable without a default is not set."""

    def __init__(self, name: str) -> None:
        """Name the variable."""
        super().__init__(name)
        self.name = name


class Expanded(str):
    """A string in which variables were expanded. It is used like any other string and remembers its template."""

    template: str
    values: dict[str, str]
    """The values of its variables by name."""

    def __new__(cls, text: str, template: str = "", values: Mapping[str, str] | None = None) -> Expanded:
        """Return the expanded text with its template."""
        expanded = super().__new__(cls, text)
        expanded.template, expanded.values = template, dict(values or {})
        return expanded

    def relative_to(self, folder: FilePath) -> Expanded:
        """Return it with `${here}` as another folder, in which the recipe is going to be saved."""
        here = self.values.get(HERE)
        start = f"${{{HERE}}}"
        if here is None or not self.template.startswith(start):
            return self
        head, _, rest = self.template.removeprefix(start).partition("$")
        # Real paths: `..` after a symbolic link leads to the parent of its target.
        path = os.path.relpath(os.path.realpath(f"{here}{head}"), os.path.realpath(folder))
        slash = "/" if head.endswith("/") else ""
        return Expanded(str(self), f"{_SAVED}{path}{slash}{'$' if rest else ''}{rest}", self.values)


def expand(node: Any, here: FilePath | None = None, keep_unset: bool = False) -> Any:
    """Return nested dictionaries and lists with the variables in their strings expanded.

    Args:
        node: plain data.
        here: the value of `${here}`.
        keep_unset: leave a variable that is not set as it is written; otherwise it raises `UnsetVariable`.
    """
    if isinstance(node, dict):
        return {key: expand(value, here, keep_unset) for key, value in node.items()}
    if isinstance(node, list):
        return [expand(item, here, keep_unset) for item in node]
    if not isinstance(node, str) or "${" not in node:
        return node
    values: dict[str, str] = {}

    def value_of(match: re.Match[str]) -> str:
        name, default = match.groups()
        if not match[0].endswith("}"):
            return match[0]
        value = str(here) if here is not None and name == HERE else os.environ.get(name) or default
        if value is None:
            if keep_unset:
                return match[0]
            raise UnsetVariable(name)
        values[name] = value
        if name != HERE and os.environ.get(name):
            _hidden[value] = f"${{{name}}}"
        return value

    text = _PLACEHOLDER.sub(value_of, node)
    if not values:
        return node
    if node.startswith(_SAVED):
        # The form in which `relative_to` saves a path: the same file has the same path in the saved recipe.
        text = os.path.normpath(text) + ("/" if text.endswith("/") else "")
    if values.keys() != {HERE} and any(os.environ.get(name) for name in values):
        _hidden[text] = node
    return Expanded(text, node, values)


def leaves(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every value in nested dictionaries and lists that is neither, with its path."""
    if isinstance(node, dict | list | tuple):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(value, (*path, key))
    else:
        yield path, node


def replace(node: Any, values: Mapping[Path, Any], path: Path = ()) -> Any:
    """Return a copy of nested dictionaries and lists with the values at some paths replaced."""
    if isinstance(node, dict):
        return {key: replace(value, values, (*path, key)) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [replace(item, values, (*path, i)) for i, item in enumerate(node)]
    return values.get(path, node)


def written(node: Any) -> Any:
    """Return plain data as it may be written beside an output: templates in place of what they expand to.

    Other strings that start with the value of a variable, such as the path of a file in a folder that it names, start
    with the variable.
    """
    if isinstance(node, dict):
        return {key: written(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [written(item) for item in node]
    if isinstance(node, Expanded):
        return node.template
    return _hide_path(node) if isinstance(node, str) else node


def hashes(node: Any) -> dict[str, str]:
    """Return a hash of the value of each variable in nested data, by name, to notice that a value has changed."""
    values: dict[str, str] = {}
    for _, leaf in leaves(node):
        if isinstance(leaf, Expanded):
            # A saved recipe is in another folder than the first one; its paths are compared whole.
            values |= {name: value for name, value in leaf.values.items() if name != HERE}
    return {name: hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()[:16] for name, value in values.items()}


def to_json(node: Any) -> list[dict[str, Any]]:
    """Return what `from_json` needs to restore the templates in plain data that another process receives as JSON."""
    return [
        {"path": list(path), "template": leaf.template, "values": leaf.values}
        for path, leaf in leaves(node)
        if isinstance(leaf, Expanded)
    ]


def from_json(node: Any, templates: list[dict[str, Any]]) -> Any:
    """Return plain data with the templates that `to_json` described; the values are hidden in messages from now on."""
    by_path = {tuple(entry["path"]): entry for entry in templates}
    restored: dict[Path, Expanded] = {}
    for path, leaf in leaves(node):
        if path in by_path and isinstance(leaf, str):
            entry = by_path[path]
            restored[path] = Expanded(leaf, entry["template"], entry["values"])
            names = [name for name in entry["values"] if name != HERE]
            _hidden.update({entry["values"][name]: f"${{{name}}}" for name in names})
            _hidden.update({leaf: entry["template"]} if names else {})
    return replace(node, restored)


def hide(text: str) -> str:
    """Return a message with `${NAME}` in place of the value of each variable that a recipe used."""
    for value in sorted(_hidden, key=len, reverse=True):
        if value in text:
            text = _pattern(value).sub(lambda _, shown=_hidden[value]: shown, text)  # type: ignore[misc]
    return text


def _pattern(value: str) -> re.Pattern[str]:
    start, end = (r"(?<!\w)" if value[0].isalnum() else ""), (r"(?!\w)" if value[-1].isalnum() else "")
    if len(value) < 4 or (len(value) < _ORDINARY_WORD and value.isalpha() and value.islower()):
        start, end = r"(?<![^\s/'\"`])", r"(?=/)"
    return re.compile(start + re.escape(value) + end)


def _hide_path(text: str) -> str:
    """Return a string with the variable in place of its value, if it is this value or a path that starts with it."""
    for value in sorted(_hidden, key=len, reverse=True):
        if "/" in value and text.startswith(value) and text[len(value) : len(value) + 1] in ("", "/"):
            return _hidden[value] + text[len(value) :]
    return text
