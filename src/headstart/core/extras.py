"""Optional dependencies: the pip command that installs an extra's packages."""

from __future__ import annotations

import re
import shlex
from functools import cache
from importlib.metadata import PackageNotFoundError, requires

_REQUIREMENT = re.compile(r"""^(?P<package>[^;\s]+(?:\s+[^;\s]+)*+)\s*;.*extra\s*==\s*['"](?P<extra>[\w-]+)['"]""")


@cache
def packages(extra: str) -> tuple[str, ...]:
    """Return the requirements of an extra, as the installed package declares them (`daft>=0.7.26`, …)."""
    try:
        declared = requires("headstart") or []
    except PackageNotFoundError:
        return ()
    found = [match for match in map(_REQUIREMENT.match, declared) if match is not None]
    return tuple(match["package"].replace(" ", "") for match in found if match["extra"] == extra)


def install_command(extra: str) -> str:
    """Return a pip command that installs what an extra needs.

    It names the packages themselves, so that it works however Headstart was installed: from an index, a wheel or a
    clone.
    """
    return "pip install " + " ".join(shlex.quote(package) for package in packages(extra) or (f"headstart[{extra}]",))
