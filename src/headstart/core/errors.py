"""The exceptions that users see. Each message says what was found, what is allowed, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headstart.core.recipes.variables import hide

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor of a terminal, or change the color or the direction of its text."""


class HeadstartError(Exception):
    """Base class of all errors meant for users; the command line prints them without a traceback."""

    exit_code = 2

    def __init__(self, found: str, *, allowed: str = "", do: str = "") -> None:
        """Join the three parts, each a clause or a sentence, into one message."""
        self.found, self.allowed, self.do = _printable(found), _printable(allowed), _printable(do)
        super().__init__(" ".join(_sentence(part) for part in (self.found, self.allowed, self.do) if part))

    def to_dict(self) -> dict[str, str]:
        """Return the error as plain JSON types, from which `error_from_dict` rebuilds it in another process."""
        return {"kind": type(self).__name__, "found": self.found, "allowed": self.allowed, "do": self.do}


class RecipeError(HeadstartError):
    """A recipe or an override is invalid."""


class DataError(HeadstartError):
    """Raw text or labeled rows cannot be used."""


class ArtifactError(HeadstartError):
    """A folder is incomplete, was modified, or belongs to another kind of artifact or another recipe."""


class ResourceError(HeadstartError):
    """The machine lacks a resource: disk space, memory, an optional package."""


def error_from_dict(fields: Mapping[str, str]) -> HeadstartError:
    """Return the error that another process serialized with `to_dict`."""
    kinds = {kind.__name__: kind for kind in (RecipeError, DataError, ArtifactError, ResourceError)}
    kind = kinds.get(fields["kind"], HeadstartError)
    return kind(fields["found"], allowed=fields["allowed"], do=fields["do"])


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message, for use inside one of Headstart's."""
    return str(error).strip().partition("\n")[0].rstrip(": ")


def shorten(text: str, length: int = 60) -> str:
    """Return a text of at most `length` characters, with … in place of what was cut off."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _printable(text: str) -> str:
    """Return a message without the values of variables, which may be secret, and without control characters."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), hide(text))


def _sentence(part: str) -> str:
    part = part.strip()
    return part if part.endswith((".", "?", "!", ":")) or "\n" in part else part + "."
