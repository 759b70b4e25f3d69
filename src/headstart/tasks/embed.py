"""Sentence embeddings: texts with similar meanings get similar vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from headstart.core.config import Section
from headstart.core.data import Batch, Examples, Feature, InputColumn, InputSpec, Ints, Split
from headstart.core.errors import DataError
from headstart.core.lazy import torch
from headstart.tasks import sentence_vectors
from headstart.tasks.base import BaseTask, Padding, label_set
from headstart.tasks.labelled import LABEL, NUMBER, TEXT
from headstart.tasks.sentence_vectors import STATIC

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_RANKED = 10
"""Ranks that are kept: as many as the metrics use."""
_QUERIES_PER_CHUNK = 1024
_HEAD = "softmax_head"


class Embed(BaseTask):
    """Sentence embeddings, trained on scored pairs, triplets, pairs or labeled pairs; compared by cosine."""

    paper: ClassVar[str] = (
        "Reimers & Gurevych 2019, Sentence-BERT; ranking: Henderson et al. 2017; softmax: Conneau et al. 2017"
    )
    head: ClassVar[str] = "AutoModel"
    usage: ClassVar[str | None] = (
        "from sentence_transformers import SentenceTransformer\n\n"
        'model = SentenceTransformer("path/to/this/folder")\n'
        'vectors = model.encode(["one sentence", "another one"])\n'
    )
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "xlnet")
    paddings: ClassVar[Mapping[str, Padding]] = {
        "input_ids": Padding(mask="attention_mask"),
        "labels": Padding(-100),
        "numbers": Padding(0),
    }

    class Config(Section):
        """The training loss and its columns, the evaluation and its columns, and the pooling."""

        kind: Literal["embed"] = "embed"
        loss: Literal["cosine", "triplet", "ranking", "softmax"] = Field(
            "cosine",
            description="cosine: pairs with a score; triplet: anchor, positive, negative; ranking: pairs, with the "
            "other pairs of the forward pass (training.micro_batch_size) as negatives, and an optional third text as a "
            "hard negative; softmax: pairs with a label, such as NLI",
        )
        texts: list[str] = Field(
            ["sentence1", "sentence2"], min_length=2, max_length=3, description="the text columns of the training rows"
        )
        label: str = Field(
            "score", description="the training column with the score or label; unused by triplet and ranking"
        )
        test: Literal["similarity", "retrieval"] = Field(
            "similarity",
            description="evaluation on validation and test rows. similarity: score the two texts of each row; "
            "retrieval: find each row's second text among those of all rows",
        )
        test_texts: list[str] | None = Field(
            None,
            min_length=2,
            max_length=2,
            description="the text columns of validation and test rows; default: the first two of `texts`",
        )
        test_label: str | None = Field(
            None,
            description="the column with the score of validation and test rows, default `label`; for retrieval, the "
            "column with the id of the second text, default the text itself",
        )
        pooling: Literal["mean", "cls", "lasttoken", "max", "static"] = Field(
            "mean", description="how token states become one vector; static: the mean of the input embeddings"
        )
        margin: float = Field(
            1.0, gt=0, description="for triplet: the margin in Euclidean distance; Sentence-BERT used 1"
        )
        scale: float = Field(
            20.0, gt=0, description="for ranking: the factor of the cosines, the inverse of the temperature"
        )

        @model_validator(mode="after")
        def _texts_fit(self) -> Embed.Config:
            expected = {"cosine": (2,), "softmax": (2,), "triplet": (3,), "ranking": (2, 3)}[self.loss]
            if len(self.texts) not in expected:
                raise ValueError(
                    f"loss {self.loss} needs {' or '.join(map(str, expected))} text columns, but texts has "
                    f"{len(self.texts)}: {', '.join(self.texts)}. Change texts, or choose another loss."
                )
            return self

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the text columns and the gold column of a split."""
        if split == "train":
            gold = {"cosine": NUMBER, "softmax": LABEL}.get(self.config.loss)
            texts = [InputColumn(name, TEXT, "task.texts") for name in self.config.texts]
            return [
                *texts,
                *([] if gold is None else [InputColumn(self.config.label, gold, "task.label", is_gold=True)]),
            ]
        setting = "task.texts" if self.config.test_texts is None else "task.test_texts"
        first, second = (InputColumn(name, TEXT, setting) for name in self._test_texts)
        setting = "task.label" if self.config.test_label is None else "task.test_label"
        if self.config.test == "similarity":
            name = self.config.test_label or self.config.label
            return [first, second, InputColumn(name, NUMBER, setting, is_gold=True)]
        if self.config.test_label is None:
            return [first, InputColumn(second.name, TEXT, second.setting, is_gold=True)]
        return [first, second, InputColumn(self.config.test_label, LABEL, setting, is_gold=True)]

    def fit_labels(self, train: Examples) -> None:
        """Collect the range of the scores, or the label set."""
        self.low, self.high = 0.0, 1.0
        if self.config.loss == "cosine":
            self.low, self.high = float(min(train.labels)), float(max(train.labels))
        self.labels = label_set(train.labels) if self.config.loss == "softmax" else []
        if self.low == self.high or len(self.labels) == 1:
            raise DataError(
                f"all {len(train)} rows of {train.source} have the same {self.config.label}: {train.labels[0]!r}",
                allowed="Training needs rows with different values",
                do="Check task.label, or choose another task.loss",
            )

    def state(self) -> dict[str, Any]:
        """Return the label set and the range of the scores."""
        return {"labels": self.labels, "low": self.low, "high": self.high}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the label set and the range of the scores."""
        self.labels, self.low, self.high = list(state["labels"]), state["low"], state["high"]

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Tokenize the texts: one feature per training row, else one per text (a repeated retrieval document once)."""
        if training:
            return self._training(examples, spec)
        first, second = self._test_texts
        texts = [examples.columns[first], examples.columns.get(second, examples.labels)]
        ids = [self._tokens(column, spec) for column in texts]
        features: list[Feature] = []
        seen: set[Any] = set()
        for row, key in enumerate(examples.labels):
            features.append({"input_ids": [ids[0][row]], "example": row, "key": None})
            if self.config.test == "similarity" or key not in seen:
                features.append({"input_ids": [ids[1][row]], "example": row, "key": key})
            seen.add(key)
        return features

    def text_features(self, texts: Sequence[str], spec: InputSpec) -> list[Feature]:
        """Tokenize single texts; `predict` returns their vectors."""
        return [{"input_ids": [ids], "example": row} for row, ids in enumerate(self._tokens(texts, spec))]

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Add the head of the softmax loss, if the model has trainable parameters; it is used in training only."""
        learns = any(parameter.requires_grad for parameter in model.parameters())
        if self.config.loss == "softmax" and learns and not hasattr(model, _HEAD):
            embeddings: Any = model.get_input_embeddings()
            static = self.config.pooling == STATIC
            width: int = embeddings.weight.shape[1] if static else model.config.hidden_size
            model.add_module(_HEAD, torch.nn.Linear(3 * width, len(self.labels)))

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the loss summed over the rows; for ranking, it depends on the other rows of the batch."""
        vectors = self.vectors(model, batch).unbind(1)
        match self.config.loss:
            case "cosine":
                mean = sentence_vectors.cosine(vectors, batch)
            case "triplet":
                mean = sentence_vectors.triplet(vectors, self.config.margin)
            case "ranking":
                mean = sentence_vectors.ranking(vectors, batch, self.config.scale)
            case "softmax":
                mean = sentence_vectors.softmax(vectors, batch, getattr(model, _HEAD))
        return mean * len(batch["input_ids"])

    def weight(self, batch: Batch) -> float:
        """Return the number of rows."""
        return float(len(batch["input_ids"]))

    def vectors(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the vector of every text, shape (rows, texts, width)."""
        ids, mask = (batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask"))
        if self.config.pooling == STATIC:
            states = model.get_input_embeddings()(ids)
        else:
            states = model(input_ids=ids, attention_mask=mask)[0]
        pooled = sentence_vectors.pooled(states.float(), mask, self.config.pooling)
        return pooled.unflatten(0, batch["input_ids"].shape[:2])

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the vector of each feature's first text."""
        return list(self.vectors(model, batch)[:, 0].detach().cpu().numpy())

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Convert vectors to the cosine of each pair, or to a ranking of all second texts for each first text."""
        norms = [np.linalg.norm(vector) for vector in outputs]
        scaled = [vector / max(norm, 1e-12) for vector, norm in zip(outputs, norms, strict=True)]
        is_first = [feature["key"] is None for feature in features]
        firsts = np.stack([vector for vector, first in zip(scaled, is_first, strict=True) if first])
        seconds = np.stack([vector for vector, first in zip(scaled, is_first, strict=True) if not first])
        if self.config.test == "similarity":
            return [float(cosine) for cosine in (firsts * seconds).sum(axis=1)]
        keys = [feature["key"] for feature in features if feature["key"] is not None]
        rankings: list[Any] = []
        for start in range(0, len(firsts), _QUERIES_PER_CHUNK):
            best = _best(firsts[start : start + _QUERIES_PER_CHUNK] @ seconds.T)
            rankings += [[keys[i] for i in row] for row in best]
        return rankings

    def metrics(self) -> tuple[str, ...]:
        """Return the correlation metrics for similarity, or the ranking metrics for retrieval."""
        return ("spearman", "pearson") if self.config.test == "similarity" else ("ndcg_at_10", "mrr_at_10")

    def save(self, model: PreTrainedModel, spec: InputSpec, folder: Path) -> None:
        """Save the model, without the training head, as a sentence-transformers folder."""
        if hasattr(model, _HEAD):
            delattr(model, _HEAD)
        super().save(model, spec, folder)
        sentence_vectors.write_modules(model, spec, self.config.pooling, folder)

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Pair each text in turn with its reversed words, its first half or another text; a third is another text."""
        others = [*texts[1:], texts[0]]
        kinds = [i % 3 for i in range(len(texts))]
        seconds = [
            (" ".join(reversed(text.split())), text[: len(text) // 2], other)[kind]
            for text, other, kind in zip(texts, others, kinds, strict=True)
        ]
        columns = dict(zip(self.config.texts, (list(texts), seconds, others), strict=False))
        gold: dict[str, list[Any]] = {
            "cosine": [(5.0, 3.0, 0.0)[kind] for kind in kinds],
            "softmax": [f"kind {kind}" for kind in kinds],
        }
        return Examples(columns, gold.get(self.config.loss, [None] * len(texts)), "toy rows")

    @property
    def _test_texts(self) -> list[str]:
        columns: list[str] = self.config.test_texts or self.config.texts[:2]
        return columns

    def _training(self, examples: Examples, spec: InputSpec) -> list[Feature]:
        """Return one feature per training row: the ids of its texts, and what the loss needs."""
        columns = [examples.columns[name] for name in self.config.texts]
        ids = [self._tokens(column, spec) for column in columns]
        features: list[Feature] = [{"input_ids": list(row)} for row in zip(*ids, strict=True)]
        numbers: dict[str, int] = {}
        for row, feature in enumerate(features):
            match self.config.loss:
                case "cosine":
                    feature["labels"] = (float(examples.labels[row]) - self.low) / (self.high - self.low)
                case "softmax":
                    feature["labels"] = self.labels.index(examples.labels[row])
                case "ranking":
                    feature["numbers"] = [numbers.setdefault(column[row], len(numbers)) for column in columns]
        return features

    def _tokens(self, texts: Sequence[str], spec: InputSpec) -> list[list[int]]:
        """Return the token ids of each text, at least one; static pooling uses no special tokens."""
        special = self.config.pooling != STATIC
        encoded = spec.tokenizer(
            list(texts), truncation=True, max_length=spec.max_length, add_special_tokens=special,
            return_attention_mask=False,
        )["input_ids"]  # fmt: skip
        return [ids or [spec.pad] for ids in encoded]


def _best(scores: np.ndarray[Any, Any]) -> Ints:
    """Return the columns of the highest scores of each row, the highest first; ties keep their order."""
    count = min(_RANKED, scores.shape[1])
    order: Ints = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return order
