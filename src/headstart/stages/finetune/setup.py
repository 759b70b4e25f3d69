"""What all cells of a fine-tuning run share: the task, its rows, and the checkpoint, which is opened once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from headstart.checkpoint.names import folder_of
from headstart.core import registry
from headstart.core.config import Section
from headstart.core.contracts import Task
from headstart.core.data import Examples, InputSpec
from headstart.stages.finetune.applicable import applicable_methods, require_adaptable
from headstart.stages.finetune.data import EncodedRows, Splits, read_data
from headstart.stages.finetune.finished import unlabeled
from headstart.stages.finetune.forgetting import Probe
from headstart.stages.finetune.framing import framing_of
from headstart.stages.finetune.leakage import find_overlaps, warn_about_overlaps
from headstart.stages.finetune.recipe import FinetuneRecipe, settings_of
from headstart.stages.finetune.truncation import TruncationCounts, require_length
from headstart.stages.pretrain.reopen import Pretraining
from headstart.stages.runs.manifest import AdaptedStart, Machine, SplitOverlap, method_name
from headstart.tasks import labelled
from headstart.tasks.source import CheckpointFolder
from headstart.training.phases import require_constant_batch_size


@dataclass(frozen=True)
class Setup:
    """A recipe with everything that its cells share."""

    recipe: FinetuneRecipe
    task: Task
    splits: Splits
    """All labeled rows; a cell samples its training rows from them."""
    source: CheckpointFolder
    rows: EncodedRows
    methods: dict[str, Section | None] = field(default_factory=dict)
    """The methods to run, the recipe's own adaptation first; a baseline has no section."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Methods that cannot be used here, each with the reason."""
    unlabeled: Mapping[Path, Examples] = field(default_factory=dict)
    """The rows of each file without labels that a method trains on."""
    probe: Probe | None = None
    """Measures forgetting, if the recipe asks for it."""
    overlaps: list[SplitOverlap] = field(default_factory=list)
    """Rows that two splits share, for each pair of splits that has any."""
    machines: list[Machine] = field(default_factory=list)
    """The machines that the cells were trained on."""
    truncation: TruncationCounts = field(default_factory=TruncationCounts)
    """Counts the rows whose texts are longer than `training.max_length`."""
    adapted: AdaptedStart | None = None
    """How the checkpoint was pre-trained further, if the recipe has `adapt_first`."""
    trained_with: tuple[str, ...] = ()
    """The other tasks of a run of `headstart multitask`, whose models share the body of the chosen method."""

    @property
    def spec(self) -> InputSpec:
        """Return how the checkpoint reads text."""
        return self.rows.spec

    @property
    def chosen(self) -> str:
        """Return the name of the recipe's own adaptation; `multitask_…` if it was trained with other tasks."""
        return method_name(registry.name_of("adaptations", self.recipe.adaptation), self.trained_with)

    def splits_for(self, seed: int) -> Splits:
        """Return the rows of one seed."""
        return self.splits.sample_train(self.recipe.data.train_rows, seed)

    def unlabeled_for(self, section: Section | None) -> Examples | None:
        """Return the rows without labels that a method trains on, with placeholder labels; None if it has none."""
        path = getattr(section, "texts", None)
        return None if path is None else self.unlabeled[path]


def open_setup(recipe: FinetuneRecipe) -> Setup:
    """Return what the cells share, after every check; rows that two splits share are counted and reported."""
    setup = check_setup(recipe)
    splits = setup.splits
    overlaps = find_overlaps(trained_rows(recipe, splits), splits.validation, splits.test)
    warn_about_overlaps(overlaps)
    return replace(setup, overlaps=overlaps)


def check_setup(recipe: FinetuneRecipe) -> Setup:
    """Read the data, open the checkpoint and check everything that could stop a cell before the first one runs."""
    task: Task = registry.build("tasks", recipe.task)
    splits = read_data(recipe.data, task)
    source = _open_checkpoint(recipe.model, task, recipe.seed)
    methods, left_out = applicable_methods(recipe, source)
    require_adaptable(recipe, source)
    for section in methods.values():
        if section is not None:
            require_constant_batch_size(settings_of(recipe.training, section))
    spec = source.input_spec(recipe.training.max_length)
    require_length(spec.max_length, source.config, recipe.model)
    texts = {getattr(section, "texts", None) for section in methods.values()}
    rows_of = {path: _read_unlabeled(path, task) for path in texts if path is not None}
    setup = Setup(recipe, task, splits, source, EncodedRows(task, spec), methods, left_out, rows_of)
    # Encoding finds unknown labels and texts that do not fit. The first cell uses the same features.
    task.show(setup.splits_for(recipe.seed).train, recipe.seed)
    setup.rows.encode("validation", splits.validation)
    setup.rows.encode("test", splits.test)
    return setup


def _read_unlabeled(path: Path, task: Task) -> Examples:
    """Read the text columns of a file without labels; each row gets a placeholder label of the right type."""
    columns = [column for column in task.columns("train") if not column.is_gold]
    values = labelled.read(path, columns).columns
    rows = list(zip(*values.values(), strict=True))
    return replace(unlabeled(task, [row[0] if len(columns) == 1 else row for row in rows]), source=str(path))


def with_checkpoint(setup: Setup, path: Path) -> Setup:
    """Return the same setup with another checkpoint of the same network."""
    source = _open_checkpoint(path, setup.task, setup.recipe.seed)
    return replace(setup, source=source, rows=EncodedRows(setup.task, source.input_spec(setup.spec.max_length)))


def _open_checkpoint(path: str | Path, task: Task, seed: int) -> CheckpointFolder:
    # All cells replay the same pre-training data, so it is opened once.
    return CheckpointFolder(path, task, seed, lru_cache(maxsize=1)(Pretraining), framing_of(folder_of(path)))


def trained_rows(recipe: FinetuneRecipe, splits: Splits) -> Examples:
    """Return the training rows of all seeds, some of them several times."""
    count = recipe.data.train_rows
    if count is None or count >= len(splits.train):
        return splits.train
    samples = [splits.sample_train(count, seed).train for seed in range(recipe.seed, recipe.seed + recipe.seeds)]
    columns = {name: [value for rows in samples for value in rows.columns[name]] for name in splits.train.columns}
    return Examples(columns, [label for rows in samples for label in rows.labels], splits.train.source)
