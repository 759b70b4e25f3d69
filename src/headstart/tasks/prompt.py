"""Prompting: predict labels with a language model's own head, from zero or a few examples, without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from headstart.core.config import Section
from headstart.core.data import Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.core.randomness import permute
from headstart.tasks.base import BaseTask, by_example, label_set, softmax
from headstart.tasks.labelled import LABEL, TEXT
from headstart.tasks.prompted import BETWEEN, BLANK, SHOTS, Prompted
from headstart.tasks.template import Blank, PromptEncoder, Template

_CONTENT_FREE = ("N/A", "[MASK]", "")
"""Inputs without content (Zhao et al.): the model's predictions for these are its bias."""


class Prompt(Prompted, BaseTask):
    """Zero- and few-shot prompting: a decoder or encoder-decoder writes the label word, an encoder fills it in."""

    paper: ClassVar[str] = "Brown et al. 2020, GPT-3; cloze: Schick & Schütze 2021, PET; calibration: Zhao et al. 2021"

    class Config(Section):
        """The prompt template, the word of each label, and the examples in the prompt."""

        newer: ClassVar[tuple[str, ...]] = ("blank",)
        kind: Literal["prompt"] = "prompt"
        text: list[str] = Field(["text"], min_length=1, description="the text columns used in the template")
        label: str = "label"
        template: str | None = Field(
            None,
            description="the prompt for a row, with {column} for a text and {label} for the label's word; for a "
            "decoder, {label} must come last. Default: the texts, one per line, then `Label: {label}`",
        )
        words: dict[str, str] = Field({}, description="the word for each label; default: the label itself")
        shots: int = SHOTS
        between: str = BETWEEN
        blank: Blank | None = BLANK
        calibrate: bool = Field(
            False, description="divide by the predictions for content-free texts (contextual calibration)"
        )
        metric: Literal["accuracy", "f1", "macro_f1", "matthews"] | None = Field(
            None, description="the metric that selects models; default: accuracy"
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
                raise ValueError(f"words has an empty word for {empty!r}. The model predicts labels by their words.")
            if len({word.strip() for word in self.words.values()}) < len(self.words):
                raise ValueError("words has the same word for two labels. Give each label a different word.")
            return self

        def filled(self) -> Template:
            """Return the template, or the default one if none is set."""
            default = "\n".join([*(f"{{{name}}}" for name in self.text), "Label: {label}"])
            return Template(self.template or default, self.text)

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the text columns and the label column."""
        texts = [InputColumn(name, TEXT, "task.text") for name in self.config.text]
        return [*texts, InputColumn(self.config.label, LABEL, "task.label", is_gold=True)]

    def fit_labels(self, train: Examples) -> None:
        """Collect the label set from the training rows, and select the examples of the prompt."""
        self.labels = label_set(train.labels)
        unknown = sorted(self.config.words.keys() - {str(label) for label in self.labels})
        if unknown:
            raise DataError(
                f"task.words has a word for {unknown[0]!r}, but no row of {train.source} has this label",
                allowed=f"Labels: {', '.join(map(repr, self.labels[:20]))}",
                do="Correct task.words or task.label",
            )
        self.show(train, 0)

    def show(self, train: Examples, seed: int) -> None:
        """Select and order the examples of the prompt, by the seed."""
        selected = select_shots(self.config.shots, len(train), seed)
        self.shown = [[*(train.columns[name][row] for name in self.config.text), train.labels[row]] for row in selected]

    def state(self) -> dict[str, Any]:
        """Return the label set and the examples of the prompt."""
        return {"labels": self.labels, "shown": self.shown}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the label set and the examples of the prompt."""
        self.labels, self.shown = list(state["labels"]), list(state["shown"])

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Write each row as a prompt; words that one forward pass can score share a feature.

        For calibration, the features of the first row start with those of the content-free prompts.
        """
        template = self.config.filled()
        shown = [template.written(texts, self._word(label)) + self.config.between for *texts, label in self.shown]
        words = [self._word(label) for label in self.labels]
        encoder = PromptEncoder(template, words, "".join(shown), spec, self.config.blank)
        rows = list(zip(*(examples.columns[name] for name in self.config.text), strict=True))
        empty = [[text] * len(self.config.text) for text in _CONTENT_FREE] if self.config.calibrate else []
        features: list[Feature] = []
        for i, texts in enumerate([*empty, *rows], start=-len(empty)):
            features += [{**f, "example": max(i, 0), "calibrates": i < 0} for f in encoder.features(texts)]
        return features

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the label with the most likely word; with calibration, relative to the content-free prompts."""
        return [self.labels[int(scores.argmax())] for scores in self._calibrated(outputs, features)]

    def scores(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the probability of each label's word among the words of all labels, after calibration."""
        rows = self._calibrated(outputs, features)
        return [dict(zip(self.labels, softmax(scores), strict=True)) for scores in rows]

    def _calibrated(self, outputs: Sequence[Any], features: Sequence[Feature]) -> list[np.ndarray[Any, Any]]:
        """Return for each example the log-probabilities of the labels, less those for the content-free prompts."""
        bias = np.zeros(len(self.labels))
        rows: list[np.ndarray[Any, Any]] = []
        for pieces in by_example(outputs, features):
            own = [(output, feature) for output, feature in pieces if not feature["calibrates"]]
            if len(own) < len(pieces):
                passes = len(own)
                empty = [piece for piece in pieces if piece[1]["calibrates"]]
                scores = [self._scores(empty[start : start + passes]) for start in range(0, len(empty), passes)]
                bias = np.log(np.mean(np.exp(scores), axis=0))
            rows.append(self._scores(own) - bias)
        return rows

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics, the selection metric first."""
        usual = ["accuracy", "f1", "matthews"] if len(self.labels) == 2 else ["accuracy", "macro_f1"]
        first = self.config.metric or usual[0]
        return (first, *(name for name in usual if name != first))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Label texts "long" or "short"; every other column holds them reversed."""
        columns = {name: [t[:: 1 - 2 * (i % 2)] for t in texts] for i, name in enumerate(self.config.text)}
        median = sorted(map(len, texts))[len(texts) // 2]
        return Examples(columns, ["long" if len(text) >= median else "short" for text in texts], "toy rows")

    def _word(self, label: Any) -> str:
        word: str = self.config.words.get(str(label), str(label))
        return word

    def _scores(self, pieces: Sequence[tuple[Any, Feature]]) -> np.ndarray[Any, Any]:
        """Return the log-probability of each label's word, normalized over the label words."""
        scores = np.zeros(len(self.labels))
        for output, feature in pieces:
            scores[feature["words"]] = output[: len(feature["words"])]
        scores -= scores.max()
        normalized: np.ndarray[Any, Any] = scores - np.log(np.exp(scores).sum())
        return normalized


def select_shots(shots: int, rows: int, seed: int) -> list[int]:
    """Return the indices of the training rows to show in a prompt, in the order of the seed."""
    if shots > rows:
        raise DataError(
            f"task.shots is {shots}, but there are only {rows} training rows",
            allowed="Each row is shown at most once",
            do="Lower task.shots or raise data.train_rows",
        )
    selected: list[int] = permute(np.arange(shots), rows, seed, 0, "shots").tolist()
    return selected
