"""The few exceptions a user may meet. Each says what was found, what is allowed, what to do."""

from __future__ import annotations


class HeadstartError(Exception):
    """Base of every error that is meant for a person; the command line prints it without a traceback."""

    exit_code = 2

    def __init__(self, found: str, *, allowed: str = "", do: str = "") -> None:
        """Join the three parts, each a clause or a sentence, into one message."""
        self.found, self.allowed, self.do = found, allowed, do
        super().__init__(" ".join(_sentence(part) for part in (found, allowed, do) if part))


class RecipeError(HeadstartError):
    """A recipe or an override that cannot be followed."""


class DataError(HeadstartError):
    """Input text or labelled rows that cannot be used."""


class ArtifactError(HeadstartError):
    """A folder that is torn, altered, of another kind, or of another recipe."""


class ResourceError(HeadstartError):
    """The machine lacks something: disk, memory, an optional package."""


def first_line(error: Exception) -> str:
    """Return the beginning of a library's message, which may run over many lines, to stand inside one of ours."""
    return str(error).strip().partition("\n")[0].rstrip(": ")


def _sentence(part: str) -> str:
    part = part.strip()
    return part if part.endswith((".", "?", "!", ":")) or "\n" in part else part + "."
