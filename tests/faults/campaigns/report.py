"""The result of a campaign: how many faults were injected, how many were survived, and how."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Found:
    """The figures of one campaign."""

    fault: str
    goal: str
    count: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    messages: dict[str, str] = field(default_factory=dict)
    """What a run printed, by fault; the page lists it below the table."""

    @property
    def survived(self) -> int:
        """Return how many of the faults did no harm."""
        return self.count - len(self.failures)

    def row(self) -> str:
        """Return the row of the table in docs/results/reliability.md."""
        return f"| {self.fault} | {self.count:,} | {self.survived:,} | {self.goal} | {'; '.join(self.notes)} |"
