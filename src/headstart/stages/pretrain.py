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
from headstart.core.contracts import Batch, Objective, ParameterGroup, Sample, Vocabulary
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
from headstart.tokens.rows import PackedRows
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
        model: PreTrainedModel,
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
        return batch["input_ids"].numel()

    def predictions_per_token(self) -> float:
        """Return the share of tokens that is predicted, measured on one row."""
        batch = self.batch([Sample(0, 0)])
        return self.weight(batch) / self.tokens(batch)

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


def build_model(recipe: PretrainRecipe, vocabulary: Vocabulary) -> tuple[PreTrainedModel, Objective]:
    """Build objective and backbone, and check that they fit."""
    objective: Objective = registry.build("objectives", recipe.objective)
    backbone = registry.build("backbones", recipe.backbone)
    family = recipe.backbone.family  # type: ignore[attr-defined]
    if family not in objective.families:
        raise RecipeError(
            f"objective {recipe.objective.name!r} does not train the family {family!r}",  # type: ignore[attr-defined]
            allowed=f"It fits: {', '.join(objective.families)}",
        )
    torch.manual_seed(integer(recipe.seed, 0, 0, "initial weights"))
    return backbone.build(vocabulary, recipe.training.row_length, recipe.objective.name), objective  # type: ignore[attr-defined]


def run(recipe: PretrainRecipe, quiet: bool = False) -> Path:
    """Pre-train by a recipe and return the folder, a plain Hugging Face checkpoint.

    A folder with an unfinished run of this recipe is continued, a finished one returned as it is.
    """
    folder = RunFolder(recipe.output, recipe, {"corpus": fingerprint(readers.sources(recipe.corpus))})
    if folder.status == "finished":
        return folder.path
    with RecordedMeter(folder.path / "cost.json", recipe.cost) as meter:
        prepared = prepare(recipe.corpus, recipe.tokenizer, recipe.seed, folder.path / "prepared", quiet)
        rows = PackedRows(prepared.train, prepared.vocabulary, recipe.training.row_length)
        held_out = PackedRows(prepared.validation, prepared.vocabulary, recipe.training.row_length)
        model, objective = build_model(recipe, prepared.vocabulary)
        choose_attention(model)
        learner = PretrainLearner(model, objective, rows, held_out, prepared.vocabulary, recipe.seed)
        loop = Loop(
            learner,
            recipe.training,
            batch_size=max(1, recipe.training.batch_tokens // recipe.training.row_length),
            seed=recipe.seed,
            folder=folder.path,
            fingerprint=folder.fingerprint,
            flops_per_token=flops_per_token(model, recipe.training.row_length, learner.predictions_per_token()),
        )
        start = loop.restore()
        with tracking("pretrain", folder.path / "logs", start.resumed_from, quiet) as trackers:
            outcome = loop.run([*trackers, meter])
    progress = outcome.progress
    tag = replace(meter.tag(), tokens=progress.tokens, flops=progress.flops)
    facts: dict[str, Any] = {
        "recipe": folder.recipe,
        "seed": recipe.seed,
        "parents": prepared.parents,
        "data": prepared.facts,
        "progress": {"steps": progress.step, "tokens": progress.tokens, "epochs": progress.samples / len(rows)},
        "metrics": {"validation": outcome.validation, "unigram_entropy": prepared.train.counts["unigram_entropy_nats"]},
        "parameters": sum(p.numel() for p in model.parameters()),
        "cost": tag.to_dict(),
    }
    with artifact.published(
        folder.path, "checkpoint of pretrain", size_hint=4 * facts["parameters"], **facts
    ) as staging:
        model.save_pretrained(str(staging))
        prepared.tokenizer.model_input_names = card.input_names(model)
        # save_pretrained writes an attribute only if it stands among the first arguments too.
        prepared.tokenizer.init_kwargs["model_input_names"] = card.input_names(model)
        for leftover in ("local_files_only", "is_local"):
            prepared.tokenizer.init_kwargs.pop(leftover, None)
        prepared.tokenizer.model_max_length = getattr(recipe.backbone, "max_length", recipe.training.row_length)
        prepared.tokenizer.save_pretrained(str(staging))
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
