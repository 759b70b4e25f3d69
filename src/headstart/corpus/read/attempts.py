"""Requests to a store: repeated while they fail for a transient reason, and errors that name the object."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

from headstart.core.errors import DataError, HeadstartError, first_line
from headstart.core.log import logger
from headstart.core.randomness import fraction

T = TypeVar("T")

ATTEMPTS = 6
FIRST_DELAY = 0.25
"""Seconds before the second attempt; doubled before each further one."""
MAX_DELAY = 60.0
"""The longest wait, also if a server asks for more."""
_DONE = {"read": "read", "write": "written"}
_RERUN = "run the same command again, which resumes"
_WITHOUT_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
"""Exceptions of S3's client, by name because the client is an extra: another attempt finds no credentials either."""
_CREDENTIALS = "Credentials are read by the store's own client, from the environment or its files"


class Version(NamedTuple):
    """What identifies the content of an object; the ETag is empty if the store has none."""

    size: int
    etag: str


class Replaced(Exception):
    """An object is no longer the one that was listed."""


def retried(what: str, action: Callable[[], T], verb: Literal["read", "write"] = "read") -> T:
    """Return the result of a request, repeated with growing delays if it fails for a transient reason.

    `what` names the object, or the range of it, in messages, and `verb` what is done with it.
    """
    reason, done = "", _DONE[verb]
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except HeadstartError:
            raise
        except Replaced as error:
            raise replaced(what, first_line(error)) from None
        except FileNotFoundError:
            raise DataError(f"{what} does not exist", do="Check the URL, and whether the object was removed") from None
        except PermissionError as error:
            raise DataError(
                f"{what} cannot be {done}: access was denied ({first_line(error)})",
                allowed=_CREDENTIALS,
                do=f"Set or renew them, and {_RERUN}",
            ) from None
        except MemoryError:
            raise
        except Exception as error:
            if type(error).__name__ in _WITHOUT_CREDENTIALS:
                raise DataError(
                    f"{what} cannot be {done}: there are no credentials ({first_line(error)})",
                    allowed=_CREDENTIALS,
                    do="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (for a public bucket, write "
                    f"?anonymous=true after the URL), and {_RERUN}",
                ) from None
            reason = first_line(error) or type(error).__name__
            if attempt + 1 < ATTEMPTS:
                delay = _delay(what, attempt, error)
                logger.info(f"{verb}: {what}: {reason}; attempt {attempt + 2} of {ATTEMPTS} in {delay:.1f} s")
                time.sleep(delay)
    # Without its cause: an input/output error of a store is not one of this machine's disks.
    raise DataError(
        f"{what} cannot be {done} after {ATTEMPTS} attempts ({reason})",
        allowed="Nothing is skipped",
        do=f"Check the network and the store, and {_RERUN}",
    ) from None


def replaced(what: str, found: str) -> DataError:
    """Return the error for an object that is no longer the one that was listed."""
    return DataError(
        f"{what} was replaced after it was listed ({found})",
        allowed="A run reads its files as they were when it started",
        do="Run the command again to read the new version, with another output if this one has work of the old version",
    )


def _delay(what: str, attempt: int, error: BaseException) -> float:
    """Return the seconds to wait: as long as the server asks, or twice as long as before, spread over the objects."""
    asked = _retry_after(error)
    if asked is not None:
        return min(asked, MAX_DELAY)
    return min(MAX_DELAY, FIRST_DELAY * 2**attempt * (0.5 + fraction(what, attempt, "retry")))


def _retry_after(error: BaseException) -> float | None:
    """Return the seconds in the Retry-After header of the response behind an error."""
    link: BaseException | None = error
    while link is not None:
        response = getattr(link, "response", None)
        headers = getattr(link, "headers", None) or getattr(response, "headers", None)
        if isinstance(response, dict):
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
        for name in ("Retry-After", "retry-after"):
            value = headers.get(name) if headers is not None else None
            if value is not None and str(value).isdecimal():
                return float(value)
        link = link.__cause__
    return None


def difference(listed: Version, found: Version | None) -> str:
    """Return in words how an object differs from the one that was listed."""
    if found is None:
        return "it is gone"
    if found.size != listed.size:
        return f"it had {listed.size:,} bytes and has {found.size:,}"
    return f"its ETag was {listed.etag or 'missing'} and is {found.etag or 'missing'}"
