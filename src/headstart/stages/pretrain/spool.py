"""Text that was read once, kept compressed on disk until it is encoded.

A tokenizer is trained before its text can be encoded. The spool keeps the split text in between, so that the raw files
are read only once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from headstart.core.data import Document
from headstart.corpus.read.readers import SPLITS, Receipt

_SCHEMA = pa.schema([("text", pa.large_string())])
_BATCH_CHARACTERS = 1 << 20


class TextSpool:
    """The documents of several corpora by split, written once and read once, in bounded memory.

    The folder is removed when the block ends. What a killed process leaves there is never read.
    """

    def __init__(self, folder: Path) -> None:
        """Set up the spool; nothing is written yet."""
        self.folder = folder
        self.receipts: dict[str, Receipt] = {}
        """The row counts of each corpus, by name."""

    def __enter__(self) -> Self:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def record(self, name: str, documents: Iterator[tuple[str, Document]], receipt: Receipt) -> Iterator[str]:
        """Write the documents of a corpus to the spool and yield the text of those to train on."""
        writers = {split: _SplitWriter(self._path(name, split)) for split in SPLITS}
        try:
            for split, document in documents:
                writers[split].write(document.text)
                if split == "train":
                    yield document.text
        finally:
            for writer in writers.values():
                writer.close()
        self.receipts[name] = receipt

    def documents(self, name: str) -> Iterator[tuple[str, Document]]:
        """Yield the documents of a corpus with their split: first all to train on, then all to validate on."""
        for split in SPLITS:
            with pa.OSFile(str(self._path(name, split)), "rb") as file, pa.ipc.open_stream(file) as batches:
                for batch in batches:
                    yield from ((split, Document("", text)) for text in batch.column(0).to_pylist())

    def _path(self, name: str, split: str) -> Path:
        return self.folder / f"{name}-{split}.arrow"


class _SplitWriter:
    """Collects texts into record batches of about 1 MB and writes them with zstd."""

    def __init__(self, path: Path) -> None:
        self._file = pa.OSFile(str(path), "wb")
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._stream = pa.ipc.new_stream(self._file, _SCHEMA, options=options)
        self._texts: list[str] = []
        self._characters = 0

    def write(self, text: str) -> None:
        self._texts.append(text)
        self._characters += len(text)
        if self._characters >= _BATCH_CHARACTERS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._stream.close()
        self._file.close()

    def _flush(self) -> None:
        if self._texts:
            self._stream.write_batch(pa.record_batch([pa.array(self._texts, pa.large_string())], schema=_SCHEMA))
            self._texts, self._characters = [], 0
