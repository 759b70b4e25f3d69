"""Any task as text: a template makes the source, and the gold value is written out in words."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from headstart.core.data import ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.tasks.casts import CASTS, Cast
from headstart.tasks.seq2seq import all_texts
from headstart.tasks.writing import WritingSettings, WritingTask, text_of

SOURCE = ColumnKind(
    "a text, a number or a list of texts",
    lambda value: isinstance(value, str | int | float) or (isinstance(value, list) and all_texts(value)),
    is_text=True,
)


class TextToText(WritingTask):
    """Any other task cast as text, with a template for the source and words for the labels."""

    paper: ClassVar[str] = "Raffel et al. 2020, T5, section 2.4; McCann et al. 2018, decaNLP"
    families: ClassVar[tuple[str, ...]] = ("encoder-decoder", "decoder")

    class Config(WritingSettings):
        """How a row becomes a source, what its gold value is, and how that is written."""

        kind: Literal["text_to_text"] = "text_to_text"
        template: str = Field("{text}", description='the source, with columns in braces: "question: {question}"')
        target: str = Field("label", description="the column with the gold value")
        gold: Literal["label", "labels", "number", "text", "answers"] = Field(
            "label", description="what it holds: a label, one for each word, a number, a text, or SQuAD's answers"
        )
        words: dict[str, str] = Field({}, description="the word for each label; unless given, the label itself")
        step: float = Field(0.2, gt=0, description="numbers are written in such steps; T5 has 0.2 for STS-B")
        metric: str | None = Field(None, description="selects models; unless set, the usual one of this kind of gold")

        @field_validator("words", mode="before")
        @classmethod
        def _labels_as_text(cls, value: Any) -> Any:
            return {str(label): word for label, word in value.items()} if isinstance(value, dict) else value

        @field_validator("template")
        @classmethod
        def _names_columns(cls, value: str) -> str:
            columns_of(value)
            return value

        @model_validator(mode="after")
        def _metric_fits(self) -> TextToText.Config:
            fitting = CASTS[self.gold].metrics
            if self.metric is not None and self.metric not in fitting:
                raise ValueError(
                    f"metric is {self.metric!r}, and gold is {self.gold!r}. Choose one of {', '.join(fitting)}."
                )
            return self

    def __init__(self, config: Any) -> None:
        """Remember the section of the recipe, and how its kind of gold is written."""
        super().__init__(config)
        self.cast: Cast = CASTS[config.gold](config.words, config.step)

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Name the template's columns and the gold one, the same in every split."""
        sources = [InputColumn(name, SOURCE, "task.template") for name in columns_of(self.config.template)]
        return [*sources, InputColumn(self.config.target, self.cast.kind, "task.target", is_gold=True)]

    def fit_labels(self, train: Examples) -> None:
        """Learn what the cast needs: the label set, or a number to fall back on."""
        self.cast.fit(train)
        self.labels = self.cast.labels

    def state(self) -> dict[str, Any]:
        """Return the label set, and what a text stands for that is no answer."""
        return {"labels": self.labels, "fallback": self.cast.fallback}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take both back."""
        self.labels, self.cast.fallback = list(state["labels"]), state["fallback"]
        self.cast.labels = self.labels

    def encode(self, examples: Examples, reading: InputSpec, training: bool = False) -> list[Feature]:
        """Fill the template, the longest column shortened until it fits; training rows carry the target."""
        self.cast.check(lambda text: _respelt(text, reading))
        names = columns_of(self.config.template)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*(examples.columns[n] for n in names), strict=True)]
        room = self.room(reading) if reading.family == "decoder" else 0
        fitted = [self._fitted(row, reading, reading.max_length - room) for row in rows]
        targets = [self.cast.write(gold) for gold in examples.labels] if training else None
        features = self.written([source for source, _ in fitted], targets, reading)
        for row, feature, (_, cut) in zip(rows, features, fitted, strict=True):
            feature["cut"] |= cut
            lists = [value for value in row.values() if isinstance(value, list)]
            feature["words"] = len(lists[0] if lists else str(row[names[0]]).split())
        return features

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Read each written text as a prediction."""
        spelt: dict[str, str] = {}

        def spell(text: str) -> str:
            return spelt[text] if text in spelt else spelt.setdefault(text, _respelt(text, reading))

        return [
            self.cast.read(text_of(ids, reading), spell, feature["words"])
            for ids, feature in zip(outputs, features, strict=True)
        ]

    def metrics(self) -> tuple[str, ...]:
        """Name the metrics of this kind of gold, the selecting one first."""
        usual = self.cast.applicable_methods()
        first = self.config.metric or usual[0]
        return (first, *(name for name in usual if name != first))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Make of each text a gold value of the kind: how long it is, in words or in numbers, or how it begins."""
        middle = sorted(map(len, texts))[len(texts) // 2]
        words = [text.split() or ["nothing"] for text in texts]
        gold: dict[str, list[Any]] = {
            "label": ["long" if len(text) >= middle else "short" for text in texts],
            "labels": [["long" if len(word) > 4 else "short" for word in row] for row in words],
            "number": [len(text) / 100 for text in texts],
            "text": [" ".join(row[:5]) for row in words],
            "answers": [
                {"text": row[:1], "answer_start": [max(text.find(row[0]), 0)]}
                for row, text in zip(words, texts, strict=True)
            ],
        }
        rows: list[Any] = words if self.config.gold == "labels" else list(texts)
        return Examples(dict.fromkeys(columns_of(self.config.template), rows), gold[self.config.gold], "toy rows")

    def _fitted(self, row: Mapping[str, Any], reading: InputSpec, most: int) -> tuple[str, bool]:
        """Fill the template; of a source that is too long, the end of its longest column is left out, then others.

        Returns the source, and whether something was left out.
        """
        texts = {name: self._as_text(value) for name, value in row.items()}
        whole = dict(texts)
        for longest in sorted(texts, key=lambda name: -len(texts[name])):
            while (excess := len(reading.tokenizer(self._filled(texts))["input_ids"]) - most) > 0 and texts[longest]:
                bare = reading.tokenizer(texts[longest], add_special_tokens=False, return_offsets_mapping=True)
                first_lacking = (
                    bare["offset_mapping"][max(len(bare["input_ids"]) - excess, 0)][0] if bare["input_ids"] else 0
                )
                # One character or blank may be several tokens: something must go each time.
                texts[longest] = texts[longest][: min(first_lacking, len(texts[longest]) - 1)].rstrip()
        return self._filled(texts), texts != whole

    def _filled(self, texts: Mapping[str, str]) -> str:
        fields = string.Formatter().parse(self.config.template)
        return "".join(literal + ("" if name is None else texts[name]) for literal, name, _, _ in fields)

    def _as_text(self, value: Any) -> str:
        """Return a column's value as text; a list is one of words where each has a label, else one of choices."""
        if not isinstance(value, list):
            return str(value)
        if self.config.gold == "labels":
            return " ".join(value)
        return " ".join(f"({chr(ord('a') + place)}) {text}" for place, text in enumerate(value))


def columns_of(template: str) -> list[str]:
    """Return the names in a template's braces, each once."""
    fields = [field for field in string.Formatter().parse(template) if field[1] is not None]
    for _, name, form, conversion in fields:
        if not name or form or conversion or set(name) & set(".[]"):
            raise ValueError(f"the template {template!r} has a field that is no name of a column")
    if not fields:
        raise ValueError(f"the template {template!r} names no column. Write one in braces, such as {{text}}.")
    return list(dict.fromkeys(str(name) for _, name, _, _ in fields))


def _respelt(text: str, reading: InputSpec) -> str:
    """Return a text as it comes back from the tokenizer."""
    return text_of(reading.tokenizer(text, add_special_tokens=False)["input_ids"], reading)
