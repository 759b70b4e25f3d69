"""The base of next_sentence and sentence_order: rows of two segments, a classifier of pairs, optional masked LM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
from pydantic import Field

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker, Objective
from headstart.core.data import Batch, Ints, Rows, RowShape, Vocabulary
from headstart.core.errors import ArtifactError, DataError
from headstart.core.lazy import F, torch
from headstart.core.randomness import generator
from headstart.objectives.base import BaseObjective, ObjectiveCollator
from headstart.objectives.masked_lm import MaskedLM, masked_outputs
from headstart.objectives.positions import count_correct, scatter_to_rows, summed_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headstart.objectives.sentence_pairs_network import PairNetwork


class PairConfig(Section):
    """The fields that both objectives on sentence pairs share."""

    masked_lm: bool = Field(True, description="predict masked tokens too; false: classify pairs only")
    rate: float = Field(0.15, gt=0, lt=1, description="fraction of tokens to mask, with masked_lm; BERT used 0.15")


class PairOutput(NamedTuple):
    """The output of a network for a batch of sentence pairs."""

    masked_logits: torch.Tensor | None
    """Logits at the masked positions, shape (rows, slots, vocabulary); None without masked LM."""
    sentence_logits: torch.Tensor
    """Logits of each row's label, shape (rows, 2)."""


class SentencePairs(BaseObjective, ABC):
    """Base class of objectives that classify two segments; a subclass implements `arrange`.

    With masked LM, the loss is the mean over masked tokens plus the mean over rows, weighted by their number of masked
    tokens. Without it, the loss is the mean over rows.
    """

    families: ClassVar[tuple[str, ...]] = ("encoder",)
    token_loss: ClassVar[str] = "masked_loss"
    """The entry of `measure` that is a cross-entropy over the vocabulary."""
    pooling: ClassVar[str] = "cls"
    """The pooling that the objective trains with masked LM, and that the classifiers of its checkpoints use.

    Without masked LM, the network is a classifier with a pooling of its own, which its config names already.
    """

    def __init__(self, config: PairConfig) -> None:
        """Accept the `Config` of a subclass."""
        self.settings = config
        self._masks = MaskedLM(rate=config.rate)

    @abstractmethod
    def arrange(self, first: Ints, second: Ints, negative: Ints, rng: np.random.Generator) -> tuple[Ints, Ints, int]:
        """Return the segments A and B, and the label: 0 if they are consecutive in the text, 1 otherwise."""

    def row_shape(self, seq_length: int) -> RowShape:
        """Return `[CLS] A [SEP] B [SEP]`."""
        return RowShape(seq_length, segments=True)

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return a sequence classifier or, with masked LM, a network with both heads.

        The config of the network names the pooling that is trained, so fine-tuning starts from it.
        """
        from headstart.objectives.heads import load_or_create_head
        from headstart.objectives.sentence_pairs_network import PairNetwork, SentenceHead, pooler_settings

        if not self.settings.masked_lm:
            return PairNetwork(self, make("AutoModelForSequenceClassification", num_labels=2), None)
        network = _with_both_heads(make)
        if network is not None:
            return PairNetwork(self, network, None)
        network = make("AutoModelForMaskedLM")
        settings = pooler_settings(network.config)
        head = load_or_create_head(network, "sentence_head", SentenceHead, output_size=2, **settings)
        if hasattr(network.config, "classifier_pooling"):
            network.config.classifier_pooling = self.pooling
        return PairNetwork(self, network, head)

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the network as the main part, and the `SentenceHead` in a subfolder if there is one."""
        from headstart.objectives.sentence_pairs_network import PairNetwork

        assert isinstance(module, PairNetwork)
        return {"": module.network} | ({} if module.head is None else {"sentence_head": module.head})

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Arrange segments and mask tokens; returns the network's inputs, sentence_labels and weights.

        With masked LM, the batch also contains positions and labels; `rate` applies to a row without its padding.
        """
        if rows.second_start is None or rows.negative_ids is None:
            raise DataError("the rows do not have two segments", allowed="They must be [CLS] A [SEP] B [SEP]")
        pairs = [self._arrange_row(rows, row, vocabulary, seed) for row in range(len(rows.samples))]
        ids, segments = np.full_like(rows.ids, vocabulary.pad), np.zeros_like(rows.ids)  # (rows, length)
        for row, (first, second, _) in enumerate(pairs):
            size = len(first) + len(second) + 3
            ids[row, :size] = [vocabulary.cls, *first, vocabulary.sep, *second, vocabulary.sep]
            segments[row, len(first) + 2 : size] = 1
        masked = self._mask(ids, rows, vocabulary, seed) if self.settings.masked_lm else {}
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy((ids != vocabulary.pad).astype(np.int64)),
            "token_type_ids": torch.from_numpy(segments),
            "sentence_labels": torch.tensor([label for _, _, label in pairs]),
            "weights": torch.ones(len(ids), 1),
            **masked,
        }

    def predict(self, module: PairNetwork, batch: Batch) -> PairOutput:
        """Return the logits of the sentence labels and, with masked LM, of the masked tokens."""
        from headstart.objectives.heads import recorded_states
        from headstart.objectives.sentence_pairs_network import SENTENCE_LOGITS

        network = module.network
        extra = {"token_type_ids": batch["token_type_ids"]} if module.uses_token_types else {}
        if "positions" not in batch:
            output = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **extra)
            return PairOutput(None, output.logits)
        with recorded_states(network) as states:
            output = masked_outputs(network, batch, **extra)
        if module.head is not None:
            cls = batch["attention_mask"].argmax(1)  # the position of [CLS], which left padding shifts
            return PairOutput(output.logits, module.head(states[0][torch.arange(len(cls)), cls]))
        return PairOutput(output.prediction_logits, output[SENTENCE_LOGITS[type(network)]])

    def loss(self, model: PairNetwork, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy of masked tokens and sentence labels in nats; dividing by `weight` averages it."""
        output = self.predict(model, batch)
        return masked_loss(output, batch) + sentence_loss(output, batch)

    def measure(self, model: PairNetwork, batch: Batch) -> dict[str, float]:
        """Return sums that become means when divided by `weight`; with masked LM, `accuracy` is of masked tokens."""
        output = self.predict(model, batch)
        masked, sentence = float(masked_loss(output, batch)), float(sentence_loss(output, batch))
        correct = (output.sentence_logits.argmax(-1) == batch["sentence_labels"]) * batch["weights"].sum(1)
        if output.masked_logits is None:
            return {"loss": sentence, "accuracy": float(correct.sum())}
        return {
            "loss": masked + sentence,
            "masked_loss": masked,
            "sentence_loss": sentence,
            "accuracy": float(count_correct(output.masked_logits, batch)),
            "sentence_accuracy": float(correct.sum()),
        }

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the arguments of `PairNetwork`, with masked-LM labels of shape (rows, length)."""
        names = ("input_ids", "attention_mask", "token_type_ids", "sentence_labels")
        labels = {"labels": scatter_to_rows(batch, "labels", -100)} if "positions" in batch else {}
        return {name: batch[name] for name in names} | labels

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> ObjectiveCollator:
        """Return a collator for examples of two segments; `PairCollator` describes their columns."""
        return PairCollator(cast(Objective, self), tokenizer, seed)

    def _arrange_row(self, rows: Rows, row: int, vocabulary: Vocabulary, seed: int) -> tuple[Ints, Ints, int]:
        assert rows.second_start is not None and rows.negative_ids is not None
        sample, start = rows.samples[row], int(rows.second_start[row])
        rng = generator(seed, sample.epoch, sample.index, "sentence pairs")
        ids, negative = (tokens[tokens != vocabulary.pad] for tokens in (rows.ids[row], rows.negative_ids[row]))
        first, second = ids[1 : start - 1], ids[start:-1]
        # The token of the text's language stays where it is: moved, it would give the label away.
        tags = int(np.argmin([*np.isin(first, list(vocabulary.added.values())), False]))
        a, b, label = self.arrange(first[tags:], second, negative, rng)
        return np.concatenate([first[:tags], a]), b, label

    def _mask(self, ids: Ints, rows: Rows, vocabulary: Vocabulary, seed: int) -> dict[str, torch.Tensor]:
        """Mask each row without its padding; returns input_ids, positions, labels and weights of all rows."""
        slot_count = self._masks.predictions_per_row(ids.shape[1])
        names = ("positions", "labels", "weights")
        masked: dict[str, torch.Tensor] = {name: torch.zeros(len(ids), slot_count, dtype=torch.int64) for name in names}
        masked |= {"input_ids": torch.from_numpy(ids.copy()), "weights": torch.zeros(len(ids), slot_count)}
        for row, sample in enumerate(rows.samples):
            tokens = ids[row, ids[row] != vocabulary.pad]
            for name, tensor in self._masks.corrupt(Rows(tokens[None], [sample]), vocabulary, seed).items():
                masked[name][row, : tensor.shape[1]] = tensor[0]
        return masked


class PairCollator(ObjectiveCollator):
    """Collates pairs of consecutive texts that were tokenized with `tokenizer(first, second)`.

    `input_ids` must be `[CLS] A [SEP] B [SEP]`. next_sentence takes its negatives from a column `negative_input_ids`,
    the token ids of another text without special tokens. It does not use the other examples of the batch, because the
    noise of an example must not depend on them. Set `remove_unused_columns=False`, so that Trainer keeps that column.
    """

    def rows_of(self, example: dict[str, Any]) -> Rows:
        """Return an example as a row of two segments; raises if it does not have two."""
        rows = super().rows_of(example)
        ends = np.flatnonzero(rows.ids[0] == self.vocabulary.sep)
        if len(ends) != 2 or ends[1] != rows.ids.shape[1] - 1 or not 1 < ends[0] < ends[1] - 1:
            raise DataError(
                f"an example has [SEP] at {ends.tolist()} of its {rows.ids.shape[1]} tokens",
                allowed="It must be [CLS] A [SEP] B [SEP]",
                do="Tokenize two consecutive texts as a pair: tokenizer(first, second)",
            )
        negative_ids: Sequence[int] = example.get("negative_input_ids", ())
        return Rows(rows.ids, rows.samples, (), ends[:1] + 1, np.asarray([negative_ids], dtype=np.int64))


def _with_both_heads(make: ModelMaker) -> PreTrainedModel | None:
    """Return a network with a masked-LM head and a sentence head, or None if transformers has no such class."""
    from headstart.objectives.sentence_pairs_network import SENTENCE_LOGITS

    try:
        network = make("AutoModelForPreTraining")
    except (ValueError, ArtifactError):  # transformers has no such class for this layout
        return None
    return network if type(network) in SENTENCE_LOGITS else None


def masked_loss(output: PairOutput, batch: Batch) -> torch.Tensor:
    """Return the summed cross-entropy of the masked tokens in nats, which is 0 without masked LM."""
    if output.masked_logits is None:
        return output.sentence_logits.new_zeros(())
    return summed_loss(output.masked_logits, batch)


def sentence_loss(output: PairOutput, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of the sentence labels in nats, weighted by the predictions of each row and summed."""
    losses = F.cross_entropy(output.sentence_logits.float(), batch["sentence_labels"], reduction="none")
    return (losses * batch["weights"].sum(1)).sum()
