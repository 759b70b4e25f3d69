"""Questions about a text, answered by a stretch of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from transformers import PreTrainedModel

from headstart.core.config import Section
from headstart.core.data import Batch, ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.tasks.base import MODEL_INPUTS, BaseTask, Padding, by_example
from headstart.tasks.labelled import TEXT
from headstart.tasks.windows import Window, windows


class AnswerCandidate(NamedTuple):
    """A stretch of the text that may be the answer."""

    text: str
    score: float
    """The logit of its first token as a beginning, and that of its last as an end."""


class SpanQA(BaseTask):
    """The stretch of a text that answers a question, found in overlapping windows of a long text."""

    paper: ClassVar[str] = "Rajpurkar et al. 2016, SQuAD; Devlin et al. 2019, BERT, sections 4.2 and 4.3"
    head: ClassVar[str] = "AutoModelForQuestionAnswering"
    families: ClassVar[tuple[str, ...]] = ("encoder", "xlnet")
    paddings: ClassVar[Mapping[str, Padding]] = {**BaseTask.paddings, "answerable": Padding(0)}

    class Config(Section):
        """Which columns hold question, text and answers, how the text is cut, and which answers are possible."""

        kind: Literal["span_qa"] = "span_qa"
        question: str = Field("question", description="the column with the question")
        context: str = Field("context", description="the column with the text that holds the answer")
        answers: str = Field("answers", description="the column with SQuAD's mapping of `text` and `answer_start`")
        stride: int = Field(128, ge=0, description="tokens that two windows over one text share; BERT used 128")
        max_question: int = Field(64, ge=1, description="tokens of a question that are read; BERT used 64")
        max_answer: int = Field(30, ge=1, description="tokens of the longest answer; BERT used 30")
        n_best: int = Field(20, ge=1, description="candidates that are kept of each window; BERT used 20")
        impossible: bool = Field(False, description="some questions have no answer (SQuAD 2.0); `text` is empty then")
        null_threshold: float = Field(
            0.0, description="no answer is predicted where its score leads the best one's by more than this"
        )

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Name the question, the text and the answers, the same in every split."""
        texts = {"task.question": self.config.question, "task.context": self.config.context}
        kind = ANSWERS_OR_NONE if self.config.impossible else ANSWERS
        return [
            *(InputColumn(name, TEXT, setting) for setting, name in texts.items()),
            InputColumn(self.config.answers, kind, "task.answers", is_gold=True),
        ]

    def fit_labels(self, train: Examples) -> None:
        """Learn nothing: an answer is a place in the text."""

    def head_settings(self) -> dict[str, Any]:
        """Return one output for where an answer begins and one for where it ends."""
        return {"num_labels": 2}

    def encode(self, examples: Examples, reading: InputSpec, training: bool = False) -> list[Feature]:
        """Cut each text into windows; those to train on carry the first answer's tokens, or the place of no answer."""
        questions, contexts = (examples.columns[name] for name in (self.config.question, self.config.context))
        features: list[Feature] = []
        for window in windows(questions, contexts, reading, self.config.stride, self.config.max_question):
            cls = reading.tokenizer.cls_token_id
            null = window.input_ids.index(cls) if cls in window.input_ids else 0
            answerable = (window.offsets[:, 0] >= 0).astype(np.int64)
            answerable[null] = 1
            feature: Feature = {
                "input_ids": window.input_ids, "answerable": answerable.tolist(), "example": window.pair,
                "offsets": window.offsets, "context": contexts[window.pair], "null": null,
            }  # fmt: skip
            if window.token_type_ids is not None:
                feature["token_type_ids"] = window.token_type_ids
            if training:
                feature["labels"] = list(self._place(examples, window) or (null, null))
            features.append(feature)
        return features

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return shape (windows, tokens, 2): how well an answer begins and ends at a token of the text, or at none."""
        output: Any = model(**{name: batch[name] for name in MODEL_INPUTS if name in batch})
        both = torch.stack([output.start_logits, output.end_logits], dim=-1).float()
        return both.masked_fill(batch["answerable"].unsqueeze(-1) == 0, float("-inf"))

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return cross-entropy over the tokens of each window, summed over beginnings and ends."""
        return F.cross_entropy(self.logits(model, batch), batch["labels"], reduction="sum")

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the logits of each window's tokens."""
        lengths = batch["attention_mask"].sum(1).tolist()
        found = self.logits(model, batch).detach().cpu().numpy()
        return [row[:length] for row, length in zip(found, lengths, strict=True)]

    def candidates(self, outputs: Sequence[Any], features: Sequence[Feature]) -> list[list[AnswerCandidate]]:
        """Return for each example the n best answers of each of its windows, the likeliest first and each text once."""
        return [self._merged(pieces) for pieces in by_example(outputs, features)]

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Take the likeliest answer of all windows; none, where that may be and leads in every window."""
        predictions = []
        for pieces in by_example(outputs, features):
            best = next(iter(self._merged(pieces)), AnswerCandidate("", float("-inf")))
            # The least of the windows: one that holds the answer says that there is one.
            null = min(float(logits[feature["null"]].sum()) for logits, feature in pieces)
            is_none = self.config.impossible and null - best.score > self.config.null_threshold
            predictions.append("" if is_none else best.text)
        return predictions

    def metrics(self) -> tuple[str, ...]:
        """Name SQuAD's two metrics."""
        return ("squad_f1", "squad_exact_match")

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Ask for the first word of each text; where questions may have no answer, every fourth asks for nothing."""
        contexts = [text if text.strip() else "nothing" for text in texts]
        words = [text.split()[0] for text in contexts]
        asks = [not self.config.impossible or place % 4 > 0 for place in range(len(texts))]
        answers: list[dict[str, list[Any]]] = [
            {"text": [word], "answer_start": [text.index(word)]} if asked else {"text": [], "answer_start": []}
            for text, word, asked in zip(contexts, words, asks, strict=True)
        ]
        questions = ["Which word comes first?" if asked else "Which word is missing?" for asked in asks]
        return Examples({self.config.question: questions, self.config.context: contexts}, answers, "toy rows")

    def _place(self, examples: Examples, window: Window) -> tuple[int, int] | None:
        """Return the tokens of the first answer in a window; None where the window, or the text, has it not."""
        answers, context = examples.labels[window.pair], examples.columns[self.config.context][window.pair]
        if not answers["text"]:
            return None
        text, start = answers["text"][0], answers["answer_start"][0]
        if context[start : start + len(text)] != text:
            raise DataError(
                f"{examples.source}, row {window.pair + 1} has the answer {text[:60]!r} at character {start}, where "
                f"{self.config.context!r} has {context[start : start + len(text)][:60]!r}",
                allowed="answer_start counts characters of the text from 0",
                do="Mend answer_start in that row",
            )
        return window.tokens_of(start, start + len(text))

    def _merged(self, pieces: Sequence[tuple[Any, Feature]]) -> list[AnswerCandidate]:
        found = [candidate for logits, feature in pieces for candidate in self._of_window(logits, feature)]
        best: dict[str, AnswerCandidate] = {}
        for candidate in sorted(found, key=lambda candidate: -candidate.score):
            best.setdefault(candidate.text, candidate)
        return list(best.values())[: self.config.n_best]

    def _of_window(self, logits: Any, feature: Feature) -> list[AnswerCandidate]:
        """Return the best stretches of one window: all beginnings with all ends up to the longest answer."""
        offsets, context = feature["offsets"], feature["context"]
        tokens = np.flatnonzero(offsets[:, 0] >= 0)
        if not len(tokens):
            return []
        longest = min(self.config.max_answer, len(tokens))
        begins, ends = logits[tokens].T
        reach = np.lib.stride_tricks.sliding_window_view(np.append(ends, np.full(longest - 1, -np.inf)), longest)
        scores = (begins[:, None] + reach).ravel()
        count = min(self.config.n_best, len(scores))
        chosen = np.argpartition(-scores, count - 1)[:count]
        spans = [(tokens[place // longest], place, place % longest) for place in chosen if scores[place] > -np.inf]
        found = [
            AnswerCandidate(context[offsets[first, 0] : offsets[first + further, 1]].strip(), float(scores[place]))
            for first, place, further in spans
        ]
        return [candidate for candidate in found if candidate.text]


def _are_answers(value: Any, least: int) -> bool:
    texts, starts = (value.get(key) if isinstance(value, dict) else None for key in ("text", "answer_start"))
    return (
        isinstance(texts, list)
        and isinstance(starts, list)
        and len(texts) == len(starts) >= least
        and all(isinstance(text, str) and text for text in texts)
        and all(isinstance(start, int) and start >= 0 for start in starts)
    )


ANSWERS = ColumnKind(
    "answers as SQuAD has them, {text: […], answer_start: […]}, one or more", lambda value: _are_answers(value, 1)
)
ANSWERS_OR_NONE = ColumnKind(
    "answers as SQuAD has them, {text: […], answer_start: […]}, two empty lists for none",
    lambda value: _are_answers(value, 0),
)
