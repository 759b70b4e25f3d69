"""The study file: a question, a base recipe, axes, what is compared, claims and a budget."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from headstart.core.config import Section, require_unique_names, set_dotted
from headstart.studies.contrast import Contrast

Settings = dict[str, Any]
"""Settings by dotted key, such as `finetune.data.train_rows: 32`."""
SCRATCH = "scratch"
"""The only baseline that is a network: the adaptation of this name replaces the recipe's own."""


class Base(Section):
    """The recipe that every cell starts from."""

    pretrain: dict[str, Any] | None = Field(
        None, description="a pre-training recipe without `output`; its checkpoint becomes the `model` of fine-tuning"
    )
    finetune: dict[str, Any] | None = Field(
        None,
        description="a fine-tuning recipe without `output`, `seeds` and `compare_with`; without `adaptation`, only "
        "baselines run. It may be left out if there is a `probe`",
    )
    probe: dict[str, Any] | None = Field(
        None,
        description="probes of each model before it is fine-tuned: `{probes: [minimal_pairs], limit: 100}`, and `text` "
        "and `seed` as for `headstart probe`; `model` if nothing is pre-trained or fine-tuned",
    )

    @model_validator(mode="after")
    def _measures_something(self) -> Base:
        if self.finetune is None and self.probe is None:
            raise ValueError("it has neither `finetune` nor `probe`; add one, so that there is something to measure.")
        return self


class Claim(Section):
    """One claim of the study, as a sentence and as a contrast."""

    statement: str = Field(min_length=1, description="the claim as a sentence")
    contrast: str = Field(
        description="two sides, each of levels joined by /: `minilm/full > svm on mean(score)`; or two sides that "
        "differ by no more than a margin: `lora = full within 1.0`; ` on probe.minimal_pairs` compares a probe, "
        "`a < b on tokens_to(loss, 3.5)` the tokens of pre-training until a held-out value is reached"
    )
    where: dict[str, Any] = Field(
        {}, description="levels of the other axes that the claim covers, by axis: one level or a list; default: all"
    )
    versus: dict[str, Any] = Field(
        {},
        description="by axis, another level than that of `where`: the claim is then that the lead at `where` is larger "
        "than the lead at `versus`",
    )

    @field_validator("statement")
    @classmethod
    def _on_one_line(cls, value: str) -> str:
        return " ".join(value.split())

    @field_validator("contrast")
    @classmethod
    def _parses(cls, value: str) -> str:
        Contrast.parse(value)
        return value

    @model_validator(mode="after")
    def _compares_contexts(self) -> Claim:
        for axis, levels in self.versus.items():
            here, there = level_names(self.where.get(axis, [])), level_names(levels)
            if len(here) != 1 or len(there) != 1 or here == there:
                raise ValueError(
                    f"versus names {axis!r}; where and versus must each name another level of it: "
                    f"`where: {{{axis}: …}}, versus: {{{axis}: …}}`."
                )
        if self.versus and Contrast.parse(self.contrast).margin is not None:
            raise ValueError("versus compares leads, so the contrast must read `one > other`.")
        return self


class LevelOverride(Section):
    """Settings of the adaptation for a combination of levels, such as a learning rate tuned for one method."""

    where: dict[str, Any] = Field(min_length=1, description="levels by axis: one level or a list")
    adaptation: dict[str, Any] = Field(min_length=1, description="settings of the adaptation at these levels")


class Execution(Section):
    """Where the cells run; nothing here changes a result."""

    on: Literal["local", "ray", "slurm"] = Field(
        "local", description="worker processes on this machine, Ray, or Slurm (through submitit)"
    )
    workers: int | None = Field(None, ge=1, description="cells that run at the same time; default: as cores allow")
    threads: int = Field(1, ge=1, description="CPU threads per cell")
    retries: int = Field(1, ge=0, description="how often a failed cell is run again")
    address: str | None = Field(None, description="address of the Ray cluster; default: start a local one")
    slurm: dict[str, Any] = Field(
        {},
        description="parameters for submitit, such as `slurm_partition`; `cluster: local` tests them without Slurm",
    )


class Study(Section):
    """A grid of cells that answers one question."""

    verb: ClassVar[str] = "study"

    question: str = Field(min_length=1, description="the question that the study answers")
    output: Path = Field(description="folder for cells, tables and the report")
    base: Base
    axes: dict[str, dict[str, Any]] = Field(
        {}, description="axes by name: levels with their settings, or one setting with a list of values"
    )
    compare: list[str] = Field(
        [],
        description="axes whose levels are compared; the levels of all other axes are the contexts of the comparison",
    )
    baselines: list[str | dict[str, Any]] = Field(
        ["majority", "svm", "glove", SCRATCH],
        description="baselines in every context; `scratch` is the same network without pre-training and may have "
        "settings: `{name: scratch, learning_rate: 5e-4}`",
    )
    reference: str = Field("svm", description="the system that the table compares all others with")
    exclude: list[dict[str, Any]] = Field(
        [], description="combinations that do not run: levels by axis; `baseline` names a baseline"
    )
    overrides: list[LevelOverride] = Field([], description="settings of the adaptation for combinations of levels")
    seeds: int = Field(5, ge=1, description="number of seeds")
    first_seed: int = Field(0, ge=0, description="the first seed; the others follow")
    looks: list[int] = Field(
        [],
        description="numbers of seeds after which the claims are tested before all `seeds` have run; a claim that is "
        "decided needs no further seeds. Each test has a share of the 5 %, so that false verdicts stay as rare",
    )
    seed_pretraining: bool = Field(False, description="pre-train once per seed instead of once for all seeds")
    claims: list[Claim] = Field([], description="claims to test; each gets a verdict")
    overlap: bool = Field(
        True, description="count the test items that share 13 consecutive words with the pre-training corpus"
    )
    budget_hours: float | None = Field(
        None, gt=0, description="total hours of all cells; no cell starts after they are used up"
    )
    execution: Execution = Execution()

    @model_validator(mode="before")
    @classmethod
    def _without_finetuning(cls, values: Any) -> Any:
        """Without fine-tuning there are no labeled rows for baselines, and the first system is the reference."""
        base = values.get("base") if isinstance(values, dict) else None
        if not isinstance(base, dict) or base.get("probe") is None or base.get("finetune") is not None:
            return values
        axes, compared = values.get("axes"), values.get("compare") or []
        # What is no axis is refused by the check of the field.
        given = {name: axis for name, axis in axes.items() if isinstance(axis, dict)} if isinstance(axes, dict) else {}
        levels = [next(iter(_levels(name, axis)), "") for name, axis in given.items() if name in compared]
        return {"baselines": [], "reference": "/".join(levels) or "base", **values}

    @field_validator("axes")
    @classmethod
    def _expand_axes(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {name: _levels(name, axis) for name, axis in value.items()}

    @field_validator("baselines")
    @classmethod
    def _complete_baselines(cls, value: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
        for entry in value:
            if isinstance(entry, dict) and (not isinstance(entry.get("name"), str)):
                raise ValueError(
                    f"the entry {entry} has no name; write it as {{name: {SCRATCH}, learning_rate: 5e-4}}."
                )
            if isinstance(entry, dict) and entry["name"] != SCRATCH and len(entry) > 1:
                raise ValueError(f"{entry['name']} takes no settings; only {SCRATCH} does.")
        require_unique_names([_baseline_name(entry) for entry in value], "baseline")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        for name in self.compare:
            if name not in self.axes:
                raise ValueError(f"compare names {name!r}; the axes are: {', '.join(self.axes) or 'none'}.")
        self._check_levels()
        compared = [level for axis in self.compare for level in self.axes[axis]]
        # A contrast finds its systems by the names of their levels, so these must be unique.
        require_unique_names([*compared, *self.baseline_names, "base"], "compared level and baseline")
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
        self._check_probes()
        self._require_no_store()
        if self.looks and not self.claims:
            raise ValueError(f"looks is {self.looks}, but the study has no claims to test early; remove looks.")
        if self.looks != sorted({look for look in self.looks if 2 <= look < self.seeds}):
            raise ValueError(
                f"looks is {self.looks}; write increasing numbers of seeds from 2 to {self.seeds - 1}, because the "
                f"last test is after all {self.seeds} seeds."
            )
        return self

    def _require_no_store(self) -> None:
        """Check that no cell of fine-tuning has a checkpoint store, which a study does not use."""
        sections: dict[str, Any] = {"base": self.base.model_dump()}
        for axis, levels in self.axes.items():
            for level, settings in levels.items():
                tree: dict[str, Any] = {}
                for key, value in sorted(settings.items(), key=lambda item: item[0].count(".")):
                    set_dotted(tree, key, copy.deepcopy(value))
                sections[f"axes.{axis}.{level}"] = tree
        for where, section in sections.items():
            training = (section.get("finetune") or {}).get("training")
            if isinstance(training, dict) and training.get("checkpoint_store") is not None:
                raise ValueError(
                    f"{where}.finetune.training.checkpoint_store is set, but the checkpoints of a study's cells are "
                    "not uploaded. A study resumes from the finished cells in its output. Remove checkpoint_store, and "
                    "keep the output on a disk that outlives the machine."
                )

    def _check_probes(self) -> None:
        """Check that claims on probes name probes that run, and that there are labeled rows where they are needed."""
        probes = (self.base.probe or {}).get("probes") or []
        for claim in self.claims:
            contrast = Contrast.parse(claim.contrast)
            if contrast.level is not None and self.base.pretrain is None:
                raise ValueError(f"the contrast {claim.contrast!r} needs `base.pretrain`, whose tokens it compares.")
            if contrast.probe is not None and contrast.probe not in probes:
                raise ValueError(
                    f"the contrast {claim.contrast!r} names the probe {contrast.probe!r}; base.probe.probes has: "
                    f"{', '.join(map(str, probes)) or 'none'}."
                )
        if self.base.finetune is not None:
            return
        labeled = [name for name in self.baseline_names if name != SCRATCH]
        if labeled or self.overrides:
            what = f"the baseline {labeled[0]!r}" if labeled else "`overrides`"
            raise ValueError(f"{what} needs labeled rows, and base has no `finetune`; remove it, or add `finetune`.")

    def _check_levels(self) -> None:
        """Check that `exclude`, `overrides` and `claims` name axes and levels that exist."""
        conditions = [part for claim in self.claims for part in (claim.where, claim.versus)]
        conditions += [entry.where for entry in self.overrides]
        for condition in [*self.exclude, *conditions]:
            for axis, levels in condition.items():
                self._require_levels(axis, levels)
        for claim in self.claims:
            for axis in claim.where:
                if axis in self.compare or axis == "baseline":
                    raise ValueError(f"where names {axis!r}; the contrast selects the systems of a claim.")

    def _require_levels(self, axis: str, levels: Any) -> None:
        known = self.baseline_names if axis == "baseline" else list(self.axes.get(axis, ()))
        if not known:
            raise ValueError(f"{axis!r} is not an axis; the axes are: {', '.join(self.axes) or 'none'}.")
        for level in level_names(levels):
            if level not in known:
                raise ValueError(f"{axis} has no level {level!r}; its levels are: {', '.join(known)}.")

    @property
    def baseline_names(self) -> list[str]:
        """Return the names of the baselines."""
        return [_baseline_name(entry) for entry in self.baselines]

    @property
    def all_seeds(self) -> range:
        """Return the seeds of the study."""
        return range(self.first_seed, self.first_seed + self.seeds)


def _baseline_name(entry: str | dict[str, Any]) -> str:
    return entry if isinstance(entry, str) else str(entry["name"])


def level_names(levels: Any) -> list[str]:
    """Return one level or a list of levels as a list of names."""
    return [_level_name(level) for level in (levels if isinstance(levels, list) else [levels])]


def _level_name(value: Any) -> str:
    """Return the name of a level that is given by its value: `all` for null."""
    return "all" if value is None else str(value)


def _levels(name: str, axis: dict[str, Any]) -> dict[str, Any]:
    """Return the levels of an axis; one setting with a list of values becomes one level per value."""
    levels = axis
    if len(axis) == 1:
        (setting, values), *_ = axis.items()
        if isinstance(values, list) and values:
            levels = {_level_name(value): {setting: value} for value in values}
    if levels and all(isinstance(settings, dict) for settings in levels.values()):
        for key in (key for settings in levels.values() for key in settings):
            if str(key).partition(".")[0] not in Base.model_fields:
                raise ValueError(
                    f"the axis {name!r} sets {key!r}, which is not in a recipe of the study; "
                    f"write it as {' or '.join(f'{part}.{key}' for part in Base.model_fields)}."
                )
        return levels
    raise ValueError(
        f"the axis {name!r} must be levels with their settings, `full: {{finetune.adaptation: full}}`, "
        "or one setting with a list of values, `finetune.data.train_rows: [32, 128]`."
    )
