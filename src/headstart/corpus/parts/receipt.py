"""The books of a corpus: at every step rows in = rows out + dropped by rule + duplicates + rejects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.core.errors import DataError

REJECTS, DUPLICATES = "rejects", "duplicates"
"""Reasons under which rows leave, beside the names of rules: those that begin with "duplicates." are duplicates."""


@dataclass
class StepCounts:
    """What one step took in and what became of it."""

    rows_in: int = 0
    rows_out: int = 0
    characters_in: int = 0
    characters_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows by the rule that dropped them."""
    counts: Counter[str] = field(default_factory=Counter)
    """What else the step counted."""

    def add(self, other: StepCounts) -> None:
        """Add another part's books of the same step."""
        for name in ("rows_in", "rows_out", "characters_in", "characters_out"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dropped.update(other.dropped)
        self.counts.update(other.counts)

    def line(self, name: str) -> str:
        """Return the step's receipt in one line."""
        rules = {rule: count for rule, count in self.dropped.items() if not _is_other(rule)}
        duplicates = sum(count for rule, count in self.dropped.items() if rule.startswith(DUPLICATES))
        return (
            f"{name}: {self.rows_in:,} rows in = {self.rows_out:,} out + {sum(rules.values()):,} dropped by rule + "
            f"{duplicates:,} duplicates + {self.dropped[REJECTS]:,} rejects"
        )


def _is_other(rule: str) -> bool:
    return rule == REJECTS or rule.startswith(DUPLICATES)


class RowCounts:
    """The books of all steps, in their order."""

    def __init__(self) -> None:
        """Open empty books."""
        self.steps: dict[str, StepCounts] = {}

    def __getitem__(self, step: str) -> StepCounts:
        return self.steps.setdefault(step, StepCounts())

    def check(self) -> None:
        """Raise unless every step's rows balance, and each step took in what the one before it gave out."""
        before: tuple[str, StepCounts] | None = None
        for name, step in self.steps.items():
            booked = step.rows_out + sum(step.dropped.values())
            if step.rows_in != booked:
                raise _unbalanced(f"step {name} took in {step.rows_in:,} rows and {booked:,} are accounted for")
            if before is not None and before[1].rows_out != step.rows_in:
                raise _unbalanced(
                    f"step {before[0]} gave out {before[1].rows_out:,} rows and step {name} took in {step.rows_in:,}"
                )
            before = name, step

    def require_few_rejects(self, step: str, share: float, first: str, folder: Path) -> None:
        """Raise where more of the rows that were read are rejects than the recipe allows."""
        books = self[step]
        rejects = books.dropped[REJECTS]
        if rejects > share * books.rows_in:
            raise DataError(
                f"{rejects:,} of {books.rows_in:,} rows cannot be read ({rejects / books.rows_in:.2%}); "
                f"the first is {first}",
                allowed=f"max_reject_share allows {share:.2%}",
                do=f"Mend the files (`headstart corpus explain {folder} --rule rejects` names the places), or raise "
                "max_reject_share if the loss is known",
            )

    def lines(self) -> list[str]:
        """Return the receipt, a line for each step."""
        return [step.line(name) for name, step in self.steps.items()]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the books as plain JSON types, in the order of the steps."""
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
    def from_json(cls, written: Iterable[Mapping[str, Any]]) -> RowCounts:
        """Read books that `to_json` wrote."""
        books = cls()
        for entry in written:
            numbers = {key: entry[key] for key in ("rows_in", "rows_out", "characters_in", "characters_out")}
            found = StepCounts(**numbers, dropped=Counter(entry["dropped"]), counts=Counter(entry["counts"]))
            books[entry["step"]].add(found)
        return books

    @classmethod
    def of_parts(cls, notes: Iterable[Mapping[str, Any]]) -> RowCounts:
        """Add up the books that finished parts noted."""
        books = cls()
        for note in notes:
            books.add(cls.from_json(note["books"]))
        return books

    def add(self, other: RowCounts) -> None:
        """Add another part's books."""
        for name, step in other.steps.items():
            self[name].add(step)


def _unbalanced(found: str) -> DataError:
    return DataError(
        found,
        allowed="Rows in = rows out + dropped by rule + duplicates + rejects",
        do="This is a fault of ours: please report it with the recipe that shows it",
    )
