"""Gold values as text, and text as predictions: one cast for each kind of gold value."""

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
"""How a text comes back from a tokenizer: in lower case perhaps, with blanks around marks."""


class Cast:
    """A text is what it is, and of several right ones the first is learnt from; other kinds of gold answer anew."""

    kind: ClassVar[ColumnKind] = REFERENCES
    metrics: ClassVar[tuple[str, ...]] = METRICS

    def __init__(self, words: Mapping[str, str], step: float) -> None:
        """Take the words for labels, and the step in which numbers are written."""
        self.words, self.step = words, step
        self.labels: list[Any] = []
        self.fallback: Any = ""

    def fit(self, train: Examples) -> None:
        """Learn nothing: any text is an answer."""

    def applicable_methods(self) -> tuple[str, ...]:
        """Name the metrics, the usual one to select by first."""
        return self.metrics

    def check(self, spell: Spelling) -> None:
        """Raise where two answers cannot be told apart once a tokenizer has spelt them."""

    def write(self, gold: Any) -> str:
        """Return a gold value as text."""
        return gold if isinstance(gold, str) else str(gold[0])

    def read(self, text: str, spell: Spelling, words: int) -> Any:
        """Return what a written text predicts, for a source that has so many words."""
        return text


class AnswersCast(Cast):
    """An answer is written as it stands in the text, and nothing where there is none."""

    kind: ClassVar[ColumnKind] = ANSWERS_OR_NONE
    metrics: ClassVar[tuple[str, ...]] = ("squad_f1", "squad_exact_match")

    def write(self, gold: Any) -> str:
        """Return the first answer."""
        return str(next(iter(gold["text"]), ""))


class NumberCast(Cast):
    """A number is written in steps, as T5 does STS-B; what is no number counts as the training mean."""

    kind: ClassVar[ColumnKind] = NUMBER
    metrics: ClassVar[tuple[str, ...]] = ("spearman", "pearson")

    def fit(self, train: Examples) -> None:
        """Learn the mean."""
        self.fallback = sum(map(float, train.labels)) / len(train)

    def write(self, gold: Any) -> str:
        """Return the nearest step."""
        return f"{round(float(gold) / self.step) * self.step:.6g}"

    def read(self, text: str, spell: Spelling, words: int) -> Any:
        """Return the number that is written, whatever blanks a tokenizer has put into it."""
        try:
            found = float(text.replace(" ", ""))
        except ValueError:
            return self.fallback
        return found if abs(found) < float("inf") else self.fallback


class LabelCast(Cast):
    """A label is written by its word; text that is none of the words is a wrong answer, and never a label."""

    kind: ClassVar[ColumnKind] = LABEL
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1", "matthews")

    def fit(self, train: Examples) -> None:
        """Learn the label set, and what stands for "none of them": nothing, or a number below all labels."""
        self.labels = label_set(train.labels)
        self._require_words(train)
        is_text = any(isinstance(label, str) for label in self.labels)
        self.fallback = "" if is_text else min(self.labels) - 1

    def check(self, spell: Spelling) -> None:
        """Raise where two labels have words that are spelt alike."""
        self._by_spelling(spell)

    def write(self, gold: Any) -> str:
        """Return the label's word."""
        return self.words.get(str(gold), str(gold))

    def read(self, text: str, spell: Spelling, words: int) -> Any:
        """Return the label whose word is written."""
        return self._by_spelling(spell).get(text, self.fallback)

    def _by_spelling(self, spell: Spelling) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for label in self.labels:
            other = found.setdefault(spell(self.write(label)), label)
            if other != label:
                raise RecipeError(
                    f"the words {self.write(other)!r} and {self.write(label)!r} are one to the tokenizer of the model",
                    allowed="Each label needs a word of its own",
                    do="Choose others in task.words",
                )
        return found

    def _require_words(self, train: Examples) -> None:
        missing = [label for label in self.labels if self.words and str(label) not in self.words]
        if missing:
            raise DataError(
                f"{train.source} has the label {missing[0]!r}, for which task.words has no word",
                allowed=f"It names: {', '.join(self.words)}",
                do="Add the label to task.words",
            )


class LabelsCast(LabelCast):
    """A list of labels is written word by word; too few are filled up by the commonest, too many are cut off."""

    kind: ClassVar[ColumnKind] = LABELS
    metrics: ClassVar[tuple[str, ...]] = ("token_accuracy", "seqeval_f1")

    def fit(self, train: Examples) -> None:
        """Learn the label set and the commonest label."""
        counts = Counter(label for labels in train.labels for label in labels)
        self.labels = label_set(counts)
        self._require_words(train)
        self.fallback = max(self.labels, key=lambda label: counts[label])
        spaced = next((label for label in self.labels if len(self.write(label).split()) != 1), None)
        if spaced is not None:
            raise RecipeError(
                f"the label {spaced!r} is written {self.write(spaced)!r}",
                allowed="Labels in a row are told apart by the blanks between them",
                do="Give each label one word in task.words",
            )

    def applicable_methods(self) -> tuple[str, ...]:
        """Judge spans only where the labels spell them."""
        spells = any(isinstance(label, str) and label[:2] in ("B-", "I-") for label in self.labels)
        return ("seqeval_f1", "token_accuracy") if spells else ("token_accuracy",)

    def write(self, gold: Any) -> str:
        """Return the words of the labels, or of one."""
        labels: Sequence[Any] = gold if isinstance(gold, list) else [gold]
        return " ".join(super(LabelsCast, self).write(label) for label in labels)

    def read(self, text: str, spell: Spelling, words: int) -> Any:
        """Return as many labels as there are words, each the longest that the text goes on with."""
        known = sorted(self._by_spelling(spell).items(), key=lambda item: -len(item[0]))
        found: list[Any] = []
        while text and len(found) < words:
            fits = ((spelling, label) for spelling, label in known if f"{text} ".startswith(f"{spelling} "))
            spelling, label = next(fits, ("", self.fallback))
            # What is no label stands for one as far as the next blank.
            text = (text[len(spelling) :] if spelling else text.partition(" ")[2]).lstrip()
            found.append(label)
        return found + [self.fallback] * (words - len(found))


CASTS: dict[str, type[Cast]] = {
    "label": LabelCast,
    "labels": LabelsCast,
    "number": NumberCast,
    "text": Cast,
    "answers": AnswersCast,
}
