"""Logs in JSON lines, one object per line with the step it belongs to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headstart.core import artifact


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file, without a last line cut off by a crash; empty if there is no file."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def drop_after(path: Path, step: int) -> None:
    """Remove the lines after the step at which a run resumes: the run will write them again."""
    kept = [line for line in read_jsonl(path) if line["step"] <= step]
    artifact.write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))
