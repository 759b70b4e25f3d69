"""Characters and whitespace are normalized."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")
pytest.importorskip("ftfy", reason="pip install 'headstart[corpus]'")

from headstart.corpus.clean.unicode import Unicode, UnicodeConfig

CLEANED = {
    "schÃ¶n and cafÃ©, itâ€™s": "schön and café, it’s",
    "AT&amp;T and &lt;b&gt;": "AT&T and <b>",
    "e\u0301tude": "étude",
    "a\u00a0b\tc   d  \n\n\n\n e": "a b c d\n\n e",
    "one\r\ntwo\rthree\u2028four": "one\ntwo\nthree\nfour",
    "bell\x07 and soft\u00adhyphen and zero\u200bwidth\ufeff": "bell and softhyphen and zerowidth",
    "ﬁne ﬂat": "fine flat",
    "“quotes” stay – 日本語。Привет": "“quotes” stay – 日本語。Привет",
    "می‌خواهم": "می‌خواهم",
    "  plain  ": "plain",
}


def batch(*texts: str) -> pa.Table:
    return pa.table({"text": pa.array(texts, pa.large_string())})


def test_what_changes_and_what_is_kept() -> None:
    output = Unicode(UnicodeConfig()).apply(batch(*CLEANED))
    assert output.table["text"].to_pylist() == list(CLEANED.values())
    assert output.counts["documents seen by ftfy"] == 3


def test_a_text_that_becomes_empty_is_dropped() -> None:
    output = Unicode(UnicodeConfig(mojibake="off")).apply(batch("\u200b\x01", "x"))
    assert output.verdict.to_pylist() == ["unicode.empty", None]


def test_thorough_fixes_other_code_pages() -> None:
    text = "РџСЂРёРІРµС‚"  # "Привет" in UTF-8, decoded as Windows-1251
    assert Unicode(UnicodeConfig(mojibake="thorough")).apply(batch(text)).table["text"][0].as_py() == "Привет"
    assert Unicode(UnicodeConfig()).apply(batch(text)).table["text"][0].as_py() == text
