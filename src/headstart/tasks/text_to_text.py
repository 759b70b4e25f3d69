"""Text-to-text: a template turns a row into the source, and the gold value is the target text."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from headstart.core.data import ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.tasks import chat
from headstart.tasks.casts import CASTS, Cast
from headstart.tasks.seq2seq import all_texts
from headstart.tasks.writing import WritingSettings, WritingTask, text_of

SOURCE = ColumnKind(
    "a text, a number or a list of texts",
    lambda value: isinstance(value, str | int | float) or (isinstance(value, list) and all_texts(value)),
    is_text=True,
)


class TextToText(WritingTask):
    """Any task in text-to-text form, with a template for the source and words for the labels."""

    paper: ClassVar[str] = "Raffel et al. 2020, T5, section 2.4; McCann et al. 2018, decaNLP"
    families: ClassVar[tuple[str, ...]] = ("encoder-decoder", "decoder")

    class Config(WritingSettings):
        """The template of the source, the kind of gold value, and its form as text."""

        newer: ClassVar[tuple[str, ...]] = ("chat", "messages")
        kind: Literal["text_to_text"] = "text_to_text"
        template: str = Field("{text}", description='the source, with columns in braces: "question: {question}"')
        target: str = Field("label", description="the column with the gold value")
        gold: Literal["label", "labels", "number", "text", "answers"] = Field(
            "label",
            description="the kind of gold value: a label, a list of labels (one per word), a number, a text, or "
            "SQuAD's answers",
        )
        words: dict[str, str] = Field({}, description="the word for each label; default: the label itself")
        step: float = Field(0.2, gt=0, description="numbers are rounded to this step; T5 used 0.2 for STS-B")
        chat: bool = Field(
            False,
            description="the source is the message of a user, in the chat template of the model's tokenizer if it has "
            "one, and the target is the reply",
        )
        messages: str | None = Field(
            None,
            description="a column with conversations, lists of {role, content}, instead of template and target; the "
            "last reply is the target. Needs `gold: text`",
        )
        metric: str | None = Field(
            None, description="the metric that selects models; default: the usual one for this kind of gold value"
        )

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
        def _replies_are_texts(self) -> TextToText.Config:
            if self.messages is not None and self.gold != "text":
                raise ValueError(f"messages is set, but gold is {self.gold!r}. A reply is a text: set gold to text.")
            return self

        @model_validator(mode="after")
        def _metric_fits(self) -> TextToText.Config:
            allowed = CASTS[self.gold].metrics
            if self.metric is not None and self.metric not in allowed:
                raise ValueError(
                    f"metric is {self.metric!r}, but gold is {self.gold!r}. Choose one of {', '.join(allowed)}."
                )
            return self

    def __init__(self, config: Any) -> None:
        """Store the config, and create the cast for its kind of gold value."""
        super().__init__(config)
        self.cast: Cast = CASTS[config.gold](config.words, config.step)

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the template's columns and the gold column, or the column of conversations as both."""
        if self.config.messages is not None:
            source = InputColumn(self.config.messages, chat.MESSAGES, "task.messages")
            return [source, InputColumn(self.config.messages, chat.REPLY, "task.messages", is_gold=True)]
        sources = [InputColumn(name, SOURCE, "task.template") for name in columns_of(self.config.template)]
        return [*sources, InputColumn(self.config.target, self.cast.kind, "task.target", is_gold=True)]

    def fit_labels(self, train: Examples) -> None:
        """Fit the cast: the label set, and the prediction for texts that are no answer."""
        self.cast.fit(train)
        self.labels = self.cast.labels

    def state(self) -> dict[str, Any]:
        """Return the label set, and the prediction for texts that are no answer."""
        return {"labels": self.labels, "fallback": self.cast.fallback}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the label set and the fallback prediction."""
        self.labels, self.cast.fallback = list(state["labels"]), state["fallback"]
        self.cast.labels = self.labels

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Fill the template, truncating the longest column to fit; training features get the target."""
        self.cast.check(lambda text: _round_trip(text, spec))
        names = [self.config.messages] if self.config.messages else columns_of(self.config.template)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*(examples.columns[n] for n in names), strict=True)]
        max_new = self.max_new_tokens(spec) if spec.family == "decoder" else 0
        fitted = [self._fitted(row, spec, spec.max_length - max_new) for row in rows]
        targets = [self.cast.write(gold) for gold in examples.labels] if training else None
        is_framed = self._is_chat and chat.has_template(spec.tokenizer)
        features = self.features_of([source for source, _ in fitted], targets, spec, is_framed)
        for row, feature, (_, cut) in zip(rows, features, fitted, strict=True):
            feature["cut"] |= cut
            lists = [value for value in row.values() if isinstance(value, list)]
            feature["words"] = len(lists[0] if lists else str(row[names[0]]).split())
        return features

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Convert each generated text to a prediction."""
        spellings: dict[str, str] = {}

        def spell(text: str) -> str:
            return spellings[text] if text in spellings else spellings.setdefault(text, _round_trip(text, spec))

        return [
            self.cast.read(self.answer_text(ids, spec), spell, feature["words"])
            for ids, feature in zip(outputs, features, strict=True)
        ]

    def answer_text(self, ids: Sequence[int], spec: InputSpec) -> str:
        """Return the text of the answer in generated ids: all of it."""
        return text_of(ids, spec)

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics for this kind of gold value, the selection metric first."""
        usual = self.cast.applicable_metrics()
        first = self.config.metric or usual[0]
        return (first, *(name for name in usual if name != first))

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Derive a gold value of the configured kind from each text: its length or its first words."""
        median = sorted(map(len, texts))[len(texts) // 2]
        words = [text.split() or ["nothing"] for text in texts]
        gold: dict[str, list[Any]] = {
            "label": ["long" if len(text) >= median else "short" for text in texts],
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

    def _fitted(self, row: Mapping[str, Any], spec: InputSpec, max_tokens: int) -> tuple[str, bool]:
        """Fill the template; a source that is too long loses the end of its longest column, then of the others.

        Returns the source, and whether it was truncated.
        """
        if self.config.messages is not None:
            return chat.render(chat.before_reply(row[self.config.messages]), spec.tokenizer), False
        texts = {name: self.as_text(value) for name, value in row.items()}
        whole = dict(texts)
        for longest in sorted(texts, key=lambda name: -len(texts[name])):
            while (
                excess := len(spec.tokenizer(self.source_text(texts, spec))["input_ids"]) - max_tokens
            ) > 0 and texts[longest]:
                encoded = spec.tokenizer(texts[longest], add_special_tokens=False, return_offsets_mapping=True)
                ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
                end = offsets[max(len(ids) - excess, 0)][0] if ids else 0
                # One character may be several tokens, so remove at least one character each time.
                texts[longest] = texts[longest][: min(end, len(texts[longest]) - 1)].rstrip()
        return self.source_text(texts, spec), texts != whole

    def source_text(self, texts: Mapping[str, str], spec: InputSpec) -> str:
        """Return the source of a row, as the message of a user if `chat` is set."""
        text = self.filled(texts, spec)
        return chat.render([{"role": "user", "content": text}], spec.tokenizer) if self.config.chat else text

    def filled(self, texts: Mapping[str, str], spec: InputSpec) -> str:
        """Return the template with the texts of its columns."""
        return self.fill_template(texts)

    @property
    def _is_chat(self) -> bool:
        return self.config.chat or self.config.messages is not None

    def fill_template(self, texts: Mapping[str, str]) -> str:
        """Return the template with the texts of its columns."""
        fields = string.Formatter().parse(self.config.template)
        return "".join(literal + ("" if name is None else texts[name]) for literal, name, _, _ in fields)

    def as_text(self, value: Any) -> str:
        """Return a column's value as text; a list is joined as words if gold is `labels`, else as lettered choices."""
        if not isinstance(value, list):
            return str(value)
        if self.config.gold == "labels":
            return " ".join(value)
        return " ".join(f"({chr(ord('a') + i)}) {text}" for i, text in enumerate(value))


def columns_of(template: str) -> list[str]:
    """Return the column names of a template, each once."""
    fields = [field for field in string.Formatter().parse(template) if field[1] is not None]
    for _, name, form, conversion in fields:
        if not name or form or conversion or set(name) & set(".[]"):
            raise ValueError(f"the template {template!r} has a field that is not a column name")
    if not fields:
        raise ValueError(f"the template {template!r} has no column. Write one in braces, such as {{text}}.")
    return list(dict.fromkeys(str(name) for _, name, _, _ in fields))


def _round_trip(text: str, spec: InputSpec) -> str:
    """Return a text after encoding and decoding."""
    return text_of(spec.tokenizer(text, add_special_tokens=False)["input_ids"], spec)
