"""Extractive question answering: the answer is a span of the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, ColumnKind, Examples, Feature, InputColumn, InputSpec, Split
from headstart.core.errors import DataError
from headstart.core.lazy import F, torch
from headstart.tasks.base import MODEL_INPUTS, BaseTask, Padding, by_example, softmax
from headstart.tasks.labelled import TEXT
from headstart.tasks.windows import Window, windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class AnswerCandidate(NamedTuple):
    """A span of the context that may be the answer."""

    text: str
    score: float
    """The start logit of its first token plus the end logit of its last token."""


class SpanQA(BaseTask):
    """Extractive question answering: the span of a context that answers a question, over overlapping windows."""

    paper: ClassVar[str] = "Rajpurkar et al. 2016, SQuAD; Devlin et al. 2019, BERT, sections 4.2 and 4.3"
    head: ClassVar[str] = "AutoModelForQuestionAnswering"
    families: ClassVar[tuple[str, ...]] = ("encoder", "xlnet", "decoder")
    paddings: ClassVar[Mapping[str, Padding]] = {**BaseTask.paddings, "answerable": Padding(0)}

    class Config(Section):
        """The columns of question, context and answers, the windows over a context, and the allowed answers."""

        kind: Literal["span_qa"] = "span_qa"
        question: str = Field("question", description="the column with the question")
        context: str = Field("context", description="the column with the text that contains the answer")
        answers: str = Field("answers", description="the column with SQuAD's mapping of `text` and `answer_start`")
        stride: int = Field(128, ge=0, description="overlap of two neighboring windows in tokens; BERT used 128")
        max_question: int = Field(64, ge=1, description="maximum length of a question in tokens; BERT used 64")
        max_answer: int = Field(30, ge=1, description="maximum length of an answer in tokens; BERT used 30")
        n_best: int = Field(20, ge=1, description="number of candidates per window; BERT used 20")
        impossible: bool = Field(
            False, description="some questions have no answer (SQuAD 2.0); their `text` list is empty"
        )
        null_threshold: float = Field(
            0.0,
            description="predict no answer if its score exceeds that of the best answer by more than this",
        )

    def columns(self, split: Split) -> Sequence[InputColumn]:
        """Return the columns of question, context and answers."""
        texts = {"task.question": self.config.question, "task.context": self.config.context}
        kind = ANSWERS_OR_NONE if self.config.impossible else ANSWERS
        return [
            *(InputColumn(name, TEXT, setting) for setting, name in texts.items()),
            InputColumn(self.config.answers, kind, "task.answers", is_gold=True),
        ]

    def fit_labels(self, train: Examples) -> None:
        """Do nothing: there is no label set."""

    def head_settings(self) -> dict[str, Any]:
        """Return a head with two outputs per token: start and end of the answer."""
        return {"num_labels": 2}

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Split contexts into windows; training windows get the first answer's tokens, or those of "no answer"."""
        questions, contexts = (examples.columns[name] for name in (self.config.question, self.config.context))
        features: list[Feature] = []
        for window in windows(questions, contexts, spec, self.config.stride, self.config.max_question):
            null = _null_token(window, spec)
            answerable = (window.offsets[:, 0] >= 0).astype(np.int64)
            answerable[null] = 1
            feature: Feature = {
                "input_ids": window.input_ids, "answerable": answerable.tolist(), "example": window.pair,
                "offsets": window.offsets, "context": contexts[window.pair], "null": null,
            }  # fmt: skip
            if window.token_type_ids is not None:
                feature["token_type_ids"] = window.token_type_ids
            if training:
                feature["labels"] = list(self._answer_tokens(examples, window) or (null, null))
            features.append(feature)
        return features

    def logits(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return start and end logits, shape (windows, tokens, 2); minus infinity where no answer can be."""
        output: Any = model(**{name: batch[name] for name in MODEL_INPUTS if name in batch})
        both = torch.stack([output.start_logits, output.end_logits], dim=-1).float()
        return both.masked_fill(batch["answerable"].unsqueeze(-1) == 0, float("-inf"))

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy over the tokens of each window, summed over starts and ends."""
        return F.cross_entropy(self.logits(model, batch), batch["labels"], reduction="sum")

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Return the logits of each window's tokens."""
        lengths = batch["attention_mask"].sum(1).tolist()
        logits = self.logits(model, batch).detach().cpu().numpy()
        return [row[:length] for row, length in zip(logits, lengths, strict=True)]

    def candidates(self, outputs: Sequence[Any], features: Sequence[Feature]) -> list[list[AnswerCandidate]]:
        """Return for each example the n best answers over its windows, the most likely first, each text once."""
        return [self._merged(pieces) for pieces in by_example(outputs, features)]

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the most likely answer over all windows, or "" if no answer is allowed and more likely."""
        predictions = []
        for pieces in by_example(outputs, features):
            best = next(iter(self._merged(pieces)), AnswerCandidate("", float("-inf")))
            is_none = self.config.impossible and _null_score(pieces) - best.score > self.config.null_threshold
            predictions.append("" if is_none else best.text)
        return predictions

    def scores(self, outputs: Sequence[Any], features: Sequence[Feature], spec: InputSpec) -> list[Any]:
        """Return the n best answers of each example with their probabilities, as pairs; there is no set of labels.

        The probabilities are among these answers only, as in BERT's files of n best answers. "" is no answer, if that
        is allowed.
        """
        scores: list[Any] = []
        for pieces in by_example(outputs, features):
            best = self._merged(pieces)
            if self.config.impossible or not best:
                best = [*best, AnswerCandidate("", _null_score(pieces))]
            probabilities = softmax([candidate.score for candidate in best])
            pairs = zip((candidate.text for candidate in best), probabilities, strict=True)
            scores.append(tuple(sorted(pairs, key=lambda pair: -pair[1])))
        return scores

    def metrics(self) -> tuple[str, ...]:
        """Return SQuAD's two metrics."""
        return ("squad_f1", "squad_exact_match")

    def toy_examples(self, texts: Sequence[str]) -> Examples:
        """Ask for the first word of each text; with `impossible`, every fourth question has no answer."""
        contexts = [text if text.strip() else "nothing" for text in texts]
        words = [text.split()[0] for text in contexts]
        has_answer = [not self.config.impossible or i % 4 > 0 for i in range(len(texts))]
        answers: list[dict[str, list[Any]]] = [
            {"text": [word], "answer_start": [text.index(word)]} if possible else {"text": [], "answer_start": []}
            for text, word, possible in zip(contexts, words, has_answer, strict=True)
        ]
        questions = ["Which word comes first?" if possible else "Which word is missing?" for possible in has_answer]
        return Examples({self.config.question: questions, self.config.context: contexts}, answers, "toy rows")

    def _answer_tokens(self, examples: Examples, window: Window) -> tuple[int, int] | None:
        """Return the first and last token of the first answer in a window; None if the window does not contain it."""
        answers, context = examples.labels[window.pair], examples.columns[self.config.context][window.pair]
        if not answers["text"]:
            return None
        text, start = answers["text"][0], answers["answer_start"][0]
        if context[start : start + len(text)] != text:
            raise DataError(
                f"{examples.source}, row {window.pair + 1} has the answer {text[:60]!r} at character {start}, but "
                f"{self.config.context!r} has {context[start : start + len(text)][:60]!r} there",
                allowed="answer_start counts the characters of the context from 0",
                do="Correct answer_start in that row",
            )
        return window.tokens_of(start, start + len(text))

    def _merged(self, pieces: Sequence[tuple[Any, Feature]]) -> list[AnswerCandidate]:
        """Return the n best candidates of an example's windows, each text once."""
        candidates = [c for logits, feature in pieces for c in self._window_candidates(logits, feature)]
        best: dict[str, AnswerCandidate] = {}
        for candidate in sorted(candidates, key=lambda candidate: -candidate.score):
            best.setdefault(candidate.text, candidate)
        return list(best.values())[: self.config.n_best]

    def _window_candidates(self, logits: Any, feature: Feature) -> list[AnswerCandidate]:
        """Return the n best spans of one window, over all starts and all lengths up to the maximum."""
        offsets, context = feature["offsets"], feature["context"]
        tokens = np.flatnonzero(offsets[:, 0] >= 0)
        if not len(tokens):
            return []
        longest = min(self.config.max_answer, len(tokens))
        starts, ends = logits[tokens].T
        # Row i holds the end logits of the spans that start at token i: shape (tokens, longest).
        ends = np.lib.stride_tricks.sliding_window_view(np.append(ends, np.full(longest - 1, -np.inf)), longest)
        scores = (starts[:, None] + ends).ravel()
        count = min(self.config.n_best, len(scores))
        best = np.argpartition(-scores, count - 1)[:count]
        spans = [(tokens[i // longest], i % longest, scores[i]) for i in best if scores[i] > -np.inf]
        candidates = [
            AnswerCandidate(context[offsets[first, 0] : offsets[first + length, 1]].strip(), float(score))
            for first, length, score in spans
        ]
        return [candidate for candidate in candidates if candidate.text]


def _null_token(window: Window, spec: InputSpec) -> int:
    """Return the token that means "no answer": [CLS], or the first token; a decoder's last, if it is special.

    A decoder's first token cannot see the question.
    """
    if spec.family == "decoder":
        return len(window.input_ids) - 1 if window.offsets[-1, 0] < 0 else 0
    cls = spec.tokenizer.cls_token_id
    return window.input_ids.index(cls) if cls in window.input_ids else 0


def _null_score(pieces: Sequence[tuple[Any, Feature]]) -> float:
    """Return the score of "no answer", the minimum over the windows: one that contains the answer is enough."""
    return min(float(logits[feature["null"]].sum()) for logits, feature in pieces)


def _are_answers(value: Any, minimum: int) -> bool:
    """Return whether a value is a mapping of SQuAD's form with at least `minimum` answers."""
    texts, starts = (value.get(key) if isinstance(value, dict) else None for key in ("text", "answer_start"))
    return (
        isinstance(texts, list)
        and isinstance(starts, list)
        and len(texts) == len(starts) >= minimum
        and all(isinstance(text, str) and text for text in texts)
        and all(isinstance(start, int) and start >= 0 for start in starts)
    )


ANSWERS = ColumnKind(
    "answers in SQuAD's form, {text: […], answer_start: […]}, one or more", lambda value: _are_answers(value, 1)
)
ANSWERS_OR_NONE = ColumnKind(
    "answers in SQuAD's form, {text: […], answer_start: […]}, two empty lists for none",
    lambda value: _are_answers(value, 0),
)
