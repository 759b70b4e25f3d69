"""A row of columns as a prompt: the text around the label's word, and the tokens that ask for it."""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import takewhile

from headstart.core.data import Feature, InputSpec
from headstart.core.errors import DataError, RecipeError
from headstart.tasks.framing import beginning, frame

LABEL = "label"


class Template:
    """A text with `{column}` for each text of a row, and `{label}` once."""

    def __init__(self, text: str, columns: Sequence[str]) -> None:
        """Take it apart; raises ValueError, for a recipe's validator, where it does not fit the columns."""
        self.columns = list(columns)
        try:
            self.parts = [(literal, name) for literal, name, _, _ in string.Formatter().parse(text)]
        except ValueError as error:
            raise ValueError(
                f"template {text!r} cannot be read: {error}. Write a brace itself as {{{{ or }}}}."
            ) from error
        named = [name for _, name in self.parts if name is not None]
        odd = next((name for name in named if name not in (LABEL, *self.columns)), None)
        lacking = next((name for name in (*self.columns, LABEL) if name not in named), None)
        if odd is not None or lacking is not None or named.count(LABEL) > 1:
            fault = (
                f"names {{{odd}}}" if odd is not None else f"lacks {{{lacking}}}" if lacking else "has {label} twice"
            )
            texts = ", ".join(f"{{{name}}}" for name in self.columns)
            raise ValueError(f"template {text!r} {fault}. It names {texts} and, once, {{label}}.")

    def around(self, texts: Sequence[str]) -> tuple[str, str]:
        """Return what stands before the label's word and what after it."""
        values = dict(zip(self.columns, texts, strict=True))
        sides = ["", ""]
        side = 0
        for literal, name in self.parts:
            sides[side] += literal
            side = 1 if name == LABEL else side
            sides[side] += "" if name in (None, LABEL) else values[str(name)]
        return sides[0], sides[1]

    def written(self, texts: Sequence[str], word: str) -> str:
        """Return the row with its label's word in place."""
        before, after = self.around(texts)
        return before + word + after

    def require_label_last(self) -> None:
        """Raise if text follows the label, which a decoder would not have read when it is asked."""
        if self.around([LABEL] * len(self.columns))[1].strip():
            raise RecipeError(
                "task.template goes on after {label}",
                allowed="A decoder writes on from what stands before it",
                do="Put {label} last, or take an encoder",
            )


class Asker:
    """Puts rows to a model as tokens: `places` at which it predicts the words' tokens, and these as `targets`."""

    def __init__(self, template: Template, words: Sequence[str], shown: str, reading: InputSpec) -> None:
        """Take the words to be scored and what is shown before each row."""
        self.template, self.words, self.shown, self.reading = template, words, shown, reading
        self.opens, self.closes = frame(reading.tokenizer)
        if reading.family == "decoder":
            template.require_label_last()

    def features(self, texts: Sequence[str]) -> list[Feature]:
        """Return what the model reads; the longest text is cut at its end until that fits, what is shown stays whole.

        Words that are asked by the same tokens share a feature: all of one token for a decoder, all of as many tokens
        for an encoder, which has as many masks to fill.
        """
        while True:
            found = self._passes(texts)
            length = max(len(feature["input_ids"]) for feature in found)
            if length <= self.reading.max_length:
                return found
            spans = [self._spans(text) for text in texts]
            longest = max(range(len(texts)), key=lambda place: len(spans[place]))
            whole = len(spans[longest])
            if not whole:
                raise DataError(
                    f"a prompt takes {length} tokens, most of them of the template and the rows that it shows",
                    allowed=f"training.max_length is {self.reading.max_length}",
                    do="Raise training.max_length, or lower task.shots",
                )
            # At most half at a time: the others of a row give their share.
            kept = max(whole - (length - self.reading.max_length), whole // 2)
            # A character may be several tokens: something must go each time.
            end = min(spans[longest][kept - 1][1], len(texts[longest]) - 1) if kept else 0
            texts = [text[:end] if place == longest else text for place, text in enumerate(texts)]

    def _passes(self, texts: Sequence[str]) -> list[Feature]:
        before, after = self.template.around(texts)
        ask = self._continued if self.reading.family == "decoder" else self._filled
        features: dict[tuple[int, ...], Feature] = {}
        for number, word in enumerate(self.words):
            ids, places, targets = ask(self.shown + before, after, word)
            feature = features.setdefault(tuple(ids), {"input_ids": ids, "words": [], "places": [], "targets": []})
            feature["words"].append(number)
            feature["places"].append(places)
            feature["targets"].append(targets)
        return list(features.values())

    def _continued(self, before: str, _: str, word: str) -> tuple[list[int], list[int], list[int]]:
        """Let a decoder go on; a blank before the word belongs to the word's token, as it does in running text."""
        stem, continued = self._ids(before.rstrip(" ")), self._ids(before + word)
        # Where nothing stands before the word, something must: a decoder predicts after a token.
        opens = self.opens or ([] if stem else [beginning(self.reading)])
        prompt, whole = [*opens, *stem], [*opens, *continued]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False)))
        return whole[:-1], list(range(same - 1, len(whole) - 1)), whole[same:]

    def _filled(self, before: str, after: str, word: str) -> tuple[list[int], list[int], list[int]]:
        """Let an encoder fill in as many masks as the word has tokens."""
        stem = before.rstrip(" ")
        targets, start = self._ids(before[len(stem) :] + word), [*self.opens, *self._ids(stem)]
        masks = [self.reading.tokenizer.mask_token_id] * len(targets)
        ids = [*start, *masks, *self._ids(after), *self.closes]
        return ids, list(range(len(start), len(start) + len(masks))), targets

    def _ids(self, text: str) -> list[int]:
        return list(self.reading.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _spans(self, text: str) -> list[tuple[int, int]]:
        found = self.reading.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return list(found["offset_mapping"])
