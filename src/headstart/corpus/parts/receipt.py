"""The row counts of a corpus: for every step, rows in = rows out + dropped by rule + duplicates + rejects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.core.errors import DataError

REJECTS, DUPLICATES = "rejects", "duplicates"
"""Reasons for dropping a row, in addition to the names of rules. "duplicates." precedes the kind of a duplicate."""


@dataclass
class StepCounts:
    """The rows that one step read, kept and dropped."""

    rows_in: int = 0
    rows_out: int = 0
    characters_in: int = 0
    characters_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows by the rule that dropped them."""
    counts: Counter[str] = field(default_factory=Counter)
    """Other things that the step counted."""

    def add(self, other: StepCounts) -> None:
        """Add the counts of another part for the same step."""
        for name in ("rows_in", "rows_out", "characters_in", "characters_out"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dropped.update(other.dropped)
        self.counts.update(other.counts)

    def line(self, name: str) -> str:
        """Return the counts of the step as one line."""
        rules = {rule: count for rule, count in self.dropped.items() if not _is_other(rule)}
        duplicates = sum(count for rule, count in self.dropped.items() if rule.startswith(DUPLICATES))
        return (
            f"{name}: {self.rows_in:,} rows in = {self.rows_out:,} out + {sum(rules.values()):,} dropped by rule + "
            f"{duplicates:,} duplicates + {self.dropped[REJECTS]:,} rejects"
        )


def _is_other(rule: str) -> bool:
    return rule == REJECTS or rule.startswith(DUPLICATES)


class RowCounts:
    """The counts of all steps, in their order."""

    def __init__(self) -> None:
        """Start without any step."""
        self.steps: dict[str, StepCounts] = {}

    def __getitem__(self, step: str) -> StepCounts:
        return self.steps.setdefault(step, StepCounts())

    def check(self) -> None:
        """Raise unless the rows of every step balance, and each step reads what the one before it kept."""
        before: tuple[str, StepCounts] | None = None
        for name, step in self.steps.items():
            counted = step.rows_out + sum(step.dropped.values())
            if step.rows_in != counted:
                raise _unbalanced(f"step {name} read {step.rows_in:,} rows, but {counted:,} are accounted for")
            if before is not None and before[1].rows_out != step.rows_in:
                raise _unbalanced(
                    f"step {before[0]} kept {before[1].rows_out:,} rows, but step {name} read {step.rows_in:,}"
                )
            before = name, step

    def require_few_rejects(self, step: str, max_fraction: float, first: str, folder: Path) -> None:
        """Raise if a larger fraction of the rows was rejected than the recipe allows; `first` describes one reject."""
        counts = self[step]
        rejects = counts.dropped[REJECTS]
        if rejects > max_fraction * counts.rows_in:
            raise DataError(
                f"{rejects:,} of {counts.rows_in:,} rows cannot be read ({rejects / counts.rows_in:.2%}); "
                f"the first is {first}",
                allowed=f"max_reject_share allows {max_fraction:.2%}",
                do=f"Fix the files (`headstart corpus explain {folder} --rule rejects` lists the rows), or raise "
                "max_reject_share if the loss is acceptable",
            )

    def lines(self) -> list[str]:
        """Return one line of text per step."""
        return [step.line(name) for name, step in self.steps.items()]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the counts as plain JSON types, in the order of the steps."""
        return [
            {
                "step": name,
                "rows_in": step.rows_in,
                "rows_out": step.rows_out,
                "characters_in": step.characters_in,
                "characters_out": step.characters_out,
                "dropped": dict(sorted(step.dropped.items())),
                "counts": dict(sorted(step.counts.items())),
            }
            for name, step in self.steps.items()
        ]

    @classmethod
    def from_json(cls, entries: Iterable[Mapping[str, Any]]) -> RowCounts:
        """Read the counts that `to_json` returned."""
        counts = cls()
        for entry in entries:
            numbers = {key: entry[key] for key in ("rows_in", "rows_out", "characters_in", "characters_out")}
            step = StepCounts(**numbers, dropped=Counter(entry["dropped"]), counts=Counter(entry["counts"]))
            counts[entry["step"]].add(step)
        return counts

    @classmethod
    def of_parts(cls, notes: Iterable[Mapping[str, Any]]) -> RowCounts:
        """Add up the counts in the notes of finished parts."""
        total = cls()
        for note in notes:
            total.add(cls.from_json(note["books"]))
        return total

    def add(self, other: RowCounts) -> None:
        """Add the counts of another part."""
        for name, step in other.steps.items():
            self[name].add(step)


def _unbalanced(found: str) -> DataError:
    return DataError(
        found,
        allowed="Rows in = rows out + dropped by rule + duplicates + rejects",
        do="Internal error, please report it with the recipe that causes it",
    )
