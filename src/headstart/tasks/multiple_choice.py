"""Multiple choice: questions with a few answers to choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.core.lazy import F, torch
from headstart.tasks.base import MODEL_INPUTS, BaseTask, Padding, softmax
from headstart.tasks.encoding import encode_texts
from headstart.tasks.labelled import TEXT

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHOICES = ColumnKind(
    "a list of texts, two or more",
    lambda value: isinstance(value, list) and len(value) > 1 and all(isinstance(item, str) for item in value),
)
NUMBER_OF_CHOICE = ColumnKind(
    "the index of the correct choice, counted from 0",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
)


class MultipleChoice(BaseTask):
    """Multiple choice: score each answer together with the question and choose the best.

    transformers has no multiple-choice head for decoders. They get a classification head with one output, which reads
    the last token of question and answer, as in GPT.
    """

    paper: ClassVar[str] = "Radford et al. 2018, GPT, figure 1; Devlin et al. 2019, BERT, section 4.4"
    families: ClassVar[tuple[str, ...]] = ("encoder", "xlnet", "decoder")
    paddings: ClassVar[Mapping[str, Padding]] = {**BaseTask.paddings, "choice_axis": Padding(0)}

    class Config(Section):
        """The columns of the question, the choices and the answer."""

        kind: Literal["multiple_choice"] = "multiple_choice"
        question: str = Field("question", description="the column with the question, or the text to continue")
        choices: str | list[str] = Field(
            "choices", min_length=1, description="a column with a list of texts, or one column per choice"
        )
        answer: str = Field("answer", description="the column with the index of the correct choice, counted from 0")

    def auto_class(self, family: str) -> str:
        """Return the class of a head that scores one choice."""
        return "AutoModelForSequenceClassification" if family == "decoder" else "AutoModelForMultipleChoice"

    def head_settings(self) -> dict[str, Any]:
        """Return a head with one output: the score of a choice."""
        return {"num_labels": 1}

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the columns of the question, the choices and the answer."""
        names = self.config.choices
        choices = [(names, CHOICES)] if isinstance(names, str) else [(name, TEXT) for name in names]
        return [
            InputColumn(self.config.question, TEXT, "task.question"),
            *(InputColumn(name, kind, "task.choices") for name, kind in choices),
            InputColumn(self.config.answer, NUMBER_OF_CHOICE, "task.answer", is_gold=True),
        ]

    def fit_labels(self, train: Examples) -> None:
        """Do nothing: the choices are texts, and there is no label set."""

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Pair the question with each choice; a feature holds one list of token ids per choice.

        `choice_axis` is 1 if the inputs of the head have an axis of choices, which those of a classifier do not.
        """
        self.require_answers(examples)
        choices = self._choices(examples)
        questions = examples.columns[self.config.question]
        repeated = [question for question, texts in zip(questions, choices, strict=True) for _ in texts]
        encoded = iter(encode_texts([repeated, [text for texts in choices for text in texts]], spec))
        features: list[Feature] = []
        for texts, answer in zip(choices, examples.labels, strict=True):
            pairs = [next(encoded) for _ in texts]
            feature: Feature = {key: [pair[key] for pair in pairs] for key in pairs[0]}
            features.append(feature | {"labels": answer, "choice_axis": int(spec.family != "decoder")})
        return features

    def require_answers(self, examples: Examples) -> None:
        """Raise if the answer of a row is not the index of one of its choices."""
        for row, (texts, answer) in enumerate(zip(self._choices(examples), examples.labels, strict=True)):
            if answer >= len(texts):
                raise DataError(
                    f"{examples.source}, row {row + 1} has the answer {answer}, but only {len(texts)} choices",
                    allowed="Choices are counted from 0",
                    do="Correct the answer in that row",
                )

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return logits of shape (questions, choices); padding choices are minus infinity.

        The model reads one choice at a time, so padding choices are not computed.
        """
        is_choice = batch["attention_mask"].any(-1)
        inputs = {name: batch[name][is_choice] for name in MODEL_INPUTS if name in batch}
        if batch["choice_axis"].any():
            inputs = {name: ids.unsqueeze(1) for name, ids in inputs.items()}
        logits = model(**inputs).logits.float().squeeze(1)
        return torch.full(is_choice.shape, float("-inf"), device=logits.device).masked_scatter(is_choice, logits)

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy over the choices, summed over the questions."""
        return F.cross_entropy(self.logits(model, batch), batch["labels"], reduction="sum")

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the logits of each question's choices."""
        rows, is_choice = self.logits(model, batch), batch["attention_mask"].any(-1)
        return [row[real].cpu().numpy() for row, real in zip(rows.detach(), is_choice, strict=True)]

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the index of each question's most likely choice."""
        return [int(logits.argmax()) for logits in outputs]

    def scores(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the probability of each choice by its index."""
        return [dict(enumerate(softmax(logits))) for logits in outputs]

    def metrics(self) -> tuple[str, ...]:
        """Return the only metric, accuracy."""
        return ("accuracy",)

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Offer the start of each text, its reverse and, in every third row, "zzz"; the answer's index varies."""
        names = self.config.choices
        rows, answers = [], []
        for i, text in enumerate(texts):
            wrong = [text[:12][::-1], "zzz"] if isinstance(names, str) and i % 3 == 0 else [text[:12][::-1]]
            answers.append(i % (len(wrong) + 1))
            rows.append([*wrong[: answers[-1]], text[:12], *wrong[answers[-1] :]])
        columns: dict[str, Any] = {self.config.question: list(texts)}
        columns |= {names: rows} if isinstance(names, str) else dict(zip(names, zip(*rows, strict=True), strict=False))
        return Examples(columns, answers, "toy rows")

    def _choices(self, examples: Examples) -> list[Sequence[str]]:
        """Return the choices of each row."""
        names = self.config.choices
        if isinstance(names, str):
            return list(examples.columns[names])
        return list(zip(*(examples.columns[name] for name in names), strict=True))
