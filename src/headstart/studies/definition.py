"""What a study file says: the question, a base recipe, axes, what is compared, claims and a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from headstart.core.config import Section, require_own_names
from headstart.studies.contrast import Contrast

Level = dict[str, Any]
"""Settings by dotted name, as `finetune.data.train_rows: 32`."""
SCRATCH = "scratch"
"""The one baseline that is a network: the adaptation of this name in place of the recipe's own."""


class Base(Section):
    """The recipe that every cell starts from."""

    pretrain: dict[str, Any] | None = Field(
        None, description="a pre-training recipe without output; its checkpoint is the `model` of fine-tuning"
    )
    finetune: dict[str, Any] = Field(
        description="a fine-tuning recipe without output, seeds and company; without `adaptation`, baselines alone run"
    )


class Claim(Section):
    """What the study is to find out, in words and as a contrast."""

    statement: str = Field(min_length=1, description="the claim as a sentence")
    contrast: str = Field(description="two sides, each levels joined by /: `minilm/full > svm on mean(score)`")
    where: dict[str, Any] = Field({}, description="levels of the other axes that it speaks of, one or a list for each")

    @field_validator("statement")
    @classmethod
    def _in_one_line(cls, value: str) -> str:
        return " ".join(value.split())

    @field_validator("contrast")
    @classmethod
    def _readable(cls, value: str) -> str:
        Contrast.parse(value)
        return value


class LevelOverride(Section):
    """What the adaptation is set to where some levels meet: a rate that was chosen for one method on one network."""

    where: dict[str, Any] = Field(min_length=1, description="levels by axis, one or a list for each")
    adaptation: dict[str, Any] = Field(min_length=1, description="settings of the adaptation there")


class Execution(Section):
    """Who computes; nothing here changes a result."""

    on: Literal["local", "ray", "slurm"] = Field("local", description="worker processes here, Ray, or Slurm (submitit)")
    workers: int | None = Field(None, ge=1, description="cells at a time; by default as many as cores allow")
    threads: int = Field(1, ge=1, description="cores of each cell")
    retries: int = Field(1, ge=0, description="how often a cell that failed is tried again")
    address: str | None = Field(None, description="Ray's cluster; a local one is started where none is given")
    slurm: dict[str, Any] = Field(
        {}, description="submitit's parameters, as slurm_partition; `cluster: local` tries them without Slurm"
    )


class Study(Section):
    """A grid of cells that answers one question."""

    verb: ClassVar[str] = "study"

    question: str = Field(min_length=1, description="what the study is to answer, as a question")
    output: Path = Field(description="folder of the cells, tables and report")
    base: Base
    axes: dict[str, dict[str, Any]] = Field(
        {}, description="by name: levels with their settings, or one setting with a list of values"
    )
    compare: list[str] = Field(
        [], description="axes whose levels are compared; the others are the contexts they are compared in"
    )
    baselines: list[str | dict[str, Any]] = Field(
        ["majority", "svm", "glove", SCRATCH],
        description="rows beside, in every context; scratch is the same network, and may have settings of its own: "
        "{name: scratch, learning_rate: 5e-4}",
    )
    reference: str = Field("svm", description="the row that every other one is tested against in the table")
    exclude: list[dict[str, Any]] = Field(
        [], description="combinations that are left out: levels by axis; `baseline` names one of those"
    )
    overrides: list[LevelOverride] = Field([], description="settings of the adaptation for combinations of levels")
    seeds: int = Field(5, ge=1, description="how many seeds")
    first_seed: int = Field(0, ge=0)
    seed_pretraining: bool = Field(False, description="pre-train anew for every seed, not once for all")
    claims: list[Claim] = Field([], description="claims under test, each with a verdict")
    overlap: bool = Field(True, description="count test items whose 13-grams stand in the pre-training corpus")
    budget_hours: float | None = Field(
        None, gt=0, description="time of all cells together, past which no further one is begun"
    )
    execution: Execution = Execution()

    @field_validator("axes")
    @classmethod
    def _spelt_out(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {name: _levels(name, axis) for name, axis in value.items()}

    @field_validator("baselines")
    @classmethod
    def _whole_entries(cls, value: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
        for entry in value:
            if isinstance(entry, dict) and (not isinstance(entry.get("name"), str)):
                raise ValueError(
                    f"the entry {entry} has no name; write it as {{name: {SCRATCH}, learning_rate: 5e-4}}."
                )
            if isinstance(entry, dict) and entry["name"] != SCRATCH and len(entry) > 1:
                raise ValueError(f"{entry['name']} takes no settings; of the baselines, {SCRATCH} alone does.")
        require_own_names([_baseline_name(entry) for entry in value], "baseline")
        return value

    @model_validator(mode="after")
    def _known(self) -> Study:
        for name in self.compare:
            if name not in self.axes:
                raise ValueError(f"compare names {name!r}; the axes are: {', '.join(self.axes) or 'none'}.")
        spoken_of = [*(claim.where for claim in self.claims), *(entry.where for entry in self.overrides)]
        for entry in [*self.exclude, *spoken_of]:
            for axis, wanted in entry.items():
                self._require_levels(axis, wanted)
        for claim in self.claims:
            for axis in claim.where:
                if axis in self.compare or axis == "baseline":
                    raise ValueError(f"where names {axis!r}; which systems a claim speaks of is said by its contrast.")
        compared = [level for axis in self.compare for level in self.axes[axis]]
        # A contrast finds its systems by the names of their levels.
        require_own_names([*compared, *self.baseline_names, "base"], "compared level and baseline")
        names = {*compared, *self.baseline_names, "base"}
        for part in self.reference.split("/"):
            if part not in names:
                raise ValueError(f"reference is {self.reference!r}; it may name: {', '.join(sorted(names))}.")
        for claim in self.claims:
            for part in Contrast.parse(claim.contrast).parts:
                if part not in names:
                    raise ValueError(
                        f"the contrast {claim.contrast!r} names {part!r}; it may name: {', '.join(sorted(names))}."
                    )
        return self

    def _require_levels(self, axis: str, wanted: Any) -> None:
        known = self.baseline_names if axis == "baseline" else list(self.axes.get(axis, ()))
        if not known:
            raise ValueError(f"{axis!r} is no axis; the axes are: {', '.join(self.axes) or 'none'}.")
        for level in named(wanted):
            if level not in known:
                raise ValueError(f"{axis} has no level {level!r}; its levels: {', '.join(known)}.")

    @property
    def baseline_names(self) -> list[str]:
        """Return the baselines by name."""
        return [_baseline_name(entry) for entry in self.baselines]

    @property
    def all_seeds(self) -> range:
        """Return the seeds of the study."""
        return range(self.first_seed, self.first_seed + self.seeds)


def _baseline_name(entry: str | dict[str, Any]) -> str:
    return entry if isinstance(entry, str) else str(entry["name"])


def named(wanted: Any) -> list[str]:
    """Return one level or a list of them as names."""
    return [level_name(one) for one in (wanted if isinstance(wanted, list) else [wanted])]


def level_name(value: Any) -> str:
    """Return the name of a level that is given by its value: `all` for none."""
    return "all" if value is None else str(value)


def _levels(name: str, axis: dict[str, Any]) -> dict[str, Any]:
    """Write an axis of one setting and a list of values as levels."""
    levels = axis
    if len(axis) == 1:
        (setting, values), *_ = axis.items()
        if isinstance(values, list) and values:
            levels = {level_name(value): {setting: value} for value in values}
    if levels and all(isinstance(settings, dict) for settings in levels.values()):
        for key in (key for settings in levels.values() for key in settings):
            if str(key).partition(".")[0] not in Base.model_fields:
                raise ValueError(
                    f"the axis {name!r} sets {key!r}, which no recipe of a study holds; "
                    f"write it as {' or '.join(f'{part}.{key}' for part in Base.model_fields)}."
                )
        return levels
    raise ValueError(
        f"the axis {name!r} must be levels with their settings, `full: {{finetune.adaptation: full}}`, "
        "or one setting with a list of values, `finetune.data.train_rows: [32, 128]`."
    )
