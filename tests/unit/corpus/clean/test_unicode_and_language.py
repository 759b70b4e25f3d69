"""Characters put right, and languages told."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")
pytest.importorskip("ftfy", reason="pip install 'headstart[corpus]'")

from headstart.corpus.clean.language import Language, LanguageConfig
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


def test_what_is_put_right_and_what_is_left() -> None:
    outcome = Unicode(UnicodeConfig()).apply(batch(*CLEANED))
    assert outcome.table["text"].to_pylist() == list(CLEANED.values())
    assert outcome.counts["documents seen by ftfy"] == 3


def test_what_is_left_empty_is_dropped_by_name() -> None:
    outcome = Unicode(UnicodeConfig(mojibake="off")).apply(batch("\u200b\x01", "x"))
    assert outcome.verdict.to_pylist() == ["unicode.empty", None]


def test_thorough_sees_other_code_pages() -> None:
    text = "РџСЂРёРІРµС‚"  # "Привет" in UTF-8, read as Windows-1251
    assert Unicode(UnicodeConfig(mojibake="thorough")).apply(batch(text)).table["text"][0].as_py() == "Привет"
    assert Unicode(UnicodeConfig()).apply(batch(text)).table["text"][0].as_py() == text


def test_languages_are_told_and_others_dropped() -> None:
    texts = {
        "en": "The old man went down to the sea and looked at the ships for a long time.",
        "pt": "O velho homem foi até o mar e olhou para os navios durante muito tempo.",
        "de": "Der alte Mann ging hinunter ans Meer und sah sich lange die Schiffe an.",
        "ru": "Старик спустился к морю и долго смотрел на корабли.",
        "zh": "老人走到海边，久久地望着船只。",
    }
    outcome = Language(LanguageConfig(keep=["en", "pt"])).apply(batch(*texts.values(), "xq zzt 77 qwv"))
    assert outcome.table["language"].to_pylist()[:5] == list(texts)
    assert outcome.verdict.to_pylist() == [None, None, *["language.other"] * 3, "language.unsure"]
    assert Language(LanguageConfig()).apply(batch(*texts.values())).verdict.null_count == 5
    assert len(Language(LanguageConfig()).apply(batch()).table) == 0
