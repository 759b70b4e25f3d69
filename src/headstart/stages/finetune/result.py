"""The result of one method with one seed, and the file that holds it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from headstart.core import artifact
from headstart.evaluation.cost import PriceTag
from headstart.evaluation.forgetting import Forgetting

RESULT = "result.json"


@dataclass(frozen=True)
class MethodDetails:
    """How a result was obtained. An adaptation and a baseline fill different fields."""

    train_rows: int | None = None
    chosen: dict[str, Any] | None = None
    """Baselines: the settings that were selected on the validation rows."""
    trainable_parameters: int | None = None
    """Adaptations: the number of parameters that were trained or fitted. None for a baseline."""
    parameters: int | None = None
    steps: int | None = None
    best_step: int | None = None
    """The step whose weights were kept."""
    learning_rate: float | None = None
    architecture: str | None = None
    attention: str | None = None
    """The attention implementation of the network."""
    notes: list[str] = field(default_factory=list)
    """Sentences about the encoding of the test rows, such as how many were truncated."""
    truncated: dict[str, int] = field(default_factory=dict)
    """Adaptations: the number of rows with a truncated text, by split."""
    forgetting: Forgetting | None = None
    decision: dict[str, Any] = field(default_factory=dict)
    """Adaptations: the temperature and the threshold that were chosen on the validation rows."""
    overlap: list[dict[str, Any]] = field(default_factory=list)
    """Adaptations: rows that two splits share, as in the manifest of a run."""
    mixture: dict[str, Any] = field(default_factory=dict)
    """Adaptations: the learned weights of the layers and their scale, if the network mixes its layers."""
    predict_seconds: float | None = None
    """The time to predict the test rows in batches, without encoding them; None where it was not measured."""

    share: float | None = None
    """The fraction of all training draws that this task received; None where it was trained alone."""
    adapted: dict[str, Any] = field(default_factory=dict)
    """Adaptations: the pre-training before fine-tuning, as in a manifest, if the recipe has `adapt_first`."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the fields that do not apply to the method."""
        if self.trainable_parameters is None:
            return {"chosen": self.chosen, "train_rows": self.train_rows}
        names = ("trainable_parameters", "parameters", "steps", "best_step", "learning_rate", "train_rows")
        values = {name: getattr(self, name) for name in (*names, "architecture", "notes")}
        # Added later, and written only where they have a value.
        forgetting = None if self.forgetting is None else asdict(self.forgetting)
        added = {
            "attention": self.attention, "truncated": self.truncated or None, "forgetting": forgetting,
            "overlap": self.overlap or None, "decision": self.decision or None, "mixture": self.mixture or None,
            "predict_seconds": self.predict_seconds, "adapted": self.adapted or None, "share": self.share,
        }  # fmt: skip
        return values | {name: value for name, value in added.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MethodDetails:
        """Read what `to_dict` returned; unknown keys are ignored and missing ones get their defaults."""
        known = {item.name: values[item.name] for item in fields(cls) if item.name in values}
        if known.get("forgetting") is not None:
            known["forgetting"] = Forgetting(**known["forgetting"])
        return cls(**known)


@dataclass(frozen=True)
class MethodResult:
    """Predictions, scores and cost of one method with one seed."""

    method: str
    seed: int
    predictions: list[Any]
    """One prediction per test row."""
    test: dict[str, float]
    validation: dict[str, float] = field(default_factory=dict)
    """Scores on the validation rows; the first one selects the seed. Empty for a baseline."""
    details: MethodDetails = field(default_factory=MethodDetails)
    cost: PriceTag = field(default_factory=PriceTag)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        plain = {name: getattr(self, name) for name in ("method", "seed", "predictions", "test", "validation")}
        return {**plain, "details": self.details.to_dict(), "cost": self.cost.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MethodResult:
        """Read what `to_dict` returned; unknown keys are ignored."""
        return cls(
            values["method"], values["seed"], values["predictions"], values["test"], values.get("validation", {}),
            MethodDetails.from_dict(values.get("details", {})), PriceTag.from_dict(values.get("cost", {})),
        )  # fmt: skip


def cell_name(method: str, seed: int) -> str:
    """Return the name of a method with a seed, for folders."""
    return f"{method}-seed-{seed}"


def write(
    folder: Path, values: Mapping[str, Any], kind: str, files: Mapping[str, Path] | None = None, **facts: Any
) -> None:
    """Publish a folder with `result.json` and copies of those `files` that exist; `facts` go into its manifest."""
    with artifact.staged(folder, kind, **facts) as staging:
        (staging / RESULT).write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
        for name, source in (files or {}).items():
            if source.is_file():
                shutil.copy2(source, staging / name)


def read(folder: Path) -> dict[str, Any]:
    """Return the values in a folder's `result.json`."""
    values: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return values
