"""Prompting for question answering and generation: a language model writes the answer, without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from headstart.core.data import Examples, Feature, InputSpec
from headstart.core.errors import DataError
from headstart.tasks.framing import sentinels
from headstart.tasks.prompt import select_shots
from headstart.tasks.prompted import BETWEEN, SHOTS, Untrained
from headstart.tasks.template import require_blank
from headstart.tasks.text_to_text import TextToText, columns_of
from headstart.tasks.writing import text_of


class PromptText(Untrained, TextToText):
    """Zero- and few-shot question answering and generation: a language model writes the answer; no training."""

    paper: ClassVar[str] = "Brown et al. 2020, GPT-3, sections 3.1 to 3.3; encoder-decoders: Raffel et al. 2020, T5"

    class Config(TextToText.Config):
        """The prompt template, the kind of answer, and the examples in the prompt."""

        kind: Literal["prompt_text"] = "prompt_text"  # type: ignore[assignment]  # the name of the entry
        template: str = Field(
            "{text}",
            description="the prompt for a row, with columns in braces; the model continues it with a space and the "
            'answer: "Question: {question}\\nAnswer:"',
        )
        gold: Literal["label", "labels", "number", "text", "answers"] = Field(
            "text",
            description="the kind of gold value: a label, a list of labels (one per word), a number, a text, or "
            "SQuAD's answers",
        )
        target: str = Field("target", description="the column with the gold value")
        shots: int = SHOTS
        between: str = BETWEEN
        stop: str = Field("\n", description="the answer ends where the model writes this text; empty: it never does")
        blank: Literal["sentinel", "none"] | None = Field(
            None,
            description="for encoder-decoders, what the encoder reads in place of the answer. sentinel: T5's "
            "<extra_id_0>; none: nothing, as a fine-tuned model does. Default: sentinel if the tokenizer has it",
        )

        @model_validator(mode="after")
        def _has_a_template(self) -> PromptText.Config:
            if self.messages is not None:
                raise ValueError("messages is set, but a prompt has a template. Use text_to_text for conversations.")
            return self

    def __init__(self, config: Any) -> None:
        """Store the config; the prompt has no examples until `show` selects them."""
        super().__init__(config)
        self.shown: list[list[str]] = []

    def fit_labels(self, train: Examples) -> None:
        """Fit the cast, and select the examples of the prompt."""
        super().fit_labels(train)
        self.show(train, 0)

    def show(self, train: Examples, seed: int) -> None:
        """Select and order the examples of the prompt, by the seed."""
        names = columns_of(self.config.template)
        self.shown = []
        for row in select_shots(self.config.shots, len(train), seed):
            texts = {name: self.as_text(train.columns[name][row]) for name in names}
            self.shown.append([self.fill_template(texts), self.cast.write(train.labels[row])])

    def state(self) -> dict[str, Any]:
        """Return what the cast has learned, and the examples of the prompt."""
        return {**super().state(), "shown": self.shown}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what the cast has learned, and the examples of the prompt."""
        super().restore(state)
        self.shown = [list(pair) for pair in state["shown"]]

    def encode(self, examples: Examples, spec: InputSpec, training: bool = False) -> list[Feature]:
        """Write each row as a prompt; columns are truncated to fit, the longest first, the examples never."""
        empty = dict.fromkeys(columns_of(self.config.template), "")
        tokens = len(spec.tokenizer(self.source_text(empty, spec))["input_ids"])
        room = spec.max_length - (self.max_new_tokens(spec) if spec.family == "decoder" else 0)
        if tokens > room:
            raise DataError(
                f"the template and its examples take {tokens} tokens",
                allowed=f"training.max_length leaves {room} tokens for a prompt",
                do="Raise training.max_length, or lower task.shots or task.max_target",
            )
        return super().encode(examples, spec)

    def filled(self, texts: Mapping[str, str], spec: InputSpec) -> str:
        """Return the prompt: the examples with their answers, then the row without, and T5's sentinel."""
        shown = "".join(f"{source} {target}{self.config.between}" for source, target in self.shown)
        blank = list(self._sentinels(spec)[:1])
        return " ".join([shown + self.fill_template(texts), *map(str, spec.tokenizer.convert_ids_to_tokens(blank))])

    def answer_text(self, ids: Sequence[int], spec: InputSpec) -> str:
        """Return the generated text up to `stop`; with sentinels, the text between the first and the second."""
        marks = set(self._sentinels(spec))
        answer = list(takewhile(lambda token: token not in marks, ids[1:] if ids and ids[0] in marks else ids))
        text = text_of(answer, spec)
        return text.split(self.config.stop)[0].strip() if self.config.stop else text

    def _sentinels(self, spec: InputSpec) -> tuple[int, ...]:
        """Return the sentinels that mark the answer of an encoder-decoder; none if it writes the answer alone."""
        if spec.family != "encoder-decoder" or self.config.blank == "none":
            return ()
        require_blank(spec, self.config.blank)
        return sentinels(spec.tokenizer)
