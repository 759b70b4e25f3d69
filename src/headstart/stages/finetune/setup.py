"""What all cells of a fine-tuning run share: the task, its rows, and the checkpoint, which is opened once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from headstart.backbones.checkpoint import max_positions
from headstart.core import registry
from headstart.core.config import Section
from headstart.core.contracts import Task
from headstart.core.data import InputSpec
from headstart.core.errors import RecipeError
from headstart.stages.finetune.applicable import applicable_methods
from headstart.stages.finetune.data import EncodedRows, Splits, read_data
from headstart.stages.finetune.forgetting import Probe
from headstart.stages.finetune.recipe import FinetuneRecipe, settings_of
from headstart.stages.pretrain.reopen import Pretraining
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
    probe: Probe | None = None
    """Measures forgetting, if the recipe asks for it."""

    @property
    def spec(self) -> InputSpec:
        """Return how the checkpoint reads text."""
        return self.rows.spec

    @property
    def chosen(self) -> str:
        """Return the name of the recipe's own adaptation."""
        return registry.name_of("adaptations", self.recipe.adaptation)

    def splits_for(self, seed: int) -> Splits:
        """Return the rows of one seed."""
        return self.splits.sample_train(self.recipe.data.train_rows, seed)


def open_setup(recipe: FinetuneRecipe) -> Setup:
    """Read the data, open the checkpoint and check everything that could stop a cell before the first one runs."""
    task: Task = registry.build("tasks", recipe.task)
    splits = read_data(recipe.data, task)
    # All cells replay the same pre-training data, so it is opened once.
    source = CheckpointFolder(recipe.model, task, recipe.seed, lru_cache(maxsize=1)(Pretraining))
    methods, left_out = applicable_methods(recipe, source)
    for section in methods.values():
        if section is not None:
            require_constant_batch_size(settings_of(recipe.training, section))
    spec = source.input_spec(recipe.training.max_length)
    _require_length(recipe, source, spec)
    setup = Setup(recipe, task, splits, source, EncodedRows(task, spec), methods, left_out)
    # Encoding finds unknown labels and texts that do not fit. The first cell uses the same features.
    task.show(setup.splits_for(recipe.seed).train, recipe.seed)
    setup.rows.encode("validation", splits.validation)
    setup.rows.encode("test", splits.test)
    return setup


def _require_length(recipe: FinetuneRecipe, source: CheckpointFolder, spec: InputSpec) -> None:
    limit = min(spec.tokenizer.model_max_length, max_positions(source.config) or spec.max_length)
    if spec.max_length > limit:
        raise RecipeError(
            f"training.max_length is {spec.max_length}, but {recipe.model} reads at most {limit} tokens",
            do="Lower training.max_length",
        )
