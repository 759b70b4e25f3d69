"""Sentence embeddings: texts whose vectors are near each other mean the like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.data import Batch, Examples, Feature, InputColumn, InputSpec, Ints, Split
from headstart.core.errors import DataError
from headstart.tasks import sentence_vectors
from headstart.tasks.base import BaseTask, Padding, label_set
from headstart.tasks.labelled import LABEL, NUMBER, TEXT
from headstart.tasks.sentence_vectors import STATIC

_RANKED = 10
"""Places of a ranking that are kept: as many as the metrics look at."""
_QUESTIONS_TOGETHER = 1024
_HEAD = "softmax_head"


class Embed(BaseTask):
    """Sentence vectors, trained by scored pairs, triplets, pairs or labelled pairs; judged by cosine."""

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
        """What a training row teaches, what a test row asks, and how token states become one vector."""

        kind: Literal["embed"] = "embed"
        loss: Literal["cosine", "triplet", "ranking", "softmax"] = Field(
            "cosine",
            description="cosine: pairs with a score; triplet: anchor, positive, negative; ranking: a pair against all "
            "others of a forward pass (training.micro_batch_size), a third text being one more wrong answer; "
            "softmax: pairs with a label, as of NLI",
        )
        texts: list[str] = Field(["sentence1", "sentence2"], min_length=2, max_length=3, description="training columns")
        label: str = Field("score", description="training column with the score or label; triplet and ranking use none")
        test: Literal["similarity", "retrieval"] = Field(
            "similarity", description="of other rows: how alike are the two texts, or which second text is the first's?"
        )
        test_texts: list[str] | None = Field(
            None, min_length=2, max_length=2, description="their columns; the first two of `texts` by default"
        )
        test_label: str | None = Field(
            None,
            description="their score, `label` by default; for retrieval the second text's id, else the text itself",
        )
        pooling: Literal["mean", "cls", "lasttoken", "max", "static"] = Field(
            "mean", description="static: the average of the network's token vectors without their context"
        )
        margin: float = Field(1.0, gt=0, description="of triplets, in Euclidean distance; Sentence-BERT used 1")
        scale: float = Field(20.0, gt=0, description="of cosines under ranking: one over the temperature")

        @model_validator(mode="after")
        def _texts_fit(self) -> Embed.Config:
            wanted = {"cosine": (2,), "softmax": (2,), "triplet": (3,), "ranking": (2, 3)}[self.loss]
            if len(self.texts) not in wanted:
                raise ValueError(
                    f"loss {self.loss} reads {' or '.join(map(str, wanted))} texts of a row, and texts names "
                    f"{len(self.texts)}: {', '.join(self.texts)}. Name as many columns, or choose another loss."
                )
            return self

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Name the training texts and what is said of them, or the two texts of other rows and their gold value."""
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
        """Learn the range of the scores, or the labels."""
        self.low, self.high = 0.0, 1.0
        if self.config.loss == "cosine":
            self.low, self.high = float(min(train.labels)), float(max(train.labels))
        self.labels = label_set(train.labels) if self.config.loss == "softmax" else []
        if self.low == self.high or len(self.labels) == 1:
            raise DataError(
                f"{train.source} has the single {self.config.label} {train.labels[0]!r} in its {len(train)} rows",
                allowed="Pairs that teach something differ in it",
                do="Check task.label, or choose another task.loss",
            )

    def state(self) -> dict[str, Any]:
        """Return the labels and the range of the scores."""
        return {"labels": self.labels, "low": self.low, "high": self.high}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self.labels, self.low, self.high = list(state["labels"]), state["low"], state["high"]

    def encode(self, examples: Examples, reading: InputSpec, training: bool = False) -> list[Feature]:
        """Tokenise the texts apart: side by side for training, each by itself otherwise, a repeated document once."""
        if training:
            return self._training(examples, reading)
        first, second = self._test_texts
        texts = [examples.columns[first], examples.columns.get(second, examples.labels)]
        ids = [self._tokens(column, reading) for column in texts]
        features: list[Feature] = []
        known: set[Any] = set()
        for row, key in enumerate(examples.labels):
            features.append({"input_ids": [ids[0][row]], "example": row, "key": None})
            if self.config.test == "similarity" or key not in known:
                features.append({"input_ids": [ids[1][row]], "example": row, "key": key})
            known.add(key)
        return features

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Give the model the head of the softmax loss, which serves training alone, if anything is trained."""
        learns = any(parameter.requires_grad for parameter in model.parameters())
        if self.config.loss == "softmax" and learns and not hasattr(model, _HEAD):
            embeddings: Any = model.get_input_embeddings()
            static = self.config.pooling == STATIC
            width: int = embeddings.weight.shape[1] if static else model.config.hidden_size
            model.add_module(_HEAD, torch.nn.Linear(3 * width, len(self.labels)))

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the loss summed over the rows; under ranking it depends on what else is in the batch."""
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
        """Return the vector of every text, of shape (rows, texts, width)."""
        ids, mask = (batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask"))
        if self.config.pooling == STATIC:
            states = model.get_input_embeddings()(ids)
        else:
            states = model(input_ids=ids, attention_mask=mask)[0]
        pooled = sentence_vectors.pooled(states.float(), mask, self.config.pooling)
        return pooled.unflatten(0, batch["input_ids"].shape[:2])

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the vector of each text."""
        return list(self.vectors(model, batch)[:, 0].detach().cpu().numpy())

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Turn vectors into the cosine of each pair, or into a ranking of all second texts for each first."""
        lengths = [np.linalg.norm(vector) for vector in outputs]
        scaled = [vector / max(length, 1e-12) for vector, length in zip(outputs, lengths, strict=True)]
        is_first = [feature["key"] is None for feature in features]
        firsts = np.stack([vector for vector, first in zip(scaled, is_first, strict=True) if first])
        seconds = np.stack([vector for vector, first in zip(scaled, is_first, strict=True) if not first])
        if self.config.test == "similarity":
            return [float(cosine) for cosine in (firsts * seconds).sum(axis=1)]
        keys = [feature["key"] for feature in features if feature["key"] is not None]
        rankings: list[Any] = []
        for start in range(0, len(firsts), _QUESTIONS_TOGETHER):
            best = _best(firsts[start : start + _QUESTIONS_TOGETHER] @ seconds.T)
            rankings += [[keys[place] for place in row] for row in best]
        return rankings

    def metrics(self) -> tuple[str, ...]:
        """Name the correlations with the scores, or what tells a ranking's worth."""
        return ("spearman", "pearson") if self.config.test == "similarity" else ("ndcg_at_10", "mrr_at_10")

    def save(self, model: PreTrainedModel, reading: InputSpec, folder: Path) -> None:
        """Write the weights, without a head that served training alone, as a folder of sentence-transformers."""
        if hasattr(model, _HEAD):
            delattr(model, _HEAD)
        super().save(model, reading, folder)
        sentence_vectors.write_modules(model, reading, self.config.pooling, folder)

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Put beside each text its words backwards, its first half, or another text, in turn; the last is another."""
        others = [*texts[1:], texts[0]]
        kinds = [place % 3 for place in range(len(texts))]
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
        found: list[str] = self.config.test_texts or self.config.texts[:2]
        return found

    def _training(self, examples: Examples, reading: InputSpec) -> list[Feature]:
        columns = [examples.columns[name] for name in self.config.texts]
        ids = [self._tokens(column, reading) for column in columns]
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

    def _tokens(self, texts: Sequence[str], reading: InputSpec) -> list[list[int]]:
        """Return the token ids of each text, at least one; special tokens have no part in a static average."""
        special = self.config.pooling != STATIC
        found = reading.tokenizer(
            list(texts), truncation=True, max_length=reading.max_length, add_special_tokens=special,
            return_attention_mask=False,
        )["input_ids"]  # fmt: skip
        return [ids or [reading.pad] for ids in found]


def _best(scores: np.ndarray[Any, Any]) -> Ints:
    """Return the places of the highest scores of each row, the highest first; of equal ones the first in order."""
    count = min(_RANKED, scores.shape[1])
    order: Ints = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return order
