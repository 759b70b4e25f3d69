"""What next_sentence and sentence_order share: rows of two segments, a verdict on each, masks if wished."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from transformers import AlbertForPreTraining, BertForPreTraining, PreTrainedModel, PreTrainedTokenizerBase

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker, Objective
from headstart.core.data import Batch, Ints, Rows, RowShape, Vocabulary
from headstart.core.errors import ArtifactError, DataError
from headstart.core.randomness import generator
from headstart.objectives.base import BaseObjective, LossAndLogits, ObjectiveCollator
from headstart.objectives.heads import Head, HeadConfig, beside, recorded_states
from headstart.objectives.masked_lm import MaskedLM, masked_outputs
from headstart.objectives.positions import hits, slots, spread, summed_loss

SENTENCE_LOGITS = {BertForPreTraining: "seq_relationship_logits", AlbertForPreTraining: "sop_logits"}
"""The classes of transformers that predict masked tokens and judge two segments, and where the verdict stands."""


class PairSection(Section):
    """What both ways to judge two segments may set."""

    masked_lm: bool = Field(True, description="predict masked tokens too; false: judge the segments alone")
    rate: float = Field(0.15, gt=0, lt=1, description="share of tokens to mask, where they are; BERT used 0.15")


class SentenceHead(Head):
    """A verdict on two segments from the state at [CLS]: BERT's pooler and classifier."""

    def __init__(self, config: HeadConfig) -> None:
        """Build the two layers."""
        super().__init__(config)
        self.dense = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.out = torch.nn.Linear(config.hidden_size, config.output_size)
        self.post_init()

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """Return the logits of the verdict."""
        verdict: torch.Tensor = self.out(torch.tanh(self.dense(state)))
        return verdict


class PairNetwork(torch.nn.Module):
    """A network that judges two segments, by its own head or by ours; called with the collator's keywords, its loss."""

    def __init__(self, objective: SentencePairs, network: PreTrainedModel, head: SentenceHead | None) -> None:
        """Hold all three; segment ids are given to a network that has embeddings for them."""
        super().__init__()
        self.objective, self.network, self.head = objective, network, head
        self.knows_segments = getattr(network.config, "type_vocab_size", 0) > 1

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor,
        sentence_labels: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> LossAndLogits:
        """Return the mean loss, and the logits of the verdicts."""
        predictions = {"weights": torch.ones_like(input_ids[:, :1]).float()} if labels is None else slots(labels)
        batch = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "sentence_labels": sentence_labels,
            **predictions,
        }
        judged = self.objective.predict(self, batch)
        total = _masked_loss(judged, batch) + _sentence_loss(judged, batch)
        return LossAndLogits(loss=total / batch["weights"].sum().clamp(min=1), logits=judged.verdicts)


class Judged(NamedTuple):
    """What a network made of a batch."""

    guesses: torch.Tensor | None
    """Logits at the masked positions, where there are any."""
    verdicts: torch.Tensor
    """Logits of the verdict on each row, shape (rows, 2)."""


class SentencePairs(BaseObjective, ABC):
    """Base of the objectives that judge two segments; a subclass says by `arrange` what is shown.

    With masks the loss is the mean over masked tokens plus the mean over rows, each row counted by its masked tokens;
    alone it is the mean over rows.
    """

    families: ClassVar[tuple[str, ...]] = ("encoder",)
    token_loss: ClassVar[str] = "masked_loss"
    """The entry of `measure` that is an entropy of tokens."""

    def __init__(self, config: PairSection) -> None:
        """Take the section of a recipe."""
        self.settings = config
        self._masks = MaskedLM(rate=config.rate)

    @abstractmethod
    def arrange(self, first: Ints, second: Ints, stranger: Ints, chance: np.random.Generator) -> tuple[Ints, Ints, int]:
        """Return what is shown as A and as B, and the label: 0 as they stood in the text, 1 otherwise."""

    def row_shape(self, seq_length: int) -> RowShape:
        """Ask for `[CLS] A [SEP] B [SEP]`."""
        return RowShape(seq_length, segments=True)

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the network: a classifier of rows alone, or one with both heads, ours beside it if it lacks one."""
        if not self.settings.masked_lm:
            return PairNetwork(self, make("AutoModelForSequenceClassification", num_labels=2), None)
        network = _with_both_heads(make)
        if network is not None:
            return PairNetwork(self, network, None)
        network = make("AutoModelForMaskedLM")
        return PairNetwork(self, network, beside(network, "sentence_head", SentenceHead, output_size=2))

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the network as the artifact, and our head as its companion where there is one."""
        assert isinstance(module, PairNetwork)
        return {"": module.network} | ({} if module.head is None else {"sentence_head": module.head})

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Arrange segments and mask tokens; returns all that the network reads, sentence_labels and weights.

        With masks there are positions and labels too, in each row as many as the rate asks for without its padding.
        """
        if rows.second is None or rows.negative_ids is None:
            raise DataError("the rows are not of two segments", allowed="[CLS] A [SEP] B [SEP]")
        shown = [self._arranged(rows, row, vocabulary, seed) for row in range(len(rows.samples))]
        ids, segments = np.full_like(rows.ids, vocabulary.pad), np.zeros_like(rows.ids)
        for row, (first, second, _) in enumerate(shown):
            size = len(first) + len(second) + 3
            ids[row, :size] = [vocabulary.cls, *first, vocabulary.sep, *second, vocabulary.sep]
            segments[row, len(first) + 2 : size] = 1
        masks = self._masked(ids, rows, vocabulary, seed) if self.settings.masked_lm else {}
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy((ids != vocabulary.pad).astype(np.int64)),
            "token_type_ids": torch.from_numpy(segments),
            "sentence_labels": torch.tensor([label for _, _, label in shown]),
            "weights": torch.ones(len(ids), 1),
            **masks,
        }

    def predict(self, module: PairNetwork, batch: Batch) -> Judged:
        """Judge the segments, and predict what is masked."""
        network = module.network
        more = {"token_type_ids": batch["token_type_ids"]} if module.knows_segments else {}
        if "positions" not in batch:
            output = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **more)
            return Judged(None, output.logits)
        with recorded_states(network) as states:
            output = masked_outputs(network, batch, **more)
        if module.head is not None:
            opening = batch["attention_mask"].argmax(1)  # [CLS], wherever padding put it
            return Judged(output.logits, module.head(states[0][torch.arange(len(opening)), opening]))
        return Judged(output.prediction_logits, output[SENTENCE_LOGITS[type(network)]])

    def loss(self, model: PairNetwork, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy of masked tokens and of verdicts in nats, summed in the measure of `weight`."""
        judged = self.predict(model, batch)
        return _masked_loss(judged, batch) + _sentence_loss(judged, batch)

    def measure(self, model: PairNetwork, batch: Batch) -> dict[str, float]:
        """Return sums that divided by `weight` are means; with masks, `accuracy` is that of the masked tokens."""
        judged = self.predict(model, batch)
        masked, sentence = float(_masked_loss(judged, batch)), float(_sentence_loss(judged, batch))
        right = (judged.verdicts.argmax(-1) == batch["sentence_labels"]) * batch["weights"].sum(1)
        if judged.guesses is None:
            return {"loss": sentence, "accuracy": float(right.sum())}
        return {
            "loss": masked + sentence,
            "masked_loss": masked,
            "sentence_loss": sentence,
            "accuracy": float(hits(judged.guesses, batch)),
            "sentence_accuracy": float(right.sum()),
        }

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the keywords of the module; labels of masked tokens are as long as the rows."""
        names = ("input_ids", "attention_mask", "token_type_ids", "sentence_labels")
        labels = {"labels": spread(batch, "labels", -100)} if "positions" in batch else {}
        return {name: batch[name] for name in names} | labels

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> ObjectiveCollator:
        """Return a collator for examples of two segments; see PairCollator for what they hold."""
        return PairCollator(cast(Objective, self), tokenizer, seed)

    def _arranged(self, rows: Rows, row: int, vocabulary: Vocabulary, seed: int) -> tuple[Ints, Ints, int]:
        assert rows.second is not None and rows.negative_ids is not None
        sample, start = rows.samples[row], int(rows.second[row])
        chance = generator(seed, sample.epoch, sample.index, "sentence pairs")
        ids, stranger = (one[one != vocabulary.pad] for one in (rows.ids[row], rows.negative_ids[row]))
        return self.arrange(ids[1 : start - 1], ids[start:-1], stranger, chance)

    def _masked(self, ids: Ints, rows: Rows, vocabulary: Vocabulary, seed: int) -> dict[str, torch.Tensor]:
        slot_count = self._masks.predictions_per_row(ids.shape[1])
        names = ("positions", "labels", "weights")
        whole: dict[str, torch.Tensor] = {name: torch.zeros(len(ids), slot_count, dtype=torch.int64) for name in names}
        whole |= {"input_ids": torch.from_numpy(ids.copy()), "weights": torch.zeros(len(ids), slot_count)}
        for row, sample in enumerate(rows.samples):
            bare = ids[row, ids[row] != vocabulary.pad]
            for name, tensor in self._masks.corrupt(Rows(bare[None], [sample]), vocabulary, seed).items():
                whole[name][row, : tensor.shape[1]] = tensor[0]
        return whole


class PairCollator(ObjectiveCollator):
    """Collates examples that were tokenized as pairs, `tokenizer(first, second)`, of consecutive text.

    `input_ids` must be `[CLS] A [SEP] B [SEP]`. next_sentence takes its negatives from a column `negative_input_ids`,
    token ids of another text without special tokens, and not from the other examples of the batch: what is drawn must
    not depend on them. Trainer keeps that column if told `remove_unused_columns=False`.
    """

    def rows_of(self, example: dict[str, Any]) -> Rows:
        """Return an example as a row of two segments; raises if it is none."""
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
    """Return a network that has a head for masked tokens and one for verdicts, where transformers has such a class."""
    try:
        found = make("AutoModelForPreTraining")
    except (ValueError, ArtifactError):  # transformers knows no such class for this layout
        return None
    return found if type(found) in SENTENCE_LOGITS else None


def _masked_loss(judged: Judged, batch: Batch) -> torch.Tensor:
    if judged.guesses is None:
        return judged.verdicts.new_zeros(())
    return summed_loss(judged.guesses, batch)


def _sentence_loss(judged: Judged, batch: Batch) -> torch.Tensor:
    losses = F.cross_entropy(judged.verdicts.float(), batch["sentence_labels"], reduction="none")
    return (losses * batch["weights"].sum(1)).sum()
