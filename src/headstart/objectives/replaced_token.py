"""Replaced-token detection: a small generator fills masks, and the model detects which tokens were replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch, Rows, Vocabulary
from headstart.core.lazy import F, torch, transformers
from headstart.core.randomness import generator
from headstart.objectives.base import BaseObjective
from headstart.objectives.masked_lm import MaskedLM, masked_logits
from headstart.objectives.positions import count_correct, scatter_to_rows, summed_loss

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from headstart.objectives.replaced_token_network import GeneratorAndDiscriminator


class ReplacedTokenOutput(NamedTuple):
    """The output of both networks for a batch."""

    generator_logits: torch.Tensor
    """The generator's logits at the masked positions, shape (rows, slots, vocabulary)."""
    discriminator_logits: torch.Tensor
    """The discriminator's logit that a token was replaced, shape (rows, length)."""
    replaced: torch.Tensor
    """1.0 where the discriminator's input token is not the original one, shape (rows, length)."""


class ReplacedToken(BaseObjective):
    """Detect which tokens of a row were replaced by the samples of a small generator (ELECTRA).

    The generator is a masked language model that reads [MASK] at every selected position, as in the paper (the
    published code leaves 15 % of them unchanged). The discriminator reads the generator's samples, which are never
    special tokens; a sample that equals the original token counts as original. The discriminator is the artifact; the
    generator is saved in its subfolder `generator/`.

    The loss is the generator's mean per masked token plus `discriminator_weight` times the discriminator's mean per
    ordinary token. Sampling inverts the cumulative distribution at one uniform number per token, which is part of the
    batch. It is as exact as Gumbel noise over the vocabulary and needs no random generator on the device.

    Embeddings are shared, so they have the discriminator's width. If the layout has a projection after its embeddings
    (electra, albert), the generator is narrower, which the paper found best; otherwise it has fewer layers, as in
    DeBERTa-v3 (He et al. 2021).
    """

    paper: ClassVar[str] = "Clark et al. 2020, ELECTRA"
    families: ClassVar[tuple[str, ...]] = ("encoder",)
    token_loss: ClassVar[str] = "generator_loss"
    """The entry of `measure` that is a cross-entropy over the vocabulary."""

    class Config(Section):
        """The number of masked tokens, the size of the generator and the weight of the discriminator's loss."""

        name: Literal["replaced_token"] = "replaced_token"
        rate: float = Field(0.15, gt=0, lt=1, description="fraction of a row's tokens to mask; ELECTRA used 0.15")
        generator: float = Field(
            0.25,
            gt=0,
            le=1,
            description="width (or depth) of the generator as a fraction of the discriminator's; ELECTRA: 1/4 to 1/2",
        )
        discriminator_weight: float = Field(
            50.0, gt=0, description="weight of the discriminator's loss; ELECTRA used 50"
        )
        temperature: float = Field(1.0, gt=0, description="sampling temperature of the generator; ELECTRA used 1")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or ReplacedToken.Config(**settings)
        self._masks = MaskedLM(rate=self.config.rate, mask=1.0, random=0.0)

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return generator and discriminator in one module; networks of a checkpoint keep their sizes."""
        from headstart.objectives.replaced_token_network import GeneratorAndDiscriminator

        fraction = self.config.generator
        generator = make("AutoModelForMaskedLM", "generator", fraction)
        if _has_discriminator(generator.config):
            discriminator = make("AutoModelForPreTraining")
        else:
            discriminator = make("AutoModelForTokenClassification", num_labels=1)
        if _embedding_width(generator) != _embedding_width(discriminator):
            # The width of the shared embeddings is known only after the discriminator is built.
            scale, changes = _generator_shape(fraction, discriminator)
            generator = make("AutoModelForMaskedLM", "generator", scale, **changes)
        return GeneratorAndDiscriminator(self, generator, discriminator)

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the discriminator as the main network and the generator in its subfolder."""
        from headstart.objectives.replaced_token_network import GeneratorAndDiscriminator

        assert isinstance(module, GeneratorAndDiscriminator)
        return {"": module.discriminator, "generator": module.generator}

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Mask the same number of tokens in every row; returns the inputs of both networks.

        These are input_ids (masked), positions, labels and weights as in masked_lm, originals (the unmasked ids), draws
        (a uniform number in [0, 1) per token), ordinary (1 if a token is not special) and barred (ids never sampled).
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

    def sample(self, generator_logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return a token for every masked position, shape (rows, slots), sampled from the generator's logits."""
        from headstart.objectives.cross_entropy import row_blocks

        draws = batch["draws"].gather(1, batch["positions"]).flatten().unsqueeze(1)  # (rows · slots, 1)
        samples = []
        # All steps run on one block of rows at a time, which stays in the CPU cache.
        for rows in row_blocks(generator_logits.flatten(0, 1)):
            logits = generator_logits.detach().flatten(0, 1)[rows].float() / self.config.temperature
            # All rows of a batch have the same barred ids.
            cdf = logits.index_fill_(1, batch["barred"][0], float("-inf")).softmax(1).cumsum(1)
            # The first token whose cumulative probability exceeds the draw, never one of probability 0.
            samples.append(torch.searchsorted(cdf, draws[rows] * cdf[:, -1:], right=True))
        return torch.cat(samples).clamp(max=generator_logits.shape[-1] - 1).view(generator_logits.shape[:2])

    def predict(self, module: GeneratorAndDiscriminator, batch: Batch) -> ReplacedTokenOutput:
        """Run the generator, fill the masks with its samples, and run the discriminator on the result."""
        generator_logits = masked_logits(module.generator, batch)
        originals = batch["originals"]
        # Unused slots write into an extra last column, which is removed.
        columns = torch.where(batch["weights"] > 0, batch["positions"], originals.shape[1])
        filled = F.pad(originals, (0, 1)).scatter(1, columns, self.sample(generator_logits, batch))[:, :-1]
        logits = module.discriminator(input_ids=filled, attention_mask=batch.get("attention_mask")).logits
        replaced = (filled != originals).float()
        return ReplacedTokenOutput(generator_logits, logits.float().reshape(filled.shape), replaced)

    def total_loss(self, output: ReplacedTokenOutput, batch: Batch) -> torch.Tensor:
        """Return the generator's loss plus the weighted loss of the discriminator, summed over the batch."""
        return _generator_loss(output, batch) + self.config.discriminator_weight * _discriminator_loss(output, batch)

    def loss(self, model: GeneratorAndDiscriminator, batch: Batch) -> torch.Tensor:
        """Return the generator's cross-entropy plus the discriminator's weighted one; dividing by `weight` averages."""
        return self.total_loss(self.predict(model, batch), batch)

    def measure(self, model: GeneratorAndDiscriminator, batch: Batch) -> dict[str, float]:
        """Return sums that become means when divided by `weight`.

        The generator's are per masked token, the others per ordinary token. `accuracy` is the discriminator's;
        1 - `replaced` is the accuracy of predicting that no token was replaced.
        """
        output, per_token = self.predict(model, batch), _per_token(batch)
        correct = (output.discriminator_logits > 0) == (output.replaced > 0)
        return {
            "loss": float(self.total_loss(output, batch)),
            "generator_loss": float(_generator_loss(output, batch)),
            "generator_accuracy": float(count_correct(output.generator_logits, batch)),
            "discriminator_loss": float(_discriminator_loss(output, batch)),
            "accuracy": float((correct * per_token).sum()),
            "replaced": float((output.replaced * per_token).sum()),
        }

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the arguments of `GeneratorAndDiscriminator`, with labels of shape (rows, length)."""
        names = ("input_ids", "draws", "ordinary", "barred")
        return {**{name: batch[name] for name in names}, "labels": scatter_to_rows(batch, "labels", -100)}


def _generator_loss(output: ReplacedTokenOutput, batch: Batch) -> torch.Tensor:
    return summed_loss(output.generator_logits, batch)


def _discriminator_loss(output: ReplacedTokenOutput, batch: Batch) -> torch.Tensor:
    losses = F.binary_cross_entropy_with_logits(output.discriminator_logits, output.replaced, reduction="none")
    return (losses * _per_token(batch)).sum()


def _per_token(batch: Batch) -> torch.Tensor:
    """Return the weight of each ordinary token, (rows, length), so that a row's sum is its number of masked tokens.

    A weighted sum over tokens divided by the number of masked tokens is then the mean per ordinary token.
    """
    weight = batch["weights"].sum(1) / batch["ordinary"].sum(1).clamp(min=1)
    return batch["ordinary"] * weight.unsqueeze(1)


def _has_discriminator(config: PreTrainedConfig) -> bool:
    """Return True if transformers has a class with a discriminator head for this layout."""
    model_class = transformers.MODEL_FOR_PRETRAINING_MAPPING.get(type(config), None)
    return isinstance(model_class, type) and issubclass(model_class, transformers.ElectraForPreTraining)


def _embedding_width(model: PreTrainedModel) -> int:
    table: Any = model.get_input_embeddings()
    return int(table.weight.shape[1])


def _generator_shape(fraction: float, discriminator: PreTrainedModel) -> tuple[float, dict[str, Any]]:
    """Return the width scale and the config changes of a generator that shares the discriminator's embeddings."""
    config = discriminator.config
    if hasattr(config, "embedding_size"):
        return fraction, {"embedding_size": config.embedding_size}
    layers = max(1, round(fraction * config.num_hidden_layers))
    changes: dict[str, Any] = {"num_hidden_layers": layers}
    if getattr(config, "layer_types", None):
        changes["layer_types"] = list(config.layer_types[:layers])
    return 1.0, changes
