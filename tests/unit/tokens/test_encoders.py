"""Texts on all cores: processes of their own give what one process gives, and leave nothing behind."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from headstart.core.data import Document
from headstart.core.errors import DataError
from headstart.tokens import encoders, shards


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_processes_write_the_same_bytes(
    tokenizers: dict[str, PreTrainedTokenizerFast],
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documents = [Document(f"t:{i}", text) for i, text in enumerate(texts)]
    shards.write(documents, tokenizers["wordpiece"], tmp_path / "one", batch_characters=500)
    monkeypatch.setattr(encoders, "FEW_CHARACTERS", 1)
    monkeypatch.setattr(encoders, "_processes", lambda: 2)
    asked: list[int] = []
    before = encoders._in_processes
    monkeypatch.setattr(
        encoders, "_in_processes", lambda batches, *rest: before((asked.append(len(b)) or b for b in batches), *rest)
    )
    shards.write(documents, tokenizers["wordpiece"], tmp_path / "several", batch_characters=500)
    assert len(asked) > 4
    assert written(tmp_path / "one") == written(tmp_path / "several")


def test_processes_end_with_an_error_of_the_reader(
    tokenizers: dict[str, PreTrainedTokenizerFast], texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "FEW_CHARACTERS", 1)
    monkeypatch.setattr(encoders, "_processes", lambda: 2)

    def documents() -> object:
        yield from (Document("t", text) for text in texts)
        raise DataError("the file ends in the middle")

    with pytest.raises(DataError, match="in the middle"):
        shards.write(documents(), tokenizers["wordpiece"], tmp_path, batch_characters=500)  # type: ignore[arg-type]
    assert not multiprocessing.active_children()


def test_a_script_without_a_main_guard_is_run_once(
    tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizers["bpe"].backend_tokenizer.to_str(), encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from headstart.tokens import encoders\n"
        "print('once')\n"
        "encoders.FEW_CHARACTERS, encoders._processes = 1, lambda: 2\n"
        "tokenizer = Path(__file__).with_name('tokenizer.json').read_text(encoding='utf-8')\n"
        "print(sum(len(found.ids) for found in encoders.encoded([['bada kamo'] * 9] * 9, tokenizer)) > 80)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["once", "True"], done.stderr
