"""Language modeling on your own texts: measure how well a model predicts them, or adapt it to them.

The likelihood of a text depends on the family. A decoder predicts each token from those before it. An encoder-decoder
reads one window of a text and generates the next, so the chain rule gives a likelihood too. An encoder predicts masked
tokens from both sides, which gives a pseudo-likelihood: compare it only with that of other encoders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import RecipeError
from headstart.core.lazy import F, torch
from headstart.tasks.base import MODEL_INPUTS, PRETRAINING_HEADS, BaseTask, by_example
from headstart.tasks.framing import frame, start_token
from headstart.tasks.labelled import TEXT
from headstart.tasks.word_scores import MAX_LOGITS

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LanguageModel(BaseTask):
    """Language modeling: perplexity and bits per byte of texts, with or without training on such texts."""

    paper: ClassVar[str] = (
        "Shannon 1951; Howard & Ruder 2018, ULMFiT; encoders: Salazar et al. 2020; encoder-decoders: Lester et al. 2021"
    )
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder")

    class Config(Section):
        """The column of the texts, and how long texts are split into windows."""

        kind: Literal["language_model"] = "language_model"
        document: str = Field("text", description="the column with the texts")
        overlap: int = Field(
            0,
            ge=0,
            description="tokens of context that a window repeats from the one before; encoder-decoders ignore it",
        )
        passes: int = Field(
            8,
            ge=0,
            description="passes of an encoder over a text, each masking every n-th token (8 masks an eighth, near the "
            "15 % of pre-training); 0: one pass per token, the exact pseudo-likelihood, which costs the most",
        )

    def auto_class(self, family: str) -> str:
        """Return the auto class with the pre-training head."""
        return PRETRAINING_HEADS[family]

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the text column; there is no gold column."""
        return [InputColumn(self.config.document, TEXT, "task.document")]

    def fit_labels(self, train: Examples) -> None:
        """Do nothing: there is no label set."""

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Split texts into windows; `labels` holds the tokens to predict, each token of a text once."""
        prefix, suffix = frame(spec.tokenizer)
        split = {
            "encoder": self._masked_windows,
            "decoder": self._causal_windows,
            "encoder-decoder": self._seq2seq_windows,
        }[spec.family]
        texts = list(examples.columns[self.config.document])
        encoded = spec.tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        features: list[Feature] = []
        for row, (text, ids) in enumerate(zip(texts, encoded["input_ids"], strict=True)):
            windows = list(split(list(ids), spec, prefix, suffix))
            size = len(text.encode())
            features += [{**window, "example": row, "bytes": 0 if i else size} for i, window in enumerate(windows)]
        return features

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read, including those that an encoder-decoder's decoder reads."""
        same = batch["labels"].shape == batch["input_ids"].shape
        return batch["input_ids"].numel() + (0 if same else batch["labels"].numel())

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy in nats, summed over the predicted tokens."""
        return self._nats(model, batch).sum()

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the nats of each window, computed in chunks that bound the memory of the logits."""
        rows, width = batch["labels"].shape
        chunk = max(1, MAX_LOGITS // max(1, width * model.config.vocab_size))
        parts = [{name: t[start : start + chunk] for name, t in batch.items()} for start in range(0, rows, chunk)]
        nats = torch.cat([self._nats(model, part) for part in parts])
        return [np.asarray(value) for value in nats.double().cpu().numpy()]

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the nats, predicted tokens and bytes of each text."""
        predictions = []
        for pieces in by_example(outputs, features):
            predicted = sum(label != -100 for _, feature in pieces for label in feature["labels"])
            size = sum(feature["bytes"] for _, feature in pieces)
            predictions.append({"nats": float(sum(nats for nats, _ in pieces)), "tokens": predicted, "bytes": size})
        return predictions

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics; bits per byte comes first because it is comparable across tokenizers."""
        return ("bits_per_byte", "perplexity")

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Return the texts unchanged."""
        return Examples({self.config.document: list(texts)}, [None] * len(texts), "toy rows")

    def _nats(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy of each row's labels, in nats."""
        inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
        labels = batch["labels"]
        if model.config.is_encoder_decoder:
            inputs["labels"] = labels
        # The virtual tokens of an adapter may come before the text's.
        logits = model(**inputs).logits[:, -labels.shape[1] :]
        return F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none").sum(1)

    def _windows(self, ids: list[int], size: int, overlap: int) -> Iterator[tuple[list[int], int]]:
        """Yield the windows of a text, each with the number of leading tokens that the one before predicted."""
        if size <= overlap:
            raise RecipeError(
                f"task.overlap is {overlap}, but training.max_length leaves {size} tokens for a text",
                allowed="A window must be longer than the overlap",
                do="Lower task.overlap or raise training.max_length",
            )
        yield ids[:size], 0
        for start in range(size - overlap, len(ids) - overlap, size - overlap):
            yield ids[start : start + size], overlap

    def _causal_windows(self, ids: list[int], spec: InputSpec, prefix: list[int], _: list[int]) -> Iterator[Feature]:
        """Yield windows for a decoder; the label at a position is the next token."""
        prefix = prefix or [start_token(spec)]
        for window, context in self._windows(ids, spec.max_length - len(prefix) + 1, self.config.overlap):
            if window:
                ignored = [-100] * (len(prefix) - 1 + context)
                yield {"input_ids": [*prefix, *window[:-1]], "labels": [*ignored, *window[context:]]}
            else:
                yield {"input_ids": prefix, "labels": [-100] * len(prefix)}

    def _seq2seq_windows(
        self, ids: list[int], spec: InputSpec, prefix: list[int], suffix: list[int]
    ) -> Iterator[Feature]:
        """Yield windows for an encoder-decoder, which reads one window and generates the next."""
        source: list[int] = []
        for window, _ in self._windows(ids, spec.max_length - len(prefix) - len(suffix), 0):
            yield {"input_ids": [*prefix, *source, *suffix] or [start_token(spec)], "labels": window or [-100]}
            source = window

    def _masked_windows(
        self, ids: list[int], spec: InputSpec, prefix: list[int], suffix: list[int]
    ) -> Iterator[Feature]:
        """Yield windows for an encoder, once per pass, with different tokens masked in each pass."""
        mask = spec.tokenizer.mask_token_id
        for window, context in self._windows(ids, spec.max_length - len(prefix) - len(suffix), self.config.overlap):
            new = len(window) - context
            passes = min(self.config.passes or new, new)
            for offset in range(max(1, passes)):
                masked = set(range(context + offset, len(window), max(1, passes)))
                shown = [mask if i in masked else token for i, token in enumerate(window)]
                labels = [token if i in masked else -100 for i, token in enumerate(window)]
                framed = [*prefix, *shown, *suffix] or [start_token(spec)]
                before, after = [-100] * len(prefix), [-100] * len(suffix)
                yield {"input_ids": framed, "labels": [*before, *labels, *after] or [-100]}
