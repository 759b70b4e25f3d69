"""Rows of a corpus that is encoded while it is read: the order, and what a resumed run needs."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from headstart.core.data import RowShape
from headstart.core.errors import DataError
from headstart.core.vocabulary import vocabulary_of
from headstart.corpus.read.streamed import StreamConfig, StreamedCorpus
from headstart.stages.pretrain.stream import PartReader, StreamedRows
from headstart.tokens.rows import cut

SHAPE = RowShape(16)


@pytest.fixture
def corpus(verses: list[str], tmp_path: Path) -> StreamedCorpus:
    rows = "".join(json.dumps({"text": text}) + "\n" for text in verses[:400] if text)
    (tmp_path / "text.jsonl").write_text(rows, encoding="utf-8")
    stream = {"part_mb": 0.008, "shuffle_parts": 2}
    return StreamedCorpus.model_validate({"files": str(tmp_path / "*.jsonl"), "validation": 0.1, "stream": stream})


def open_stream(
    corpus: StreamedCorpus, tokenizer: PreTrainedTokenizerFast, folder: Path, made_from: str = "a"
) -> StreamedRows:
    folder.mkdir(exist_ok=True)
    reader = PartReader(corpus, tokenizer, made_from, 3, folder / "stream")
    return StreamedRows(reader, partial(cut, vocabulary=vocabulary_of(tokenizer), shape=SHAPE), folder / "s.jsonl")


def test_each_epoch_reads_every_row_once_and_a_resumed_stream_continues_the_order(
    corpus: StreamedCorpus, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    stream = open_stream(corpus, tiny_tokenizer, tmp_path / "whole")
    assert len(corpus.parts) == 6
    first = stream.order(range(8))
    # Two windows are encoded at the start, of three.
    assert len(stream.rows(first).ids) == 8
    samples, epoch = list(first), 0
    while epoch < 2:
        samples += stream.order(range(len(samples), len(samples) + 7))
        epoch = samples[-1].epoch
    size = len(stream)
    epochs = [[s.index for s in samples if s.epoch == number] for number in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) and len(set(epochs[0])) == len(epochs[0]) == size
    assert epochs[0] != epochs[1]
    assert stream.epochs(size) == pytest.approx(1.0) and stream.epochs(len(first)) < 0.1

    position = size + size // 2
    wanted = range(position, position + 9)
    ids = stream.rows(stream.order(wanted)).ids
    stream.close()
    # With the ledger, only the parts of this window and the next one are encoded; without it, all are.
    resumed = open_stream(corpus, tiny_tokenizer, tmp_path / "whole")
    assert len(resumed) == size
    resumed.remove()
    for known in (True, False):
        folder = tmp_path / f"other-{known}"
        folder.mkdir()
        if known:
            (folder / "s.jsonl").write_text((tmp_path / "whole" / "s.jsonl").read_text() + '{"torn')
        other = open_stream(corpus, tiny_tokenizer, folder)
        assert np.array_equal(other.rows(other.order(wanted)).ids, ids)
        other.close()
        assert len(list((folder / "stream").glob("part-*"))) <= 6
    # The ledger of another corpus does not count.
    assert len(open_stream(corpus, tiny_tokenizer, tmp_path / "whole", made_from="b")) == 0


def test_threads_that_read_ahead_over_several_windows_get_the_same_rows(
    corpus: StreamedCorpus, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Windows are shorter than what is read ahead, and their sizes are known, so that parts are dropped unread."""
    single = corpus.model_copy(update={"stream": StreamConfig(part_mb=0.004, shuffle_parts=1)})
    stream = open_stream(single, tiny_tokenizer, tmp_path / "run")
    stream.order(range(8))
    starts = range(0, 3 * len(stream) * len(single.parts), 97)
    expected = [stream.rows(stream.order(range(start, start + 97))).ids for start in starts]
    stream.remove()
    resumed = open_stream(single, tiny_tokenizer, tmp_path / "run")
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda start: resumed.rows(resumed.order(range(start, start + 97))).ids, starts))
    resumed.close()
    assert all(np.array_equal(ids, others) for ids, others in zip(found, expected, strict=True))


def test_parts_without_a_row_are_an_error(
    corpus: StreamedCorpus, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    reader = PartReader(corpus, tiny_tokenizer, "a", 3, tmp_path / "stream")
    long = partial(cut, vocabulary=vocabulary_of(tiny_tokenizer), shape=RowShape(100_000))
    stream = StreamedRows(reader, long, tmp_path / "s.jsonl")
    with pytest.raises(DataError, match="no part of the streamed corpus has enough tokens for a row"):
        stream.order(range(4))
    stream.close()


def test_a_part_that_is_encoded_again_from_another_text_is_an_error(
    corpus: StreamedCorpus, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """The resumed run lists the new file, which has the size of the old one and the same first and last lines."""
    run, text = tmp_path / "run", tmp_path / "text.jsonl"
    stream = open_stream(corpus, tiny_tokenizer, run)
    expected = stream.rows(stream.order(range(8))).ids
    stream.close()
    shutil.rmtree(run / "stream")
    original = text.read_text(encoding="utf-8")
    lines = original.splitlines(keepends=True)
    words = [json.dumps({"text": "a" * (len(line) - len(json.dumps({"text": ""})) - 1)}) + "\n" for line in lines]
    text.write_text("".join([lines[0], *words[1:-1], lines[-1]]), encoding="utf-8")
    for _ in range(2):
        resumed = open_stream(corpus.model_validate(corpus.model_dump()), tiny_tokenizer, run)
        with pytest.raises(DataError, match=r"part \d of the streamed corpus had [\d,]+ rows of [\d,]+ characters"):
            resumed.rows(resumed.order(range(8)))
        resumed.close()
    # What was encoded from the other text is not used after the file was restored.
    text.write_text(original, encoding="utf-8")
    restored = open_stream(corpus.model_validate(corpus.model_dump()), tiny_tokenizer, run)
    assert np.array_equal(restored.rows(restored.order(range(8))).ids, expected)
    restored.close()
