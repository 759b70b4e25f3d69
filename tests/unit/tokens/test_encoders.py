"""A pool of processes encodes to the same bytes as one process, and leaves no process behind."""

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


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_pool_writes_the_same_bytes(
    tokenizers: dict[str, PreTrainedTokenizerFast],
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documents = [Document(f"t:{i}", text) for i, text in enumerate(texts)]
    shards.write(documents, tokenizers["wordpiece"], tmp_path / "one", batch_characters=500)
    monkeypatch.setattr(encoders, "POOL_THRESHOLD_CHARACTERS", 1)
    monkeypatch.setattr(encoders, "_worker_count", lambda: 2)
    sizes: list[int] = []
    encode_in_pool = encoders._encode_in_pool

    def counted(batches, *rest):
        return encode_in_pool((sizes.append(len(batch)) or batch for batch in batches), *rest)

    monkeypatch.setattr(encoders, "_encode_in_pool", counted)
    shards.write(documents, tokenizers["wordpiece"], tmp_path / "several", batch_characters=500)
    assert len(sizes) > 4
    assert files_of(tmp_path / "one") == files_of(tmp_path / "several")


def test_the_pool_ends_when_the_reader_fails(
    tokenizers: dict[str, PreTrainedTokenizerFast], texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "POOL_THRESHOLD_CHARACTERS", 1)
    monkeypatch.setattr(encoders, "_worker_count", lambda: 2)

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
        "encoders.POOL_THRESHOLD_CHARACTERS, encoders._worker_count = 1, lambda: 2\n"
        "tokenizer = Path(__file__).with_name('tokenizer.json').read_text(encoding='utf-8')\n"
        "print(sum(len(batch.ids) for batch in encoders.encode_batches([['bada kamo'] * 9] * 9, tokenizer)) > 80)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["once", "True"], done.stderr
