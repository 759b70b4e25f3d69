"""Questions with a few answers to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.data import Batch, ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.tasks.base import MODEL_INPUTS, BaseTask
from headstart.tasks.encoding import encode_texts
from headstart.tasks.labelled import TEXT

CHOICES = ColumnKind(
    "a list of texts, two or more",
    lambda value: isinstance(value, list) and len(value) > 1 and all(isinstance(item, str) for item in value),
)
NUMBER_OF_CHOICE = ColumnKind(
    "the number of the right choice, counted from 0",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
)


class MultipleChoice(BaseTask):
    """The right one of several answers, each read together with the question."""

    paper: ClassVar[str] = "Radford et al. 2018, GPT, figure 1; Devlin et al. 2019, BERT, section 4.4"
    head: ClassVar[str] = "AutoModelForMultipleChoice"
    families: ClassVar[tuple[str, ...]] = ("encoder", "xlnet")

    class Config(Section):
        """Which columns hold the question, the choices and the number of the right one."""

        kind: Literal["multiple_choice"] = "multiple_choice"
        question: str = Field("question", description="the column with the question, or the text to be continued")
        choices: str | list[str] = Field(
            "choices", min_length=1, description="a column that holds a list of texts, or one column for each choice"
        )
        answer: str = Field("answer", description="the column with the number of the right choice, counted from 0")

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Name the question, the choices and the answer, the same in every split."""
        named = self.config.choices
        choices = [(named, CHOICES)] if isinstance(named, str) else [(name, TEXT) for name in named]
        return [
            InputColumn(self.config.question, TEXT, "task.question"),
            *(InputColumn(name, kind, "task.choices") for name, kind in choices),
            InputColumn(self.config.answer, NUMBER_OF_CHOICE, "task.answer", is_gold=True),
        ]

    def fit_labels(self, train: Examples) -> None:
        """Learn nothing: a choice is known by its text, and its number means nothing."""

    def encode(self, examples: Examples, reading: InputSpec, training: bool = False) -> list[Feature]:
        """Pair the question with each choice; a feature holds as many lists of tokens as there are choices."""
        choices = self._choices(examples)
        for row, (texts, answer) in enumerate(zip(choices, examples.labels, strict=True)):
            if answer >= len(texts):
                raise DataError(
                    f"{examples.source}, row {row + 1} has the answer {answer} and {len(texts)} choices",
                    allowed="Choices are counted from 0",
                    do="Mend the answer of that row",
                )
        questions = examples.columns[self.config.question]
        asked = [question for question, texts in zip(questions, choices, strict=True) for _ in texts]
        pairs = iter(encode_texts([asked, [text for texts in choices for text in texts]], reading))
        features: list[Feature] = []
        for texts, answer in zip(choices, examples.labels, strict=True):
            some = [next(pairs) for _ in texts]
            features.append({key: [pair[key] for pair in some] for key in some[0]} | {"labels": answer})
        return features

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return shape (questions, choices): one number for each choice, minus infinity where a question has fewer.

        The model is given one choice at a time, so that the gaps of questions with fewer are not computed.
        """
        is_choice = batch["attention_mask"].any(-1)
        inputs = {name: batch[name][is_choice].unsqueeze(1) for name in MODEL_INPUTS if name in batch}
        found = model(**inputs).logits.float().squeeze(1)
        return torch.full(is_choice.shape, float("-inf"), device=found.device).masked_scatter(is_choice, found)

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return cross-entropy over the choices, summed over the questions."""
        return F.cross_entropy(self.logits(model, batch), batch["labels"], reduction="sum")

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the logits of each question's choices."""
        rows, is_choice = self.logits(model, batch), batch["attention_mask"].any(-1)
        return [row[real].cpu().numpy() for row, real in zip(rows.detach(), is_choice, strict=True)]

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Return the number of each question's likeliest choice."""
        return [int(logits.argmax()) for logits in outputs]

    def metrics(self) -> tuple[str, ...]:
        """Name the one metric."""
        return ("accuracy",)

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Tell a text's beginning from its reverse and, at times, from a third; the places of the right ones differ."""
        named = self.config.choices
        rows, answers = [], []
        for place, text in enumerate(texts):
            wrong = [text[:12][::-1], "zzz"] if isinstance(named, str) and place % 3 == 0 else [text[:12][::-1]]
            answers.append(place % (len(wrong) + 1))
            rows.append([*wrong[: answers[-1]], text[:12], *wrong[answers[-1] :]])
        columns: dict[str, Any] = {self.config.question: list(texts)}
        columns |= {named: rows} if isinstance(named, str) else dict(zip(named, zip(*rows, strict=True), strict=False))
        return Examples(columns, answers, "toy rows")

    def _choices(self, examples: Examples) -> list[Sequence[str]]:
        named = self.config.choices
        if isinstance(named, str):
            return list(examples.columns[named])
        return list(zip(*(examples.columns[name] for name in named), strict=True))
