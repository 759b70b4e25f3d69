"""Conversions between gold values and text, one class for each kind of gold value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from headstart.core.data import ColumnKind, Examples
from headstart.core.errors import DataError, RecipeError
from headstart.tasks.base import label_set
from headstart.tasks.labelled import LABEL, LABELS, NUMBER
from headstart.tasks.seq2seq import METRICS, REFERENCES
from headstart.tasks.span_qa import ANSWERS_OR_NONE

Spelling = Callable[[str], str]
"""Returns a text as the tokenizer decodes it: perhaps lowercased, with spaces around punctuation."""


class Cast:
    """Text as text; of several references, training uses the first. Other kinds of gold values subclass this."""

    kind: ClassVar[ColumnKind] = REFERENCES
    metrics: ClassVar[tuple[str, ...]] = METRICS

    def __init__(self, words: Mapping[str, str], step: float) -> None:
        """Store the words of the labels, and the step to which numbers are rounded."""
        self.words, self.step = words, step
        self.labels: list[Any] = []
        self.fallback: Any = ""

    def fit(self, train: Examples) -> None:
        """Do nothing: any text is a valid answer."""

    def applicable_metrics(self) -> tuple[str, ...]:
        """Return the metrics that fit the gold values, the default selection metric first."""
        return self.metrics

    def check(self, spell: Spelling) -> None:
        """Raise if the tokenizer decodes two different answers to the same text."""

    def write(self, gold: Any) -> str:
        """Return a gold value as text."""
        return gold if isinstance(gold, str) else str(gold[0])

    def read(self, text: str, spell: Spelling, words: int) -> Any:
        """Return the prediction in a generated text, for a source of `words` words."""
        return text


class AnswersCast(Cast):
    """SQuAD answers: the text of the first answer, or an empty text if there is none."""

    kind: ClassVar[ColumnKind] = ANSWERS_OR_NONE
    metrics: ClassVar[tuple[str, ...]] = ("squad_f1", "squad_exact_match")

    def write(self, gold: Any) -> str:
        """Return the first answer."""
        return str(next(iter(gold["text"]), ""))


class NumberCast(Cast):
    """Numbers, rounded to steps as T5 does for STS-B; a text that is no number counts as the training mean."""

    kind: ClassVar[ColumnKind] = NUMBER
    metrics: ClassVar[tuple[str, ...]] = ("spearman", "pearson")

    def fit(self, train: Examples) -> None:
        """Compute the training mean."""
        self.fallback = sum(map(float, train.labels)) / len(train)

    def write(self, gold: Any) -> str:
        """Return the number, rounded to the nearest step."""
        return f"{round(float(gold) / self.step) * self.step:.6g}"

    def read(self, text: str, spell: Spelling, words: int) -> Any:
        """Return the generated number, without the spaces that a tokenizer may insert."""
        try:
            number = float(text.replace(" ", ""))
        except ValueError:
            return self.fallback
        return number if abs(number) < float("inf") else self.fallback


class LabelCast(Cast):
    """Labels, each written as its word; any other text counts as a wrong answer."""

    kind: ClassVar[ColumnKind] = LABEL
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1", "matthews")

    def fit(self, train: Examples) -> None:
        """Collect the label set; the prediction for "no label" is an empty text, or a number below all labels."""
        self.labels = label_set(train.labels)
        self._require_words(train)
        is_text = any(isinstance(label, str) for label in self.labels)
        self.fallback = "" if is_text else min(self.labels) - 1

    def check(self, spell: Spelling) -> None:
        """Raise if the tokenizer decodes the words of two labels to the same text."""
        self._by_spelling(spell)

    def write(self, gold: Any) -> str:
        """Return the label's word."""
        return self.words.get(str(gold), str(gold))

    def read(self, text: str, spell: Spelling, words: int) -> Any:
        """Return the label whose word was generated."""
        return self._by_spelling(spell).get(text, self.fallback)

    def _by_spelling(self, spell: Spelling) -> dict[str, Any]:
        labels: dict[str, Any] = {}
        for label in self.labels:
            other = labels.setdefault(spell(self.write(label)), label)
            if other != label:
                raise RecipeError(
                    f"the model's tokenizer cannot distinguish the words {self.write(other)!r} and "
                    f"{self.write(label)!r}",
                    allowed="Each label needs a different word",
                    do="Change task.words",
                )
        return labels

    def _require_words(self, train: Examples) -> None:
        missing = [label for label in self.labels if self.words and str(label) not in self.words]
        if missing:
            raise DataError(
                f"{train.source} has the label {missing[0]!r}, but task.words has no word for it",
                allowed=f"task.words has words for: {', '.join(self.words)}",
                do="Add the label to task.words",
            )


class LabelsCast(LabelCast):
    """Lists of labels, separated by spaces; missing ones become the most common label, extra ones are dropped."""

    kind: ClassVar[ColumnKind] = LABELS
    metrics: ClassVar[tuple[str, ...]] = ("token_accuracy", "seqeval_f1")

    def fit(self, train: Examples) -> None:
        """Collect the label set and the most common label."""
        counts = Counter(label for labels in train.labels for label in labels)
        self.labels = label_set(counts)
        self._require_words(train)
        self.fallback = max(self.labels, key=lambda label: counts[label])
        spaced = next((label for label in self.labels if len(self.write(label).split()) != 1), None)
        if spaced is not None:
            raise RecipeError(
                f"the label {spaced!r} is written as {self.write(spaced)!r}",
                allowed="A label in a list must be one word, because spaces separate the labels",
                do="Give each label one word in task.words",
            )

    def applicable_metrics(self) -> tuple[str, ...]:
        """Return the metrics; seqeval_f1 needs B- and I- labels."""
        has_spans = any(isinstance(label, str) and label[:2] in ("B-", "I-") for label in self.labels)
        return ("seqeval_f1", "token_accuracy") if has_spans else ("token_accuracy",)

    def write(self, gold: Any) -> str:
        """Return the words of one or more labels, separated by spaces."""
        labels: Sequence[Any] = gold if isinstance(gold, list) else [gold]
        return " ".join(super(LabelsCast, self).write(label) for label in labels)

    def read(self, text: str, spell: Spelling, words: int) -> Any:
        """Return one label per word, each the longest label with which the rest of the text starts."""
        longest_first = sorted(self._by_spelling(spell).items(), key=lambda item: -len(item[0]))
        labels: list[Any] = []
        while text and len(labels) < words:
            matches = ((spelling, label) for spelling, label in longest_first if f"{text} ".startswith(f"{spelling} "))
            spelling, label = next(matches, ("", self.fallback))
            # Anything that is not a label counts as one wrong label, up to the next space.
            text = (text[len(spelling) :] if spelling else text.partition(" ")[2]).lstrip()
            labels.append(label)
        return labels + [self.fallback] * (words - len(labels))


CASTS: dict[str, type[Cast]] = {
    "label": LabelCast,
    "labels": LabelsCast,
    "number": NumberCast,
    "text": Cast,
    "answers": AnswersCast,
}
