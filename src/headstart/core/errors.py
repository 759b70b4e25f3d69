"""The few exceptions a user may meet. Each says what was found, what is allowed, what to do."""

from __future__ import annotations

from collections.abc import Mapping


class HeadstartError(Exception):
    """Base of every error that is meant for a person; the command line prints it without a traceback."""

    exit_code = 2

    def __init__(self, found: str, *, allowed: str = "", do: str = "") -> None:
        """Join the three parts, each a clause or a sentence, into one message."""
        self.found, self.allowed, self.do = found, allowed, do
        super().__init__(" ".join(_sentence(part) for part in (found, allowed, do) if part))

    def to_dict(self) -> dict[str, str]:
        """Return it as plain JSON types, to be raised anew in another process by `error_from_dict`."""
        return {"kind": type(self).__name__, "found": self.found, "allowed": self.allowed, "do": self.do}


class RecipeError(HeadstartError):
    """A recipe or an override that cannot be followed."""


class DataError(HeadstartError):
    """Input text or labelled rows that cannot be used."""


class ArtifactError(HeadstartError):
    """A folder that is torn, altered, of another kind, or of another recipe."""


class ResourceError(HeadstartError):
    """The machine lacks something: disk, memory, an optional package."""


def error_from_dict(told: Mapping[str, str]) -> HeadstartError:
    """Return the error that another process wrote by `to_dict`."""
    kind: type[HeadstartError] = globals()[told["kind"]]
    return kind(told["found"], allowed=told["allowed"], do=told["do"])


def first_line(error: Exception) -> str:
    """Return the beginning of a library's message, which may run over many lines, to stand inside one of ours."""
    return str(error).strip().partition("\n")[0].rstrip(": ")


def _sentence(part: str) -> str:
    part = part.strip()
    return part if part.endswith((".", "?", "!", ":")) or "\n" in part else part + "."
