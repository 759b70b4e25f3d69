"""Prompt templates, and the encoding of a prompt for scoring label words."""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from headstart.core.data import Feature, InputSpec
from headstart.core.errors import DataError, RecipeError
from headstart.tasks.framing import frame, sentinels, start_token
from headstart.tasks.writing import end_of

LABEL = "label"
Blank = Literal["sentinel", "mask", "none"]


class Template:
    """A text with `{column}` for each text of a row, and one `{label}`."""

    def __init__(self, text: str, columns: Sequence[str]) -> None:
        """Parse the template; raises ValueError, for a recipe's validator, if it does not match the columns."""
        self.columns = list(columns)
        try:
            self.parts = [(literal, name) for literal, name, _, _ in string.Formatter().parse(text)]
        except ValueError as error:
            raise ValueError(
                f"template {text!r} cannot be parsed: {error}. Write a literal brace as {{{{ or }}}}."
            ) from error
        fields = [name for _, name in self.parts if name is not None]
        unknown = next((name for name in fields if name not in (LABEL, *self.columns)), None)
        missing = next((name for name in (*self.columns, LABEL) if name not in fields), None)
        if unknown is not None or missing is not None or fields.count(LABEL) > 1:
            fault = (
                f"has the unknown field {{{unknown}}}"
                if unknown is not None
                else f"has no {{{missing}}}"
                if missing
                else "has {label} twice"
            )
            texts = ", ".join(f"{{{name}}}" for name in self.columns)
            raise ValueError(f"template {text!r} {fault}. It must contain {texts} and exactly one {{label}}.")

    def around(self, texts: Sequence[str]) -> tuple[str, str]:
        """Return the text before the label's word and the text after it."""
        values = dict(zip(self.columns, texts, strict=True))
        sides = ["", ""]
        side = 0
        for literal, name in self.parts:
            sides[side] += literal
            side = 1 if name == LABEL else side
            sides[side] += "" if name in (None, LABEL) else values[str(name)]
        return sides[0], sides[1]

    def written(self, texts: Sequence[str], word: str) -> str:
        """Return the prompt of a row with the label's word filled in."""
        before, after = self.around(texts)
        return before + word + after

    def require_label_last(self) -> None:
        """Raise if text follows the label: a decoder predicts it from the text before it only."""
        if self.around([LABEL] * len(self.columns))[1].strip():
            raise RecipeError(
                "task.template has text after {label}",
                allowed="A decoder reads only the text before {label}",
                do="Put {label} last, or use an encoder",
            )


class _Encoded(NamedTuple):
    """A prompt with one word."""

    input_ids: list[int]
    positions: list[int]
    targets: list[int]
    written: Sequence[int] = ()
    """The text of an encoder-decoder's decoder."""


class PromptEncoder:
    """Encodes rows as prompts, with the `positions` that predict the words' tokens, and these tokens as `targets`."""

    def __init__(
        self, template: Template, words: Sequence[str], shown: str, spec: InputSpec, blank: Blank | None = None
    ) -> None:
        """Store the label words to score, the examples to show before each row, and an encoder-decoder's blank."""
        self.template, self.words, self.shown, self.spec = template, words, shown, spec
        self.prefix, self.suffix = frame(spec.tokenizer)
        self.blank = blank_of(spec, blank) if spec.family == "encoder-decoder" else None
        if spec.family == "decoder":
            template.require_label_last()

    def features(self, texts: Sequence[str]) -> list[Feature]:
        """Return the features of a prompt; texts are truncated at their end, the longest first, the examples never.

        Words with the same input ids share a feature: for a decoder, all words of one token; for an encoder, all words
        with the same number of tokens, since each token needs a mask. An encoder-decoder's feature has `labels`, the
        text that the decoder writes.
        """
        while True:
            features = self._features(texts)
            length = max(len(feature["input_ids"]) for feature in features)
            if length <= self.spec.max_length:
                return features
            offsets = [self._offsets(text) for text in texts]
            longest = max(range(len(texts)), key=lambda i: len(offsets[i]))
            tokens = len(offsets[longest])
            if not tokens:
                raise DataError(
                    f"the template and its examples take {length} tokens",
                    allowed=f"training.max_length is {self.spec.max_length}",
                    do="Raise training.max_length, or lower task.shots",
                )
            # Remove at most half at a time, so that the other texts of the row are truncated too.
            kept = max(tokens - (length - self.spec.max_length), tokens // 2)
            # One character may be several tokens, so remove at least one character each time.
            end = min(offsets[longest][kept - 1][1], len(texts[longest]) - 1) if kept else 0
            texts = [text[:end] if i == longest else text for i, text in enumerate(texts)]

    def _features(self, texts: Sequence[str]) -> list[Feature]:
        """Return the features of a prompt without truncation."""
        before, after = self.template.around(texts)
        encode = {"decoder": self._causal, "encoder": self._cloze, "encoder-decoder": self._seq2seq}[self.spec.family]
        features: dict[tuple[tuple[int, ...], ...], Feature] = {}
        for index, word in enumerate(self.words):
            ids, positions, targets, written = encode(self.shown + before, after, word)
            new: Feature = {"input_ids": ids, "words": [], "positions": [], "targets": []}
            # The last token that a decoder writes is not among its inputs.
            feature = features.setdefault(
                (tuple(ids), tuple(written[:-1])), new | ({"labels": written} if written else {})
            )
            feature["words"].append(index)
            feature["positions"].append(positions)
            feature["targets"].append(targets)
        return list(features.values())

    def _causal(self, before: str, _: str, word: str) -> _Encoded:
        """Encode a prompt that a decoder continues; a space before the word belongs to the word's token."""
        stem, continued = self._ids(before.rstrip(" ")), self._ids(before + word)
        # A decoder needs at least one token before the word.
        prefix = self.prefix or ([] if stem else [start_token(self.spec)])
        prompt, whole = [*prefix, *stem], [*prefix, *continued]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False)))
        return _Encoded(whole[:-1], list(range(same - 1, len(whole) - 1)), whole[same:])

    def _cloze(self, before: str, after: str, word: str) -> _Encoded:
        """Encode a prompt for an encoder, with one mask for each token of the word."""
        stem = before.rstrip(" ")
        targets, start = self._ids(before[len(stem) :] + word), [*self.prefix, *self._ids(stem)]
        masks = [self.spec.tokenizer.mask_token_id] * len(targets)
        ids = [*start, *masks, *self._ids(after), *self.suffix]
        return _Encoded(ids, list(range(len(start), len(start) + len(masks))), targets)

    def _seq2seq(self, before: str, after: str, word: str) -> _Encoded:
        """Encode a prompt for an encoder-decoder, whose decoder writes the word; see `blank_of`."""
        stem = before.rstrip(" ")
        targets, start = self._ids(before[len(stem) :] + word), self._ids(stem)
        blank: list[int] = []
        written: list[int] = []
        if self.blank == "sentinel":
            blank = written = list(sentinels(self.spec.tokenizer)[:1])
        elif self.blank == "mask":
            blank, written = [self.spec.tokenizer.mask_token_id], [*(self.prefix * self.spec.target_cls), *start]
        else:
            targets = [*self._ids(word), end_of(self.spec.tokenizer)]
        ids = [*self.prefix, *start, *blank, *self._ids(after), *self.suffix] or [start_token(self.spec)]
        positions = list(range(len(written), len(written) + len(targets)))
        return _Encoded(ids, positions, targets, [*written, *targets])

    def _ids(self, text: str) -> list[int]:
        return list(self.spec.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _offsets(self, text: str) -> list[tuple[int, int]]:
        encoded = self.spec.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return list(encoded["offset_mapping"])


def blank_of(spec: InputSpec, blank: Blank | None) -> Blank:
    """Return what an encoder-decoder reads in place of the answer; by default what its tokenizer has.

    - sentinel: T5's first sentinel. The decoder writes the sentinel and the answer, as in span corruption.
    - mask: [MASK]. The decoder writes the whole text with the answer in it, as in BART's denoising.
    - none: nothing. The decoder writes the answer alone, as a fine-tuned model does.
    """
    if blank is None:
        return "sentinel" if sentinels(spec.tokenizer) else "none" if spec.tokenizer.mask_token_id is None else "mask"
    require_blank(spec, blank)
    return blank


def require_blank(spec: InputSpec, blank: Blank | None) -> None:
    """Raise if the tokenizer does not have the token that `task.blank` names."""
    available = {"sentinel": bool(sentinels(spec.tokenizer)), "mask": spec.tokenizer.mask_token_id is not None}
    if blank is not None and not available.get(blank, True):
        raise RecipeError(
            f"task.blank is {blank!r}, but the model's tokenizer has no such token",
            allowed="A tokenizer of T5 has sentinels, one of BART a mask token",
            do="Set task.blank to none, or remove it",
        )
