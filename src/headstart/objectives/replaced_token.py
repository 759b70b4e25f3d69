"""Replaced-token detection: a small generator fills masks, and the model tells its tokens from the original ones."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from transformers import MODEL_FOR_PRETRAINING_MAPPING, ElectraForPreTraining, PreTrainedConfig, PreTrainedModel

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch, Rows, Vocabulary
from headstart.core.randomness import generator
from headstart.objectives.base import BaseObjective, LossAndLogits
from headstart.objectives.cross_entropy import few_rows
from headstart.objectives.masked_lm import MaskedLM, masked_logits
from headstart.objectives.positions import slots, spread, summed_loss


class GeneratorAndDiscriminator(torch.nn.Module):
    """Two networks with one set of embeddings; called with the collator's keywords, it returns their mean loss.

    Trainer cannot write checkpoints of a module with shared weights: set `save_strategy="no"`, and save each of
    `ReplacedToken.parts` with its own `save_pretrained`.
    """

    def __init__(self, objective: ReplacedToken, generator: PreTrainedModel, discriminator: PreTrainedModel) -> None:
        """Give the generator the discriminator's embeddings: tokens, positions and segments, as the paper shares them.

        The layer norm after them stays each network's own. The generator's output layer is tied to the tokens.
        """
        super().__init__()
        self.objective, self.generator, self.discriminator = objective, generator, discriminator
        theirs: Any = discriminator.base_model.embeddings
        for name, table in theirs.named_children():
            if isinstance(table, torch.nn.Embedding):
                setattr(generator.base_model.embeddings, name, table)
        generator.tie_weights()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor,
        draws: torch.Tensor,
        ordinary: torch.Tensor,
        barred: torch.Tensor,
    ) -> LossAndLogits:
        """Return the mean loss, and the discriminator's logit for each token; takes what the collator gives."""
        batch = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "originals": torch.where(labels != -100, labels, input_ids),
            **slots(labels),
            "draws": draws,
            "ordinary": ordinary,
            "barred": barred,
        }
        played = self.objective.play(self, batch)
        total = self.objective.total(played, batch)
        return LossAndLogits(loss=total / batch["weights"].sum().clamp(min=1), logits=played.verdicts)


class Played(NamedTuple):
    """What the two networks made of a batch."""

    guesses: torch.Tensor
    """The generator's logits at the masked positions, shape (rows, positions, vocabulary)."""
    verdicts: torch.Tensor
    """The discriminator's logit that a token was replaced, shape (rows, length)."""
    replaced: torch.Tensor
    """1.0 where the token that the discriminator saw is not the original one, shape (rows, length)."""


class ReplacedToken(BaseObjective):
    """Tell the tokens that a small generator put into a row from those that stood there (ELECTRA).

    The generator is a masked language model that sees [MASK] at every chosen place, as the paper has it (its
    published code leaves 15 % of them as they are). What it samples there, special tokens barred, the discriminator
    sees; a sample that happens to be the original token counts as original. The discriminator is the artifact, the
    generator lies beside it in `generator/`.

    The loss is the generator's, per masked token, plus `discriminator_weight` times the discriminator's, per
    ordinary token of the row. Sampling takes one number per token out of the batch and inverts the cumulative
    distribution: as exact as Gumbel noise over the vocabulary, and free of any generator of chance.

    Embeddings are shared, so their width is the discriminator's. Where the layout has a projection behind its
    embeddings (electra, albert) the generator is narrower, which the paper found best; elsewhere it has fewer
    layers, as in DeBERTa-v3 (He et al. 2021).
    """

    paper: ClassVar[str] = "Clark et al. 2020, ELECTRA"
    families: ClassVar[tuple[str, ...]] = ("encoder",)
    token_loss: ClassVar[str] = "generator_loss"
    """The entry of `measure` that is an entropy of tokens."""

    class Config(Section):
        """How many tokens are masked, how large the generator is, and how the two losses are weighed."""

        name: Literal["replaced_token"] = "replaced_token"
        rate: float = Field(0.15, gt=0, lt=1, description="share of a row's tokens to mask; ELECTRA used 0.15")
        generator: float = Field(
            0.25, gt=0, le=1, description="the generator's share of the width, or depth; ELECTRA found 1/4 to 1/2 best"
        )
        discriminator_weight: float = Field(50.0, gt=0, description="of the discriminator's loss; ELECTRA used 50")
        temperature: float = Field(1.0, gt=0, description="of the generator's samples; ELECTRA used 1")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords."""
        self.config = config or ReplacedToken.Config(**settings)
        self._masks = MaskedLM(rate=self.config.rate, mask=1.0, random=0.0)

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return generator and discriminator under one roof; what is loaded is taken as it is."""
        share = self.config.generator
        generator = make("AutoModelForMaskedLM", "generator", share)
        if _has_discriminator(generator.config):
            discriminator = make("AutoModelForPreTraining")
        else:
            discriminator = make("AutoModelForTokenClassification", num_labels=1)
        if _embedding_width(generator) != _embedding_width(discriminator):
            # Only now is it known what the embeddings must look like to be shared.
            scale, changes = _generator_shape(share, discriminator)
            generator = make("AutoModelForMaskedLM", "generator", scale, **changes)
        return GeneratorAndDiscriminator(self, generator, discriminator)

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the discriminator as the artifact and the generator as its companion."""
        assert isinstance(module, GeneratorAndDiscriminator)
        return {"": module.discriminator, "generator": module.generator}

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Mask as many tokens in every row; returns what both networks read.

        Those are input_ids (masked), originals, positions, labels and weights as in masked_lm; draws in [0, 1) from
        which samples are made, ordinary (1 where a token is no special one), and barred, the ids never sampled.
        """
        draws = [
            generator(seed, sample.epoch, sample.index, "replaced_token").random(rows.ids.shape[1], dtype=np.float32)
            for sample in rows.samples
        ]
        barred = np.flatnonzero(vocabulary.special)
        return {
            **self._masks.corrupt(rows, vocabulary, seed),
            "originals": torch.from_numpy(rows.ids.copy()),
            "draws": torch.from_numpy(np.stack(draws)),
            "ordinary": torch.from_numpy((~vocabulary.special[rows.ids]).astype(np.float32)),
            "barred": torch.from_numpy(np.tile(barred, (len(rows.ids), 1))),
        }

    def sample(self, guesses: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Draw a token for every masked position from the generator's logits; the labels are not looked at."""
        draws = batch["draws"].gather(1, batch["positions"]).flatten().unsqueeze(1)
        found = []
        # A few rows at a time, all of whose steps stay in the processor's cache.
        for rows in few_rows(guesses.flatten(0, 1)):
            logits = guesses.detach().flatten(0, 1)[rows].float() / self.config.temperature
            # What is barred is the same in every row of a batch.
            mass = logits.index_fill_(1, batch["barred"][0], float("-inf")).softmax(1).cumsum(1)
            # The first token whose cumulative mass exceeds the draw: never one without any mass.
            found.append(torch.searchsorted(mass, draws[rows] * mass[:, -1:], right=True))
        return torch.cat(found).clamp(max=guesses.shape[-1] - 1).view(guesses.shape[:2])

    def play(self, module: GeneratorAndDiscriminator, batch: Batch) -> Played:
        """Let the generator fill the masks and the discriminator judge every token of the result."""
        guesses = masked_logits(module.generator, batch)
        originals = batch["originals"]
        # Slots without a prediction write into a column of their own, which is cut off.
        places = torch.where(batch["weights"] > 0, batch["positions"], originals.shape[1])
        shown = F.pad(originals, (0, 1)).scatter(1, places, self.sample(guesses, batch))[:, :-1]
        verdicts = module.discriminator(input_ids=shown, attention_mask=batch.get("attention_mask")).logits
        return Played(guesses, verdicts.float().reshape(shown.shape), (shown != originals).float())

    def total(self, played: Played, batch: Batch) -> torch.Tensor:
        """Return the sum of both losses over the batch, the discriminator's weighed."""
        return _generator_loss(played, batch) + self.config.discriminator_weight * _discriminator_loss(played, batch)

    def loss(self, model: GeneratorAndDiscriminator, batch: Batch) -> torch.Tensor:
        """Return the generator's cross-entropy plus the weighed discriminator's, summed in the measure of `weight`."""
        return self.total(self.play(model, batch), batch)

    def measure(self, model: GeneratorAndDiscriminator, batch: Batch) -> dict[str, float]:
        """Return sums that divided by `weight` are means: per masked token for the generator, per ordinary one else.

        `accuracy` is the discriminator's; 1 - `replaced` is what calling every token original would give.
        """
        played, per_token = self.play(model, batch), _per_token(batch)
        right = (played.guesses.argmax(-1) == batch["labels"]) * batch["weights"]
        judged = (played.verdicts > 0) == (played.replaced > 0)
        return {
            "loss": float(self.total(played, batch)),
            "generator_loss": float(_generator_loss(played, batch)),
            "generator_accuracy": float(right.sum()),
            "discriminator_loss": float(_discriminator_loss(played, batch)),
            "accuracy": float((judged * per_token).sum()),
            "replaced": float((played.replaced * per_token).sum()),
        }

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the keywords of the two networks' roof; labels are as long as the rows."""
        names = ("input_ids", "draws", "ordinary", "barred")
        return {**{name: batch[name] for name in names}, "labels": spread(batch, "labels", -100)}


def _generator_loss(played: Played, batch: Batch) -> torch.Tensor:
    return summed_loss(played.guesses, batch)


def _discriminator_loss(played: Played, batch: Batch) -> torch.Tensor:
    losses = F.binary_cross_entropy_with_logits(played.verdicts, played.replaced, reduction="none")
    return (losses * _per_token(batch)).sum()


def _per_token(batch: Batch) -> torch.Tensor:
    """Return what an ordinary token counts: a row's tokens together as much as its masked ones.

    So the sum over rows stays a sum, and divided by the number of masked tokens it is the mean per token.
    """
    share = batch["weights"].sum(1) / batch["ordinary"].sum(1).clamp(min=1)
    return batch["ordinary"] * share.unsqueeze(1)


def _has_discriminator(config: PreTrainedConfig) -> bool:
    """Say whether transformers has a class with a discriminator's head for this layout."""
    found = MODEL_FOR_PRETRAINING_MAPPING.get(type(config), None)
    return isinstance(found, type) and issubclass(found, ElectraForPreTraining)


def _embedding_width(model: PreTrainedModel) -> int:
    table: Any = model.get_input_embeddings()
    return int(table.weight.shape[1])


def _generator_shape(share: float, discriminator: PreTrainedModel) -> tuple[float, dict[str, Any]]:
    """Return the scale of the width, and the fields of the config, of a generator with embeddings to share."""
    config = discriminator.config
    if hasattr(config, "embedding_size"):
        return share, {"embedding_size": config.embedding_size}
    layers = max(1, round(share * config.num_hidden_layers))
    changes: dict[str, Any] = {"num_hidden_layers": layers}
    if getattr(config, "layer_types", None):
        changes["layer_types"] = list(config.layer_types[:layers])
    return 1.0, changes
