"""Write the license of every component of a CycloneDX file, and refuse one that cannot be used freely.

    python .ci/licenses.py dist/sbom.json dist/licenses.csv ENVIRONMENT/lib/python3.11/site-packages

A component without a license, or with only the GPL or AGPL, is refused. Several licenses of a component all apply,
unless an expression says OR. The file has no licenses in free text ("Apache 2.0 License"); those are read from the
metadata of the environment's packages.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

STRONG = re.compile(r"(?<!L)(?<!Lesser )\bA?GPL|(?:Affero|^GNU) General Public License", re.IGNORECASE)
"""Licenses whose terms extend to a program that is distributed together with the component."""


def licenses_of(component: dict[str, Any], declared: Mapping[str, str]) -> list[str]:
    """Return the licenses of a component; of an SPDX expression, the alternatives."""
    found = []
    for entry in component.get("licenses", []) or [{"expression": declared.get(component["name"], "")}]:
        if (expression := entry.get("expression")) is not None:
            found += re.split(r" OR ", expression)
        else:
            found.append(entry["license"].get("id") or entry["license"].get("name") or "")
    # Texts of licenses are as long as the files that they come from; the first line names them.
    return [name.strip().partition("\n")[0] for name in found if name.strip()]


def problem(component: dict[str, Any], declared: Mapping[str, str]) -> str | None:
    """Return why a component cannot be used, or None."""
    names = licenses_of(component, declared)
    if not names:
        return "has no license in its metadata"
    if all(STRONG.search(name) for name in names):
        return f"has {', '.join(names)}"
    return None


def main() -> None:
    """Write the table, and end with an error if a component is refused."""
    source, target, packages = map(Path, sys.argv[1:])
    declared = {each.metadata["Name"]: each.metadata.get("License", "") for each in distributions(path=[str(packages)])}
    components = json.loads(source.read_text(encoding="utf-8"))["components"]
    with target.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["package", "version", "license"])
        for each in sorted(components, key=lambda each: each["name"].lower()):
            table.writerow([each["name"], each.get("version", ""), " OR ".join(licenses_of(each, declared))])
    refused = [f"{each['name']} {reason}" for each in components if (reason := problem(each, declared))]
    print(f"{len(components)} packages with their licenses in {target}")
    if refused:
        raise SystemExit("licenses: " + "; ".join(refused))


if __name__ == "__main__":
    main()
