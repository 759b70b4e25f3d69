"""Raw text → checkpoint: tokenizer, shards, backbone and objective under one recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core import artifact, registry
from headstart.core.config import BackboneSection, ObjectiveSection, Section, fingerprint
from headstart.core.contracts import Backbone, Batch, Objective, ParameterGroup, Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.randomness import integer
from headstart.corpus import readers
from headstart.corpus.readers import CorpusConfig
from headstart.evaluation.cost import CostConfig, PriceTag
from headstart.stages import card
from headstart.stages.forecast import flops_per_token
from headstart.stages.metering import RecordedMeter
from headstart.stages.prepare import prepare
from headstart.stages.run_folder import RunFolder
from headstart.tokens import tokenizer
from headstart.tokens.rows import PackedRows, cut
from headstart.tokens.tokenizer import TokenizerConfig
from headstart.training.compilation import choose_attention
from headstart.training.loop import Loop
from headstart.training.module import LossModule
from headstart.training.progress import tracking
from headstart.training.settings import TrainingSettings

VALIDATION_ROWS = 512
"""Held-out rows measured at each evaluation: 512 rows × 19 predictions keep the standard error near 0.03 nats."""


class PretrainTraining(TrainingSettings):
    """The loop's settings, and how long rows and how large batches are."""

    budget: str = "30 min"
    row_length: int = Field(128, ge=8, description="tokens in a row, [CLS] and [SEP] included")
    batch_tokens: int = Field(8192, ge=8, description="tokens in one update")


class PretrainRecipe(Section):
    """A whole pre-training run."""

    seed: int = 0
    output: Path
    corpus: CorpusConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    backbone: BackboneSection
    objective: ObjectiveSection
    training: PretrainTraining = PretrainTraining()
    cost: CostConfig = CostConfig()


class PretrainLearner:
    """Packed rows under an objective, as the loop sees them."""

    def __init__(
        self,
        model: torch.nn.Module,
        objective: Objective,
        rows: PackedRows,
        held_out: PackedRows,
        vocabulary: Vocabulary,
        seed: int,
    ) -> None:
        """Bring model, objective and rows together."""
        self.module = LossModule(model, objective)
        self.lengths: Sequence[int] | None = None
        self.objective, self.rows, self.held_out = objective, rows, held_out
        self.vocabulary, self.seed = vocabulary, seed

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Cut and corrupt the rows of some samples."""
        return self.objective.corrupt(self.rows.rows(samples), self.vocabulary, self.seed)

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions."""
        return self.objective.weight(batch)

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read."""
        return self.objective.tokens(batch)

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return all parameters as one group."""
        return [ParameterGroup(tuple(name for name, _ in self.module.named_parameters()))]

    def validate(self, limit: int = VALIDATION_ROWS) -> dict[str, float]:
        """Measure the objective on the first `limit` held-out rows with fixed masks."""
        device = next(self.module.parameters()).device
        sums: dict[str, float] = {}
        weight = 0.0
        self.module.eval()
        count = min(limit, len(self.held_out))
        for start in range(0, count, 64):
            samples = [Sample(0, index) for index in range(start, min(start + 64, count))]
            batch = self.objective.corrupt(self.held_out.rows(samples), self.vocabulary, seed=0)
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            with torch.no_grad():
                measured = self.objective.measure(self.module.model, batch)
            weight += self.objective.weight(batch)
            sums = {name: sums.get(name, 0.0) + value for name, value in measured.items()}
        return {name: value / max(weight, 1.0) for name, value in sums.items()}


def objective_of(recipe: PretrainRecipe) -> Objective:
    """Build the objective, and check that it trains the family before anything is prepared for it."""
    objective: Objective = registry.build("objectives", recipe.objective)
    family = recipe.backbone.family  # type: ignore[attr-defined]
    if family not in objective.families:
        raise RecipeError(
            f"objective {recipe.objective.name!r} does not train the family {family!r}",  # type: ignore[attr-defined]
            allowed=f"It fits: {', '.join(objective.families)}",
        )
    return objective


def build_model(recipe: PretrainRecipe, vocabulary: Vocabulary, objective: Objective) -> torch.nn.Module:
    """Build what is trained: the objective's networks, new by the recipe's backbone and seed."""
    backbone: Backbone = registry.build("backbones", recipe.backbone)

    def make(auto_class: str, part: str = "", scale: float = 1.0, **changes: Any) -> PreTrainedModel:
        return backbone.build(vocabulary, recipe.training.row_length, auto_class, scale, **changes)

    torch.manual_seed(integer(recipe.seed, 0, 0, "initial weights"))
    module = objective.assemble(make)
    for part in objective.parts(module).values():
        choose_attention(part)
    return module


def run(recipe: PretrainRecipe, quiet: bool = False) -> Path:
    """Pre-train by a recipe and return the folder, a plain Hugging Face checkpoint.

    A folder with an unfinished run of this recipe is continued, a finished one returned as it is.
    """
    folder = RunFolder(recipe.output, recipe, {"corpus": fingerprint(readers.sources(recipe.corpus))})
    if folder.status == "finished":
        return folder.path
    objective = objective_of(recipe)
    with RecordedMeter(folder.path / "cost.json", recipe.cost) as meter:
        prepared = prepare(recipe.corpus, recipe.tokenizer, recipe.seed, folder.path / "prepared", quiet)
        vocabulary = tokenizer.add_special(prepared.tokenizer, objective.special_tokens())
        shape = objective.row_shape(recipe.training.row_length)
        rows, held_out = (cut(split, vocabulary, shape) for split in (prepared.train, prepared.validation))
        learner = PretrainLearner(
            build_model(recipe, vocabulary, objective), objective, rows, held_out, vocabulary, recipe.seed
        )
        first = learner.batch([Sample(0, 0)])
        loop = Loop(
            learner,
            recipe.training,
            batch_size=max(1, recipe.training.batch_tokens // recipe.training.row_length),
            seed=recipe.seed,
            folder=folder.path,
            fingerprint=folder.fingerprint,
            flops_per_token=flops_per_token(learner.module, first, learner.tokens(first)),
        )
        start = loop.restore()
        with tracking("pretrain", folder.path / "logs", start.resumed_from, quiet) as trackers:
            outcome = loop.run([*trackers, meter])
    progress, parts = outcome.progress, objective.parts(learner.module.model)
    tag = replace(meter.tag(), tokens=progress.tokens, flops=progress.flops)
    facts: dict[str, Any] = {
        "recipe": folder.recipe,
        "seed": recipe.seed,
        "parents": prepared.parents,
        "data": prepared.facts,
        "progress": {"steps": progress.step, "tokens": progress.tokens, "epochs": progress.samples / len(rows)},
        "metrics": {"validation": outcome.validation, "unigram_entropy": prepared.train.counts["unigram_entropy_nats"]},
        "parameters": sum(p.numel() for p in parts[""].parameters()),
        "architecture": type(parts[""]).__name__,
        "cost": tag.to_dict(),
    }
    size = 4 * sum(p.numel() for p in learner.module.parameters())
    with artifact.published(folder.path, "checkpoint of pretrain", size_hint=size, **facts) as staging:
        for name, model in parts.items():
            model.save_pretrained(str(staging / name))
            longest = getattr(recipe.backbone, "max_length", recipe.training.row_length)
            tokenizer.save_for(prepared.tokenizer, staging / name, card.input_names(model), longest)
        (staging / "README.md").write_text(card.pretrained(facts), encoding="utf-8")
    return folder.path


def summary(folder: Path) -> str:
    """Say in a few lines what a finished run gave and cost."""
    facts = artifact.read_manifest(folder)
    measured = facts["metrics"]["validation"]
    values = ", ".join(f"{name} {value:.3f}" for name, value in measured.items())
    progress = facts["progress"]
    return "\n".join([
        f"{folder}: {facts['parameters']:,} parameters, {progress['tokens']:,} tokens, {progress['steps']:,} updates",
        f"held-out {values} (a unigram model's loss: {facts['metrics']['unigram_entropy']:.3f})",
        f"cost: {PriceTag.from_dict(facts['cost']).sentence()}",
    ])  # fmt: skip
