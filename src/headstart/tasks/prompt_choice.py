"""Prompting for multiple choice: score each answer as the continuation of a prompt, without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from headstart.core.data import Examples, Feature, InputSpec
from headstart.tasks.base import by_example, softmax
from headstart.tasks.multiple_choice import MultipleChoice
from headstart.tasks.prompt import select_shots
from headstart.tasks.prompted import BETWEEN, BLANK, SHOTS, Prompted
from headstart.tasks.template import Blank, PromptEncoder, Template

_QUESTION = "question"


class PromptChoice(Prompted, MultipleChoice):
    """Zero- and few-shot multiple choice: the answer that a language model finds most likely; no training."""

    paper: ClassVar[str] = "Brown et al. 2020, GPT-3, section 2.4"

    class Config(MultipleChoice.Config):
        """The columns, the prompt template, and the examples in the prompt."""

        newer: ClassVar[tuple[str, ...]] = ("blank",)
        kind: Literal["prompt_choice"] = "prompt_choice"  # type: ignore[assignment]  # the name of the entry
        template: str = Field(
            "Question: {question}\nAnswer: {label}",
            description="the prompt for a row, with {question} for the question and {label} for an answer; for a "
            "decoder, {label} must come last",
        )
        shots: int = SHOTS
        between: str = BETWEEN
        blank: Blank | None = BLANK
        normalize: Literal["tokens", "none"] = Field(
            "tokens",
            description="tokens: compare the mean log-probability of the answers' tokens, as GPT-3 does; none: the "
            "sum, which favors short answers",
        )

        @model_validator(mode="after")
        def _template_fits(self) -> PromptChoice.Config:
            self.filled()
            return self

        def filled(self) -> Template:
            """Return the template."""
            return Template(self.template, [_QUESTION])

    def fit_labels(self, train: Examples) -> None:
        """Select the examples of the prompt."""
        self.show(train, 0)

    def show(self, train: Examples, seed: int) -> None:
        """Select and order the examples of the prompt, by the seed."""
        questions, choices = train.columns[self.config.question], self._choices(train)
        self.require_answers(train)
        selected = select_shots(self.config.shots, len(train), seed)
        self.shown = [[questions[row], choices[row][train.labels[row]]] for row in selected]

    def state(self) -> dict[str, Any]:
        """Return the examples of the prompt."""
        return {"labels": [], "shown": self.shown}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the examples of the prompt."""
        self.labels, self.shown = [], list(state["shown"])

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Write each row as a prompt; answers that one forward pass can score share a feature."""
        template = self.config.filled()
        shown = "".join(template.written([question], answer) + self.config.between for question, answer in self.shown)
        features: list[Feature] = []
        rows = zip(examples.columns[self.config.question], self._choices(examples), strict=True)
        for row, (question, choices) in enumerate(rows):
            encoder = PromptEncoder(template, choices, shown, spec, self.config.blank)
            features += [{**feature, "example": row} for feature in encoder.features([question])]
        return features

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the index of each question's most likely answer."""
        return [int(scores.argmax()) for scores in self._log_probabilities(outputs, features)]

    def scores(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the probability of each answer among the answers of its question, by its index."""
        return [dict(enumerate(softmax(scores))) for scores in self._log_probabilities(outputs, features)]

    def _log_probabilities(self, outputs: Sequence[Any], features: Sequence[Feature]) -> list[np.ndarray[Any, Any]]:
        """Return for each question the log-probability of every answer, per token if `normalize` says so."""
        rows: list[np.ndarray[Any, Any]] = []
        for pieces in by_example(outputs, features):
            scores = np.zeros(sum(len(feature["words"]) for _, feature in pieces))
            for output, feature in pieces:
                lengths = [len(targets) if self.config.normalize == "tokens" else 1 for targets in feature["targets"]]
                scores[feature["words"]] = np.asarray(output)[: len(lengths)] / lengths
            rows.append(scores)
        return rows
