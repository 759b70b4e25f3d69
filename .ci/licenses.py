"""Write the license of every component of a CycloneDX file, and refuse one that cannot be used freely.

    python .ci/licenses.py dist/sbom.json dist/licenses.csv

A component without a license, or with only the GPL or AGPL, is refused. Several licenses of a component all apply,
unless an expression says OR.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

STRONG = re.compile(r"(?<!L)(?<!Lesser )\bA?GPL|(?:Affero|^GNU) General Public License", re.IGNORECASE)
"""Licenses whose terms extend to a program that is distributed together with the component."""


def licenses_of(component: dict[str, Any]) -> list[str]:
    """Return the licenses of a component; of an SPDX expression, the alternatives."""
    found = []
    for entry in component.get("licenses", []):
        if expression := entry.get("expression"):
            found += re.split(r" OR ", expression)
        else:
            found.append(entry["license"].get("id") or entry["license"].get("name") or "")
    # Texts of licenses are as long as the files that they come from; the first line names them.
    return [name.strip().partition("\n")[0] for name in found if name.strip()]


def problem(component: dict[str, Any]) -> str | None:
    """Return why a component cannot be used, or None."""
    names = licenses_of(component)
    if not names:
        return "has no license in its metadata"
    if all(STRONG.search(name) for name in names):
        return f"has {', '.join(names)}"
    return None


def main() -> None:
    """Write the table, and end with an error if a component is refused."""
    source, target = map(Path, sys.argv[1:])
    components = json.loads(source.read_text(encoding="utf-8"))["components"]
    with target.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["package", "version", "license"])
        for each in sorted(components, key=lambda each: each["name"].lower()):
            table.writerow([each["name"], each.get("version", ""), " OR ".join(licenses_of(each))])
    refused = [f"{each['name']} {problem(each)}" for each in components if problem(each)]
    print(f"{len(components)} packages with their licenses in {target}")
    if refused:
        raise SystemExit("licenses: " + "; ".join(refused))


if __name__ == "__main__":
    main()
