"""Read the text of a recipe, or of an override, into plain data, in bounded time and memory whatever the text is.

YAML without its pitfalls: `1e-3` is a number, `on` and `no` are strings, dates stay text. Duplicate keys, lists as
keys, aliases, merge keys and tags of other languages are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from headstart.core.errors import RecipeError, first_line, shorten

MAX_BYTES = 1_000_000
MAX_DEPTH = 64
_MAX_VALUES = 50_000
_MAX_CHARACTERS = 100_000
"""The longest single value."""
_MAX_DIGITS = 300
"""The longest number; Python does not print one of thousands of digits."""
_TAG = "tag:yaml.org,2002:"
_TAGS = {None, "!", *(_TAG + name for name in ("str", "int", "float", "bool", "null", "map", "seq"))}
_SCALARS = {name: name for name in ("int", "float", "bool", "null")}
_ADVICE = "Fix that line; quote text that contains `: `, `[` or `#`"


def read(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a recipe file; refuses what is not a file of text, or too large."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise RecipeError(f"{path} cannot be read ({reason})", do="Pass the path of a YAML file") from error
    if len(content) > max_bytes:
        raise RecipeError(
            f"{path} is larger than {max_bytes // 1_000_000} MB",
            allowed="A recipe is a short text",
            do="Check the path; a long list of files can be written as a pattern, such as data/*.parquet",
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8 text (byte {error.start})", do="Save it as UTF-8") from error


def read_saved(path: Path) -> Any:
    """Return the content of a recipe that Headstart wrote, which may be longer than what a person writes."""
    return parse(read(path, 100 * MAX_BYTES), str(path), 100 * _MAX_VALUES)


def parse(text: str, where: str, max_values: int = _MAX_VALUES) -> Any:
    """Return the content of a YAML document as plain dictionaries, lists, strings, numbers, booleans and None.

    `where` names the text in errors.
    """
    try:
        return _Reader(text, max_values).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or first_line(error)
        raise RecipeError(f"{where}{position} is not valid YAML: {problem}", do=_ADVICE) from error
    except (ValueError, RecursionError) as error:
        # Characters that no encoding has, or a number that Python refuses.
        raise RecipeError(f"{where} is not valid YAML ({first_line(error)})", do="Fix the text") from error


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The parser in C where it is installed, which takes a hundredth of the time; Python's otherwise."""


class _Dumper(yaml.SafeDumper):
    """Quotes strings that the loader would parse as numbers."""


_PLAIN = {_TAG + "null"}
_Loader.yaml_implicit_resolvers = {
    letter: [entry for entry in entries if entry[0] in _PLAIN or (entry[0] == _TAG + "bool" and letter in "tTfF")]
    for letter, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# Neither 12:30, a number in base 60 for YAML 1.1, nor 010, which is 8 there, is a number.
_Loader.add_implicit_resolver(
    _TAG + "int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        _TAG + "float",
        re.compile(
            r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)$|^[-+]?[0-9][0-9_]*\.[0-9_]*$"
            r"|^[-+]?\.[0-9][0-9_]*$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
        ),
        list("-+0123456789."),
    )


def dump(value: Any) -> str:
    """Return plain data as YAML that `parse` reads back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Reader:
    """Builds plain data from the events of the parser, in one pass that stops at the first thing not allowed."""

    def __init__(self, text: str, max_values: int) -> None:
        """Open the text."""
        self._loader: Any = _Loader(text)
        self._values, self._max_values = 0, max_values

    def document(self) -> Any:
        """Return the only document of the text; None if there is none."""
        try:
            value: Any = None
            self._next()  # the start of the stream
            if not isinstance(event := self._next(), yaml.StreamEndEvent):
                value = self._value(self._next(), 0)
                self._next()  # the end of the document
                if not isinstance(event := self._next(), yaml.StreamEndEvent):
                    raise _error("a second document starts here; a recipe is one", event)
            return value
        finally:
            self._loader.dispose()

    def _next(self) -> Any:
        return self._loader.get_event()

    def _value(self, event: Any, depth: int) -> Any:
        self._values += 1
        if isinstance(event, yaml.AliasEvent):
            raise _error("aliases (*name) are not allowed in recipes", event)
        if event.tag not in _TAGS:
            raise _error(f"the tag {event.tag.replace(_TAG, '!!')[:60]} is not allowed in recipes", event)
        if self._values > self._max_values:
            raise _error(f"a recipe has at most {self._max_values:,} values", event)
        if depth > MAX_DEPTH:
            raise _error(f"a recipe is at most {MAX_DEPTH} levels deep", event)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            if event.tag not in (None, "!", _TAG + "seq"):
                raise _error("a list has the tag of another type", event)
            return [self._value(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        if event.tag not in (None, "!", _TAG + "map"):
            raise _error("a mapping has the tag of another type", event)
        return self._mapping(depth)

    def _until(self, end: type) -> Iterator[Any]:
        while not isinstance(event := self._next(), end):
            yield event

    def _mapping(self, depth: int) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        for event in self._until(yaml.MappingEndEvent):
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
                raise _error("merge keys (<<) are not allowed in recipes", event)
            key = self._value(event, depth + 1)
            if isinstance(key, dict | list):
                raise _error("a key is not a plain word", event)
            if key in mapping:
                raise _error(f"the key {shorten(repr(key))} occurs twice", event)
            mapping[key] = self._value(self._next(), depth + 1)
        return mapping

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if len(text) > _MAX_CHARACTERS:
            raise _error(f"a value has {len(text):,} characters; at most {_MAX_CHARACTERS:,} are allowed", event)
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._loader.resolve(yaml.ScalarNode, text, event.implicit if tag is None else (False, True))
        if tag == _TAG + "str":
            return text
        kind = tag.removeprefix(_TAG)
        if len(text) > _MAX_DIGITS:
            raise _error(f"the number {text[:20]}… is too large", event)
        node = yaml.ScalarNode(tag, text, event.start_mark, event.end_mark)
        try:
            return getattr(self._loader, f"construct_yaml_{_SCALARS[kind]}")(node)
        except (ValueError, KeyError, IndexError) as error:
            raise _error(f"{shorten(repr(text))} is not a value of the type {kind}", event) from error


def _error(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
