"""Prompting: a label is read off what a model would write, with no example or a few before it, and no gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.data import Batch, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.core.randomness import permute
from headstart.tasks.base import BaseTask, Padding, by_example, label_set
from headstart.tasks.labelled import LABEL, TEXT
from headstart.tasks.template import Asker, Template
from headstart.tasks.word_scores import word_scores

_CLASSES = {"encoder": "AutoModelForMaskedLM", "decoder": "AutoModelForCausalLM"}
_SAYING_NOTHING = ("N/A", "[MASK]", "")
"""Texts without content, as Zhao et al. use them: what a model answers to these is its bias."""


class Prompt(BaseTask):
    """Labels by prompting, without a gradient: a decoder goes on with the label's word, an encoder fills it in."""

    paper: ClassVar[str] = "Brown et al. 2020, GPT-3; cloze: Schick & Schütze 2021, PET; calibration: Zhao et al. 2021"
    learns: ClassVar[bool] = False
    families: ClassVar[tuple[str, ...]] = ("decoder", "encoder")
    paddings: ClassVar[Mapping[str, Padding]] = {
        "input_ids": Padding(mask="attention_mask"),
        "places": Padding(0),
        "targets": Padding(-100),
    }

    class Config(Section):
        """How a row is put to the model, which word stands for which label, and what is shown before."""

        kind: Literal["prompt"] = "prompt"
        text: list[str] = Field(["text"], min_length=1, description="the columns that the template names")
        label: str = "label"
        template: str | None = Field(
            None,
            description="a row as text: {column} stands for a text, {label} for the label's word; a decoder reads "
            "nothing after {label}. By default the texts line by line, then `Label: {label}`",
        )
        words: dict[str, str] = Field({}, description="the word for each label; the label itself by default")
        shots: int = Field(
            0,
            ge=0,
            description="training rows shown with their labels before each question; the seed draws and orders them",
        )
        between: str = Field("\n\n", description="what stands between two of the rows that are shown")
        calibrate: bool = Field(
            False, description="divide by what the model says to texts without content (contextual calibration)"
        )
        metric: Literal["accuracy", "f1", "macro_f1", "matthews"] | None = Field(
            None, description="accuracy by default"
        )

        @field_validator("text", mode="before")
        @classmethod
        def _one_or_many(cls, value: Any) -> Any:
            return [value] if isinstance(value, str) else value

        @field_validator("words", mode="before")
        @classmethod
        def _labels_as_text(cls, value: Any) -> Any:
            return {str(label): word for label, word in value.items()} if isinstance(value, dict) else value

        @model_validator(mode="after")
        def _template_fits(self) -> Prompt.Config:
            self.filled()
            empty = next((label for label, word in self.words.items() if not word.strip()), None)
            if empty is not None:
                raise ValueError(f"words has no word for {empty!r}. A label's word is what the model would write.")
            if len({word.strip() for word in self.words.values()}) < len(self.words):
                raise ValueError("words has one word for two labels, which could not be told apart.")
            return self

        def filled(self) -> Template:
            """Return the template, or the one that stands in for it."""
            usual = "\n".join([*(f"{{{name}}}" for name in self.text), "Label: {label}"])
            return Template(self.template or usual, self.text)

    def auto_class(self, family: str) -> str:
        """Name the class with the head of pre-training."""
        return _CLASSES[family]

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Name the texts and the label, the same in every split."""
        texts = [InputColumn(name, TEXT, "task.text") for name in self.config.text]
        return [*texts, InputColumn(self.config.label, LABEL, "task.label", is_gold=True)]

    def fit_labels(self, train: Examples) -> None:
        """Take the label set from the training rows, and rows to show."""
        self.labels = label_set(train.labels)
        unknown = sorted(self.config.words.keys() - {str(label) for label in self.labels})
        if unknown:
            raise DataError(
                f"task.words has a word for {unknown[0]!r}, which no row of {train.source} has as its label",
                allowed=f"Labels: {', '.join(map(repr, self.labels[:20]))}",
                do="Mend task.words or task.label",
            )
        self.show(train, 0)

    def show(self, train: Examples, seed: int) -> None:
        """Draw the rows to be shown, and their order, by the seed."""
        if self.config.shots > len(train):
            raise DataError(
                f"task.shots is {self.config.shots}, and there are {len(train)} training rows",
                allowed="Each row is shown once",
                do="Lower task.shots or raise data.train_rows",
            )
        chosen = permute(np.arange(self.config.shots), len(train), seed, 0, "shots").tolist()
        self.shown = [[*(train.columns[name][row] for name in self.config.text), train.labels[row]] for row in chosen]

    def state(self) -> dict[str, Any]:
        """Return the label set and the rows that are shown."""
        return {"labels": self.labels, "shown": self.shown}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take both back."""
        self.labels, self.shown = list(state["labels"]), list(state["shown"])

    def encode(self, examples: Examples, reading: InputSpec, training: bool = False) -> list[Feature]:
        """Write each row as a prompt; words that can be scored by one pass share a feature.

        Prompts without content, where they calibrate, stand before those of the first row, as features of it.
        """
        template = self.config.filled()
        shown = [template.written(texts, self._word(label)) + self.config.between for *texts, label in self.shown]
        asker = Asker(template, [self._word(label) for label in self.labels], "".join(shown), reading)
        rows = list(zip(*(examples.columns[name] for name in self.config.text), strict=True))
        empty = [[nothing] * len(self.config.text) for nothing in _SAYING_NOTHING] if self.config.calibrate else []
        features: list[Feature] = []
        for place, texts in enumerate([*empty, *rows], start=-len(empty)):
            features += [{**f, "example": max(place, 0), "calibrates": place < 0} for f in asker.features(texts)]
        return features

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Refuse: nothing is learnt by a gradient."""
        raise NotImplementedError("prompting trains nothing")

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the log-probabilities of each feature's words."""
        return word_scores(model, batch)

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Choose the label whose word is likeliest, or has gained most over what is said to texts without content."""
        bias = np.zeros(len(self.labels))
        found: list[Any] = []
        for pieces in by_example(outputs, features):
            asked_of = [(output, feature) for output, feature in pieces if not feature["calibrates"]]
            if len(asked_of) < len(pieces):
                passes = len(asked_of)
                held = [piece for piece in pieces if piece[1]["calibrates"]]
                alone = [self._scores(held[start : start + passes]) for start in range(0, len(held), passes)]
                bias = np.log(np.mean(np.exp(alone), axis=0))
            found.append(self.labels[int((self._scores(asked_of) - bias).argmax())])
        return found

    def metrics(self) -> tuple[str, ...]:
        """Name the metrics, the selecting one first."""
        usual = ["accuracy", "f1", "matthews"] if len(self.labels) == 2 else ["accuracy", "macro_f1"]
        first = self.config.metric or usual[0]
        return (first, *(name for name in usual if name != first))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Tell long texts from short ones; every other column holds them backwards."""
        columns = {name: [t[:: 1 - 2 * (place % 2)] for t in texts] for place, name in enumerate(self.config.text)}
        middle = sorted(map(len, texts))[len(texts) // 2]
        return Examples(columns, ["long" if len(text) >= middle else "short" for text in texts], "toy rows")

    def _word(self, label: Any) -> str:
        word: str = self.config.words.get(str(label), str(label))
        return word

    def _scores(self, pieces: Sequence[tuple[Any, Feature]]) -> np.ndarray[Any, Any]:
        """Return the log-probability of each label's word, among the label words alone."""
        scores = np.zeros(len(self.labels))
        for output, feature in pieces:
            scores[feature["words"]] = output[: len(feature["words"])]
        scores -= scores.max()
        normalised: np.ndarray[Any, Any] = scores - np.log(np.exp(scores).sum())
        return normalised
