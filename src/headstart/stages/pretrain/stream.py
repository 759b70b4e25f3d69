"""Training rows of a corpus that is read while the model trains.

    parts ─ shuffled, in windows ─ encoded by a thread, one window ahead ─ rows, shuffled within their window

`stream/part-00012` in the output has the token shards of a part, for three windows at most. `stream.jsonl` has one line
for each part that was ever encoded, with its number of rows, from which the position of a sample in the stream follows:
a resumed run reads only the parts of its window. Without that file they would all be encoded again, to the same rows.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from headstart.core import artifact
from headstart.core.contracts import RowSource
from headstart.core.data import Document, Rows, Sample
from headstart.core.errors import ArtifactError, DataError
from headstart.corpus.read.readers import Receipt
from headstart.corpus.read.streamed import StreamedCorpus
from headstart.tokens import shards
from headstart.tokens.mixed import gathered
from headstart.tokens.shards import Shards
from headstart.tokens.window_shuffle import WindowShuffle

FOLDER, LEDGER = "stream", "stream.jsonl"
_KIND = "stream part"
_ROW_BITS = 32
"""The index of a sample is that of its part, followed by that of the row in the part."""
_COUNTED = ("rows", "documents", "rejects", "empty", "characters")


def shuffle_of(corpus: StreamedCorpus, seed: int) -> WindowShuffle:
    """Return the order in which the parts of a corpus, and the rows of some parts, are read."""
    return WindowShuffle(len(corpus.parts), corpus.stream.shuffle_parts, seed)


def head_documents(corpus: StreamedCorpus, seed: int, receipt: Receipt) -> Iterator[tuple[str, Document]]:
    """Yield the documents of the first window with their split: for the tokenizer, and to hold some out."""
    return corpus.head_documents(shuffle_of(corpus, seed).blocks_of(0), seed, receipt)


@dataclass(frozen=True)
class PartReader:
    """Encodes parts of a corpus into folders, each of which is complete or absent."""

    corpus: StreamedCorpus
    tokenizer: Any
    made_from: str
    """A hash of what the shards of a part depend on, besides its number."""
    seed: int
    folder: Path

    def encode(self, part: int) -> Path:
        """Return the folder of a part, which is written unless it exists and verifies."""
        target = self.path_of(part)
        if artifact.is_complete(target):
            try:
                if artifact.verify(target, _KIND).get("made_from") == self.made_from:
                    return target
            except ArtifactError:
                pass
            shutil.rmtree(target, ignore_errors=True)
        artifact.make_once(target, _KIND, lambda staging: self._write(part, staging), made_from=self.made_from)
        return target

    def path_of(self, part: int) -> Path:
        """Return the folder of a part."""
        return self.folder / f"part-{part:05d}"

    def _write(self, part: int, staging: artifact.Staging) -> None:
        """Encode the documents of a part that are trained on; without any, the folder has no shards."""
        receipt = Receipt()
        documents = self.corpus.part_documents(part, self.seed, receipt)
        train = (document for split, document in documents if split == "train")
        first = next(train, None)
        if first is not None:
            shards.write(chain([first], train), self.tokenizer, staging.path, in_process=True)
        staging.facts["receipt"] = receipt.summary()


class StreamedRows:
    """The rows of a streamed corpus, by position: a row source of training, with an order of its own."""

    def __init__(
        self, reader: PartReader, cut: Callable[[Shards], RowSource], ledger: Path, is_main: bool = True
    ) -> None:
        """Read the ledger of earlier attempts; parts are encoded when a position needs them.

        Args:
            reader: encodes the parts.
            cut: returns the rows of a part.
            ledger: the file with the number of rows of each part, which `is_main` appends to.
            is_main: this process writes the ledger and removes parts that are no longer needed.
        """
        self.reader, self.shuffle = reader, shuffle_of(reader.corpus, reader.seed)
        self._cut, self._ledger, self._is_main = cut, ledger, is_main
        self._known = _read_ledger(ledger, reader.made_from)
        if is_main:
            # Written again: the last line may be torn, or the file that of another corpus.
            lines = [{"made_from": reader.made_from}, *self._known.values()]
            artifact.write_whole(ledger, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        self._ends = [0]
        """The position at which each window so far ends; the first entry is the start."""
        self._window = -1
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headstart-stream")
        self._parts: dict[int, Future[RowSource | None]] = {}
        self._lock, self._is_closed = threading.RLock(), False

    def __len__(self) -> int:
        """Return the number of rows in the parts that were encoded so far."""
        return sum(int(entry["rows"]) for entry in self._known.values())

    def prefetch(self, first: int, last: int) -> None:
        """Do nothing: the parts of the next window are encoded ahead by their order."""

    def order(self, positions: range) -> list[Sample]:
        """Return the samples at some positions of the stream."""
        samples: list[Sample] = []
        start = positions.start
        while start < positions.stop:
            window, first, end = self._locate(start)
            stop = min(end, positions.stop)
            blocks = self.shuffle.blocks_of(window)
            sizes = [self._size(block) for block in blocks]
            rows = self.shuffle.rows_of(window, np.arange(start - first, stop - first), sizes)
            epoch = window // self.shuffle.windows
            samples += [Sample(epoch, (blocks[index] << _ROW_BITS) | row) for index, row in rows]
            start = stop
        return samples

    def rows(self, samples: Sequence[Sample]) -> Rows:
        """Return the rows of samples, in their order."""
        members: dict[int, list[int]] = {}
        for i, sample in enumerate(samples):
            members.setdefault(sample.index >> _ROW_BITS, []).append(i)
        pieces = []
        for part, indices in members.items():
            source = self._source(part)
            assert source is not None, "a part without rows has no samples"
            inside = [Sample(samples[i].epoch, samples[i].index & ((1 << _ROW_BITS) - 1)) for i in indices]
            pieces.append((indices, source.rows(inside)))
        return gathered(pieces, samples)

    def epochs(self, count: int) -> float:
        """Return the share of all parts from which the first `count` samples come, in epochs."""
        if not count:
            return 0.0
        window, first, end = self._locate(count - 1)
        epoch, number = divmod(window, self.shuffle.windows)
        before = number * self.shuffle.width
        return epoch + (before + len(self.shuffle.blocks_of(window)) * (count - first) / (end - first)) / (
            self.shuffle.blocks
        )

    def facts(self) -> dict[str, Any]:
        """Return the number of parts, how many were read, and the sums of their counts."""
        counts = [entry["counts"] for entry in self._known.values()]
        totals = {key: sum(int(entry.get(key, 0)) for entry in counts) for key in shards.SUMMED_COUNTS}
        return {"train": totals, "stream": {"parts": self.shuffle.blocks, "parts_read": len(counts)}}

    def close(self) -> None:
        """Stop reading ahead; the encoded parts are kept for a run that resumes."""
        self._is_closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def remove(self) -> None:
        """Remove the encoded parts after the end of training."""
        self.close()
        if self._is_main:
            shutil.rmtree(self.reader.folder, ignore_errors=True)

    def _locate(self, position: int) -> tuple[int, int, int]:
        """Return the window of a position, and the positions at which it starts and ends."""
        with self._lock:
            while self._ends[-1] <= position:
                window = len(self._ends) - 1
                blocks = self.shuffle.blocks_of(window)
                for block in blocks:
                    if block not in self._known:
                        self._open(block)
                rows = sum(self._size(block) for block in blocks)
                self._ends.append(self._ends[-1] + rows)
                self._require_rows()
                if self._ends[-1] <= position:
                    self._drop()
            window = int(np.searchsorted(self._ends, position, side="right")) - 1
            if window > self._window:
                self._enter(window)
            return window, self._ends[window], self._ends[window + 1]

    def _enter(self, window: int) -> None:
        """Start to encode the parts of a window and of the next one, and drop those of earlier ones but the last."""
        self._window = window
        self._drop()
        for block in (*self.shuffle.blocks_of(window), *self.shuffle.blocks_of(window + 1)):
            self._open(block)

    def _drop(self) -> None:
        """Forget the parts that are in none of three windows: the current one, the last and the next."""
        near = [window for window in range(self._window - 1, self._window + 2) if window >= 0]
        kept = {block for window in near for block in self.shuffle.blocks_of(window)}
        for part in [part for part in self._parts if part not in kept]:
            future = self._parts[part]
            if not future.cancel() and not future.done():
                continue  # It is being encoded. A later call drops it.
            del self._parts[part]
            if self._is_main:
                shutil.rmtree(self.reader.path_of(part), ignore_errors=True)

    def _source(self, part: int) -> RowSource | None:
        """Return the rows of a part, as soon as it is encoded."""
        while True:
            try:
                return self._open(part).result()
            except CancelledError:
                # A thread that reads ahead has dropped the part before it was encoded.
                if self._is_closed:
                    raise

    def _open(self, part: int) -> Future[RowSource | None]:
        with self._lock:
            if part not in self._parts:
                self._parts[part] = self._pool.submit(self._encoded, part)
            return self._parts[part]

    def _encoded(self, part: int) -> RowSource | None:
        """Return the rows of a part, encoded if necessary; None if it has none."""
        folder = self.reader.encode(part)
        source, counts = None, {}
        if (folder / "counts.json").is_file():
            opened = Shards(folder)
            counts = opened.counts
            # A part may have too few tokens for a row.
            with suppress(DataError):
                source = self._cut(opened)
        receipt, rows = artifact.read_manifest(folder)["receipt"], 0 if source is None else len(source)
        if part in self._known:
            self._require_same_text(part, rows, receipt)
        else:
            entry = {
                "part": part, "rows": rows,
                "counts": {key: counts.get(key, 0) for key in shards.SUMMED_COUNTS}, "receipt": receipt,
            }  # fmt: skip
            self._known[part] = entry
            self._require_few_rejects(receipt)
            if self._is_main:
                with self._ledger.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        return source

    def _size(self, part: int) -> int:
        """Return the number of rows of a part."""
        if part not in self._known:
            self._source(part)
        return int(self._known[part]["rows"])

    def _require_rows(self) -> None:
        if self._ends[-1] == 0 and len(self._ends) > self.shuffle.windows:
            raise DataError(
                "no part of the streamed corpus has enough tokens for a row",
                allowed="A row has tokens of one part only",
                do="Raise corpus.stream.part_mb, or lower training.seq_length",
            )

    def _require_same_text(self, part: int, rows: int, receipt: dict[str, Any]) -> None:
        """Raise if a part that was encoded again differs from what the positions of the stream were counted from."""
        known = self._known[part]
        found, expected = (rows, receipt["characters"]), (known["rows"], known["receipt"]["characters"])
        if found == expected:
            return
        if self._is_main:
            # The part is read again once the files are restored.
            shutil.rmtree(self.reader.path_of(part), ignore_errors=True)
        raise DataError(
            f"part {part} of the streamed corpus had {expected[0]:,} rows of {expected[1]:,} characters when it was "
            f"first read, and has {found[0]:,} rows of {found[1]:,} characters",
            allowed="In a later epoch, and in a run that resumes, a part has the text that it had before",
            do="Restore the files, or train on the new version with another output",
        )

    def _require_few_rejects(self, receipt: dict[str, Any]) -> None:
        """Raise if the parts read so far have more unreadable rows than the recipe allows."""
        if not receipt["rejects"]:
            return
        sums = {key: sum(int(entry["receipt"][key]) for entry in self._known.values()) for key in _COUNTED}
        limit = self.reader.corpus.max_reject_share
        if sums["rejects"] > limit * sums["rows"]:
            raise DataError(
                f"{sums['rejects']:,} of the {sums['rows']:,} rows that were read so far cannot be read; one is "
                f"{receipt['examples'][0]}",
                allowed=f"corpus.max_reject_share allows {limit:.2%}",
                do="Fix the file, or raise corpus.max_reject_share if the loss is acceptable",
            )


def _read_ledger(path: Path, made_from: str) -> dict[int, dict[str, Any]]:
    """Return the entries of a ledger by part; none if it is that of another corpus. The last line may be torn."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    entries: list[dict[str, Any]] = []
    for line in lines:
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    if not entries or entries[0] != {"made_from": made_from}:
        return {}
    return {int(entry["part"]): entry for entry in entries[1:]}
