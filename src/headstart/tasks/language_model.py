"""Language modelling on texts of one's own: how well a model foresees them, and adapting it to them.

Three families, three ways to ask. A decoder predicts each token from those before it. An encoder-decoder reads one
stretch of a text and writes the next, so that here, too, the chain rule makes a likelihood of it. An encoder predicts
hidden tokens from both sides, which gives a pseudo-likelihood: it compares encoders with each other, and with nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.data import Batch, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import RecipeError
from headstart.tasks.base import MODEL_INPUTS, BaseTask, by_example
from headstart.tasks.framing import beginning, frame
from headstart.tasks.labelled import TEXT

_CLASSES = {
    "encoder": "AutoModelForMaskedLM",
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
_LOGITS_TOGETHER = 1 << 26
"""Numbers of a forward pass without gradients: 256 MB in 32 bits."""


class LanguageModel(BaseTask):
    """Predict texts themselves: perplexity and bits per byte, of a model as it is or adapted to such texts."""

    paper: ClassVar[str] = (
        "Shannon 1951; Howard & Ruder 2018, ULMFiT; encoders: Salazar et al. 2020; encoder-decoders: Lester et al. 2021"
    )
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder")

    class Config(Section):
        """Which column holds the texts, and how long ones are read."""

        kind: Literal["language_model"] = "language_model"
        document: str = Field("text", description="the column with the texts")
        overlap: int = Field(
            0,
            ge=0,
            description="tokens of a long text that a window reads once more, for context; not an encoder-decoder",
        )
        passes: int = Field(
            8,
            ge=0,
            description="an encoder reads a text so often, every n-th token hidden (8: an eighth, near the 15 % of its "
            "training); 0: once for each token, the exact pseudo-likelihood, at that price",
        )

    def auto_class(self, family: str) -> str:
        """Name the class with the head of pre-training."""
        return _CLASSES[family]

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Name the texts; they are what is predicted, and there is no other gold value."""
        return [InputColumn(self.config.document, TEXT, "task.document")]

    def fit_labels(self, train: Examples) -> None:
        """Learn nothing: the vocabulary is the tokenizer's."""

    def encode(self, examples: Examples, reading: InputSpec, training: bool = False) -> list[Feature]:
        """Cut texts into windows; `labels` holds the tokens that each predicts, and every token is predicted once."""
        opens, closes = frame(reading.tokenizer)
        cut = {"encoder": self._hidden, "decoder": self._continued, "encoder-decoder": self._written}[reading.family]
        texts = list(examples.columns[self.config.document])
        encoded = reading.tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        features: list[Feature] = []
        for row, (text, ids) in enumerate(zip(texts, encoded["input_ids"], strict=True)):
            pieces = list(cut(list(ids), reading, opens, closes))
            size = len(text.encode())
            features += [{**piece, "example": row, "bytes": 0 if place else size} for place, piece in enumerate(pieces)]
        return features

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read; those that an encoder-decoder writes have a key of their own."""
        same = batch["labels"].shape == batch["input_ids"].shape
        return batch["input_ids"].numel() + (0 if same else batch["labels"].numel())

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the predicted tokens."""
        return self._nats(model, batch).sum()

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the nats of each window, some of which are run at a time, since logits are large."""
        rows, width = batch["labels"].shape
        together = max(1, _LOGITS_TOGETHER // max(1, width * model.config.vocab_size))
        parts = [{name: t[start : start + together] for name, t in batch.items()} for start in range(0, rows, together)]
        nats = torch.cat([self._nats(model, part) for part in parts])
        return [np.asarray(value) for value in nats.double().cpu().numpy()]

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Say what each text cost: its nats, and the tokens and bytes over which they are spread."""
        found = []
        for pieces in by_example(outputs, features):
            predicted = sum(label != -100 for _, feature in pieces for label in feature["labels"])
            size = sum(feature["bytes"] for _, feature in pieces)
            found.append({"nats": float(sum(nats for nats, _ in pieces)), "tokens": predicted, "bytes": size})
        return found

    def metrics(self) -> tuple[str, ...]:
        """Name what compares across tokenizers first."""
        return ("bits_per_byte", "perplexity")

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Take the texts as they are."""
        return Examples({self.config.document: list(texts)}, [None] * len(texts), "toy rows")

    def _nats(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return what the labels of each row cost."""
        inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
        labels = batch["labels"]
        if model.config.is_encoder_decoder:
            inputs["labels"] = labels
        # Virtual tokens of an adapter may stand before the text's own.
        logits = model(**inputs).logits[:, -labels.shape[1] :]
        return F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none").sum(1)

    def _windows(self, ids: list[int], room: int, overlap: int) -> Iterator[tuple[list[int], int]]:
        """Yield the windows of a text, and how many tokens of each were predicted in the one before."""
        if room <= overlap:
            raise RecipeError(
                f"task.overlap is {overlap}, and training.max_length leaves {room} tokens of a text",
                allowed="A window must hold more than what it reads once more",
                do="Lower task.overlap or raise training.max_length",
            )
        yield ids[:room], 0
        for start in range(room - overlap, len(ids) - overlap, room - overlap):
            yield ids[start : start + room], overlap

    def _continued(self, ids: list[int], reading: InputSpec, opens: list[int], _: list[int]) -> Iterator[Feature]:
        """Yield windows for a decoder: each label is the token after the one it stands at."""
        opens = opens or [beginning(reading)]
        for window, known in self._windows(ids, reading.max_length - len(opens) + 1, self.config.overlap):
            if window:
                hidden = [-100] * (len(opens) - 1 + known)
                yield {"input_ids": [*opens, *window[:-1]], "labels": [*hidden, *window[known:]]}
            else:
                yield {"input_ids": opens, "labels": [-100] * len(opens)}

    def _written(self, ids: list[int], reading: InputSpec, opens: list[int], closes: list[int]) -> Iterator[Feature]:
        """Yield windows for an encoder-decoder, which reads one and writes the next."""
        read: list[int] = []
        for window, _ in self._windows(ids, reading.max_length - len(opens) - len(closes), 0):
            yield {"input_ids": [*opens, *read, *closes] or [beginning(reading)], "labels": window or [-100]}
            read = window

    def _hidden(self, ids: list[int], reading: InputSpec, opens: list[int], closes: list[int]) -> Iterator[Feature]:
        """Yield windows for an encoder, as often as there are passes, with other tokens hidden in each."""
        mask = reading.tokenizer.mask_token_id
        for window, known in self._windows(ids, reading.max_length - len(opens) - len(closes), self.config.overlap):
            new = len(window) - known
            passes = min(self.config.passes or new, new)
            for number in range(max(1, passes)):
                places = set(range(known + number, len(window), max(1, passes)))
                shown = [mask if place in places else token for place, token in enumerate(window)]
                labels = [token if place in places else -100 for place, token in enumerate(window)]
                framed = [*opens, *shown, *closes] or [beginning(reading)]
                before, after = [-100] * len(opens), [-100] * len(closes)
                yield {"input_ids": framed, "labels": [*before, *labels, *after] or [-100]}
