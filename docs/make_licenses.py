"""Write docs/licenses.md, the license of every dependency: `python docs/make_licenses.py`.

The requirements of pyproject.toml are followed through the metadata of the installed packages. A package that is not
installed is listed without a license; run it where the extras are installed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licenses.md"
HEADER = """\
# Licenses of the dependencies

<!-- Written by docs/make_licenses.py; do not edit. -->

Headstart is licensed under Apache-2.0. It contains no code of the packages below; pip installs them beside it. The
table lists them with the packages that they need. Licenses are those in the metadata of the versions with which the
page was written (Linux, x86_64, CPU build of torch). "core" is always installed, the other names are extras.
`make licenses` writes this page, and `make sbom` a CycloneDX file of an environment.

| package | version | license | needed by |
|---|---|---|---|
"""
LEFT_OUT = {"all", "dev", "release", "site"}
"""Extras of other extras, and tools that users do not install."""
LONGEST = 60


def requirements() -> dict[str, list[Requirement]]:
    """Return the direct requirements of pyproject.toml by extra; those that are always installed are "core"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    return {name: [Requirement(line) for line in lines] for name, lines in groups.items() if name not in LEFT_OUT}


def closure(wanted: Iterable[Requirement]) -> Iterator[str]:
    """Yield the names of packages and of all that they need on this platform."""
    pending = [(canonicalize_name(each.name), frozenset(each.extras)) for each in wanted if applies(each, frozenset())]
    seen = set()
    while pending:
        name, extras = pending.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        yield name
        for line in (installed(name).requires or []) if installed(name) else []:
            needed = Requirement(line)
            if applies(needed, extras):
                pending.append((canonicalize_name(needed.name), frozenset(needed.extras)))


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """True if a requirement holds on this platform, with one of the given extras or none."""
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def installed(name: str) -> Distribution | None:
    """Return the installed package, or None."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def license_of(package: Distribution) -> str:
    """Return the license that the metadata gives: the SPDX expression, else the classifiers, else the free text."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    kinds = [line.split(" :: ")[-1] for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    if specific := [kind for kind in kinds if kind != "OSI Approved"]:
        return ", ".join(specific)
    first_line = str(metadata.get("License") or "").strip().partition("\n")[0].strip()
    return first_line if 0 < len(first_line) <= LONGEST else "see its license file"


def render() -> str:
    """Return the page for the installed packages."""
    needed: dict[str, list[str]] = {}
    for group, wanted in requirements().items():
        for name in set(closure(wanted)):
            if "core" not in needed.setdefault(name, []):
                needed[name].append(group)
    lines = []
    for name in sorted(needed):
        package = installed(name)
        version, text = (package.version, license_of(package)) if package else ("–", "not installed when written")
        lines.append(f"| {name} | {version.partition('+')[0]} | {text.replace('|', '/')} | {', '.join(needed[name])} |")
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
