"""Token ids on disk: flat files of one width, with the starts of documents and sentences beside them.

    tokens-00000.bin …   little-endian uint16, or uint32 for vocabularies past 65,536; no special tokens
    documents.bin        int64: the token at which each document starts
    sentences.bin        int64: the token at which each sentence starts
    unigrams.bin         int64: how often each id occurs
    counts.json          the sizes of all that

Every tokens file but the last holds the same number of tokens, so a position needs no index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from headstart.core.data import Document, Ints
from headstart.core.errors import ArtifactError, DataError
from headstart.tokens.encoders import encoded
from headstart.tokens.sentences import sentence_starts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH_CHARACTERS = 1 << 20
_PIECE_CHARACTERS = 1 << 16

COUNTED = ("documents", "empty_documents", "characters", "bytes", "sentences", "tokens")
"""The counts of a folder that add up over several."""


class _Piece(NamedTuple):
    """A stretch of text to encode by itself: a sentence, or a part of a very long one."""

    document: int
    opens_sentence: bool
    text: str


def write(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    limit_tokens: int = 1 << 28,
    batch_characters: int = _BATCH_CHARACTERS,
    on_documents: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Encode documents into `folder` in bounded memory, on all cores, and return the counts.

    The bytes written depend on the documents and the tokenizer alone, not on how they are batched. The name
    of a special token in raw text is encoded as text. `on_documents` is called with the number read so far.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = len(tokenizer)
    books = {"documents": 0, "empty_documents": 0, "characters": 0, "bytes": 0}
    unigrams = np.zeros(size, dtype=np.int64)
    replacement = _replacement(tokenizer)
    tokens = 0
    with ExitStack() as stack:
        out = stack.enter_context(TokenFiles(folder, _dtype(size), limit_tokens))
        document_file = stack.enter_context((folder / "documents.bin").open("wb"))
        sentence_file = stack.enter_context((folder / "sentences.bin").open("wb"))
        last_document, sentence_open, sentences, kept = -1, False, 0, 0
        reading, encoding = tee(_batches(_pieces(documents, books), batch_characters))
        texts = ([piece.text for piece in batch] for batch in encoding)
        for batch, found in zip(reading, encoded(texts, tokenizer.backend_tokenizer.to_str()), strict=True):
            document_starts: list[int] = []
            sentence_positions: list[int] = []
            position = tokens
            for piece, length in zip(batch, found.lengths, strict=True):
                sentence_open = sentence_open or piece.opens_sentence
                if not length:
                    continue
                if piece.document != last_document:
                    document_starts.append(position)
                    last_document = piece.document
                if sentence_open:
                    sentence_positions.append(position)
                    sentence_open = False
                position += length
            stream = replacement[found.ids]
            unigrams += np.bincount(stream, minlength=size)
            out.write(stream)
            _append(document_file, document_starts)
            _append(sentence_file, sentence_positions)
            tokens = position
            sentences += len(sentence_positions)
            kept += len(document_starts)
            if on_documents is not None:
                on_documents(books["documents"])
    if not tokens:
        raise DataError("the documents hold no tokens at all", do="Check corpus.files and corpus.text")
    books |= {"documents": kept, "empty_documents": books["documents"] - kept}
    counts = {
        **books,
        "sentences": sentences,
        "tokens": tokens,
        "vocab": size,
        "dtype": _dtype(size).name,
        "limit_tokens": limit_tokens,
        "unigram_entropy_nats": entropy(unigrams),
    }
    # Not tofile, whose error on a full disk does not say so.
    (folder / "unigrams.bin").write_bytes(unigrams.astype("<i8").tobytes())
    (folder / "counts.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return counts


class Shards:
    """A folder that `write` made, opened without reading it: pages come from disk as they are asked for."""

    def __init__(self, folder: str | Path) -> None:
        """Map the files of a folder and check their sizes against its counts."""
        self.folder = Path(folder)
        try:
            self.counts: dict[str, Any] = json.loads((self.folder / "counts.json").read_text(encoding="utf-8"))
            self.tokens = int(self.counts["tokens"])
            self._limit = int(self.counts["limit_tokens"])
            lengths = [min(self._limit, self.tokens - start) for start in range(0, self.tokens, self._limit)]
            dtype = np.dtype(self.counts["dtype"]).newbyteorder("<")
            self._files = [self._map(f"tokens-{i:05d}.bin", dtype, length) for i, length in enumerate(lengths)]
            self.documents: Ints = self._map("documents.bin", np.dtype("<i8"), self.counts["documents"])
            self.sentences: Ints = self._map("sentences.bin", np.dtype("<i8"), self.counts["sentences"])
            self.unigrams: Ints = self._map("unigrams.bin", np.dtype("<i8"), self.counts["vocab"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{self.folder} holds no token shards ({error})", do="Remove the folder; it is made anew"
            ) from error

    def read(self, start: int, stop: int) -> npt.NDArray[np.integer[Any]]:
        """Return the tokens in [start, stop), across files, as a copy."""
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"[{start}, {stop}) lies outside the {self.tokens} tokens of {self.folder}")
        parts = [
            file[max(0, start - offset) : max(0, stop - offset)]
            for file, offset in zip(self._files, range(0, self.tokens, self._limit), strict=True)
            if offset < stop and start < offset + self._limit
        ]
        return np.concatenate([self._files[0][:0], *parts])

    def gather(self, positions: Ints) -> Ints:
        """Return the tokens at an array of positions, of any shape."""
        if len(self._files) == 1:
            return self._files[0][positions].astype(np.int64)
        out = np.empty(positions.shape, dtype=np.int64)
        owners = positions // self._limit
        for owner in np.unique(owners):
            chosen = owners == owner
            out[chosen] = self._files[owner][positions[chosen] - owner * self._limit]
        return out

    def _map(self, name: str, dtype: np.dtype[Any], length: int) -> Any:
        path = self.folder / name
        if path.stat().st_size != length * dtype.itemsize:
            raise ValueError(f"{name} has {path.stat().st_size} bytes where {length * dtype.itemsize} belong")
        # A plain view: memmap's own subclass makes each indexing several times slower.
        return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(length,)))


class TokenFiles:
    """Splits the stream into files of `limit` tokens each."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], limit: int) -> None:
        self._folder, self._dtype, self._limit = folder, dtype, limit
        self._file: BinaryIO | None = None
        self._count = self._room = 0

    def __enter__(self) -> TokenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, stream: Ints) -> None:
        """Append tokens, opening the next file where one is full."""
        while stream.size:
            if not self._room:
                self.__exit__()
                self._file = (self._folder / f"tokens-{self._count:05d}.bin").open("wb")
                self._count, self._room = self._count + 1, self._limit
            part, stream = stream[: self._room], stream[self._room :]
            assert self._file is not None
            self._file.write(part.astype(self._dtype).tobytes())
            self._room -= part.size


def _pieces(documents: Iterable[Document], books: dict[str, int]) -> Iterator[_Piece]:
    for ordinal, document in enumerate(documents):
        text = document.text
        books["documents"] += 1
        books["characters"] += len(text)
        books["bytes"] += len(text.encode())
        starts = sentence_starts(text)
        for start, stop in pairwise([*starts, len(text)]):
            opens = True
            while stop - start > _PIECE_CHARACTERS:
                cut = _cut(text, start)
                yield _Piece(ordinal, opens, text[start:cut])
                start, opens = cut, False
            yield _Piece(ordinal, opens, text[start:stop])


def _cut(text: str, start: int) -> int:
    """Return where to cut a sentence that is too long to encode at once: before a space, if there is one."""
    space = text.rfind(" ", start + 1, start + _PIECE_CHARACTERS)
    while space > start and text[space - 1].isspace():
        space -= 1
    return space if space > start else start + _PIECE_CHARACTERS


def _batches(pieces: Iterable[_Piece], characters: int) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _replacement(tokenizer: PreTrainedTokenizerBase) -> Ints:
    """Return a table over ids that maps a special token which the model still found to the unknown token."""
    table = np.arange(len(tokenizer), dtype=np.int64)
    if tokenizer.unk_token_id is not None:
        table[list(tokenizer.all_special_ids)] = tokenizer.unk_token_id
    return table


def _dtype(vocabulary_size: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def _append(file: BinaryIO, values: list[int]) -> None:
    file.write(np.asarray(values, dtype="<i8").tobytes())


def entropy(counts: Ints) -> float:
    """Return the entropy in nats of tokens drawn in proportion to counts."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
