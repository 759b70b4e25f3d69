"""Unicode, whitespace and control characters: mojibake mended by ftfy, the rest by native expressions."""

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
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.steps import StepOutput, changed, flat, with_text

if TYPE_CHECKING:
    from daft import Expression

# UTF-8 that was read as Latin-1 or Windows-1252: what a leading byte looks like there, then what a following one does.
_FOLLOWING = "\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_ENTITY = "&(?:#[0-9]{1,6}|[A-Za-z]{2,8});"
USUAL = rf"[\u00c2-\u00f4][{_FOLLOWING}]|[\u00c2\u00c3] |[\u0080-\u009f]|{_ENTITY}|[\ufb00-\ufb06]"
_THOROUGH = rf"[^\x00-\x7f]|{USUAL}"
_COMPOSABLE = "[\u0300-\u036f\u1100-\u11ff\u3099\u309a\u212a\u212b\uf900-\ufaff]"
_LINE_ENDS = "\r\n|[\r\u000b\u000c\u0085\u2028\u2029]"
_BLANKS = "[\t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]"
# Zero-width joiners stay: Persian, Indic scripts and emoji are spelt with them.
_CONTROLS = (
    "[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u00ad\u200b\u200e\u200f\u202a-\u202e"
    "\u2060\ufeff\ufff9-\ufffb\ufffe\uffff]"
)


class UnicodeConfig(Section):
    """How the characters are put right; texts change, none is dropped but those left empty."""

    mojibake: Literal["usual", "thorough", "off"] = Field(
        "usual",
        description="which lines ftfy sees: those with signs of UTF-8 read as Latin-1 or Windows-1252, with HTML "
        "entities or ligatures; every line beyond ASCII, which also finds Mac Roman and the like and is slow; or none",
    )


class Unicode:
    """Mend mojibake, compose characters (NFC), unify blanks and line ends, take out controls."""

    name = "unicode"

    def __init__(self, config: UnicodeConfig) -> None:
        """Remember the section of the recipe."""
        self.config = config
        self._gate = {"usual": USUAL, "thorough": _THOROUGH, "off": ""}[config.mojibake]
        self._line_gate = re.compile(self._gate) if self._gate else None
        self._mend = _ftfy() if self._gate else None

    def apply(self, table: pa.Table) -> StepOutput:
        """Return the batch with clean texts; what is left empty is dropped."""
        counts: Counter[str] = Counter()
        before = table["text"]
        texts = self._mended(before, counts)
        texts = evaluate(pa.table({"text": texts}), {"text": _tidied()})["text"]
        counts["documents changed"] = len(texts) - int(pc.sum(pc.equal(texts, before)).as_py() or 0)
        empty = pc.equal(pc.binary_length(texts), 0)
        verdict = pc.if_else(empty, "unicode.empty", pa.scalar(None, pa.string()))
        return StepOutput(with_text(table, texts), verdict, counts)

    def _mended(self, texts: pa.ChunkedArray | pa.Array, counts: Counter[str]) -> pa.ChunkedArray | pa.Array:
        from daft import col
        from daft.functions import regexp

        gates = {"composable": regexp(col("text"), _COMPOSABLE)}
        if self._gate:
            gates["suspect"] = regexp(col("text"), self._gate)
        found = evaluate(pa.table({"text": texts}), gates)
        if self._gate:
            texts = _where(texts, found["suspect"], self._mend_lines)
            counts["documents seen by ftfy"] = int(pc.sum(found["suspect"]).as_py() or 0)
        return _where(texts, found["composable"], lambda text: unicodedata.normalize("NFC", text))

    def _mend_lines(self, text: str) -> str:
        """Apply ftfy, which works line by line in any case, to the lines that give it cause."""
        assert self._line_gate is not None and self._mend is not None
        return "\n".join(
            self._mend(line) if self._line_gate.search(line) else line
            for line in text.replace("\r\n", "\n").split("\n")
        )


def _where(texts: pa.ChunkedArray | pa.Array, chosen: pa.ChunkedArray, change: Callable[[str], str]) -> pa.Array:
    """Change the chosen texts in Python and leave the others where they are."""
    if not pc.any(chosen).as_py():
        return texts
    return changed(texts, chosen, [change(text) for text in texts.filter(flat(chosen)).to_pylist()])


def _tidied() -> Expression:
    from daft import col
    from daft.functions import regexp_replace, strip

    text = col("text")
    for pattern, by in (
        (_LINE_ENDS, "\n"),
        (_CONTROLS, ""),
        (_BLANKS, " "),
        (" {2,}", " "),
        (" \n", "\n"),
        ("\n{3,}", "\n\n"),
    ):
        text = regexp_replace(text, pattern, by)
    return strip(text)


def _ftfy() -> Callable[[str], str]:
    try:
        import ftfy
    except ImportError as error:
        raise ResourceError(
            "mending mojibake needs ftfy, which is not installed",
            do="pip install 'headstart[corpus]', or set clean.unicode.mojibake to off",
        ) from error
    # Quotes and full-width forms are left as they were written.
    config = ftfy.TextFixerConfig(uncurl_quotes=False, fix_character_width=False, normalization="NFC")
    return lambda line: ftfy.fix_text(line, config)
