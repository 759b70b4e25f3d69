"""Unicode, whitespace and control characters: mojibake is fixed by ftfy, the rest by native expressions."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.core.config import Section
from headstart.core.errors import ResourceError
from headstart.core.extras import install_command
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.steps import StepOutput, as_array, replace_where, with_text

if TYPE_CHECKING:
    from daft import Expression

# UTF-8 decoded as Latin-1 or Windows-1252: the characters of a leading byte are followed by those of a trailing byte.
_TRAILING = "\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_ENTITY = "&(?:#[0-9]{1,6}|[A-Za-z]{2,8});"
USUAL = rf"[\u00c2-\u00f4][{_TRAILING}]|[\u00c2\u00c3] |[\u0080-\u009f]|{_ENTITY}|[\ufb00-\ufb06]"
_THOROUGH = rf"[^\x00-\x7f]|{USUAL}"
_COMPOSABLE = "[\u0300-\u036f\u1100-\u11ff\u3099\u309a\u212a\u212b\uf900-\ufaff]"
_LINE_ENDS = "\r\n|[\r\u000b\u000c\u0085\u2028\u2029]"
_SPACES = "[\t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]"
# Zero-width joiners are kept: Persian, Indic scripts and emoji are written with them.
_CONTROLS = (
    "[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u00ad\u200b\u200e\u200f\u202a-\u202e"
    "\u2060\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
WHITESPACE = ((_LINE_ENDS, "\n"), (_CONTROLS, ""), (_SPACES, " "), (" {2,}", " "), (" \n", "\n"), ("\n{3,}", "\n\n"))
"""Patterns and their replacements, in the order in which they are applied."""


class UnicodeConfig(Section):
    """How characters are normalized; a document is dropped only if its text becomes empty."""

    mojibake: Literal["usual", "thorough", "off"] = Field(
        "usual",
        description="which lines ftfy fixes. usual: those with signs of UTF-8 decoded as Latin-1 or Windows-1252, "
        "HTML entities or ligatures; thorough: all that are not ASCII, which also covers other encodings such as Mac "
        "Roman and is slow; off: none",
    )


class Unicode:
    """Fix mojibake, compose characters (NFC), unify spaces and line ends, remove control characters."""

    name = "unicode"

    def __init__(self, config: UnicodeConfig) -> None:
        """Compile the patterns for the section of the recipe."""
        self.config = config
        self._gate = {"usual": USUAL, "thorough": _THOROUGH, "off": ""}[config.mojibake]
        self._line_gate = re.compile(self._gate) if self._gate else None
        self._fix = _ftfy() if self._gate else None

    def apply(self, table: pa.Table) -> StepOutput:
        """Return the batch with normalized texts; documents that become empty are dropped."""
        counts: Counter[str] = Counter()
        before = table["text"]
        texts = self._fix_characters(before, counts)
        texts = evaluate(pa.table({"text": texts}), {"text": _normalize_whitespace()})["text"]
        counts["documents changed"] = len(texts) - int(pc.sum(pc.equal(texts, before)).as_py() or 0)
        empty = pc.equal(pc.binary_length(texts), 0)
        verdict = pc.if_else(empty, "unicode.empty", pa.scalar(None, pa.string()))
        return StepOutput(with_text(table, texts), verdict, counts)

    def _fix_characters(self, texts: pa.ChunkedArray | pa.Array, counts: Counter[str]) -> pa.ChunkedArray | pa.Array:
        from daft import col
        from daft.functions import regexp

        gates = {"composable": regexp(col("text"), _COMPOSABLE)}
        if self._gate:
            gates["suspect"] = regexp(col("text"), self._gate)
        flags = evaluate(pa.table({"text": texts}), gates)
        if self._gate:
            texts = _map_where(texts, flags["suspect"], self._fix_lines)
            counts["documents seen by ftfy"] = int(pc.sum(flags["suspect"]).as_py() or 0)
        return _map_where(texts, flags["composable"], lambda text: unicodedata.normalize("NFC", text))

    def _fix_lines(self, text: str) -> str:
        """Apply ftfy, which works line by line in any case, to the suspicious lines."""
        assert self._line_gate is not None and self._fix is not None
        return "\n".join(
            self._fix(line) if self._line_gate.search(line) else line for line in text.replace("\r\n", "\n").split("\n")
        )


def _map_where(texts: pa.ChunkedArray | pa.Array, mask: pa.ChunkedArray, function: Callable[[str], str]) -> pa.Array:
    """Apply a Python function to the texts that a mask selects; the others stay in Arrow."""
    if not pc.any(mask).as_py():
        return texts
    return replace_where(texts, mask, [function(text) for text in texts.filter(as_array(mask)).to_pylist()])


def _normalize_whitespace() -> Expression:
    from daft import col
    from daft.functions import regexp_replace, strip

    text = col("text")
    for pattern, replacement in WHITESPACE:
        text = regexp_replace(text, pattern, replacement)
    return strip(text)


def _ftfy() -> Callable[[str], str]:
    try:
        import ftfy
    except ImportError as error:
        raise ResourceError(
            "fixing mojibake needs ftfy, which is not installed",
            do=f"{install_command('corpus')}, or set clean.unicode.mojibake to off",
        ) from error
    # Quotes and full-width forms are not changed.
    config = ftfy.TextFixerConfig(uncurl_quotes=False, fix_character_width=False, normalization="NFC")
    return lambda line: ftfy.fix_text(line, config)
