"""Token ids on disk: flat files of fixed-width integers, with the starts of documents and sentences beside them.

    tokens-00000.bin …   little-endian uint16, or uint32 for vocabularies above 65,536; no special tokens
    documents.bin        int64: the position at which each document starts
    sentences.bin        int64: the position at which each sentence starts
    unigrams.bin         int64: the count of each id
    counts.json          the sizes of all files

Every tokens file except the last has the same number of tokens, so a position needs no index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from headstart.core.data import Document, Ints
from headstart.core.errors import ArtifactError, DataError
from headstart.tokens.encoders import encode_batches
from headstart.tokens.sentences import sentence_starts
from headstart.tokens.word_cache import EncodedBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH_CHARACTERS = 1 << 20
_PIECE_CHARACTERS = 1 << 16
_FILE_TOKENS = 1 << 28

OpenTokens = Callable[[str, np.dtype[Any], int], Any]
"""Returns a tokens file as an array, given its name, the type of its items and their number."""
SUMMED_COUNTS = ("documents", "empty_documents", "characters", "bytes", "sentences", "tokens")
"""The entries of counts.json that are summed when folders are joined."""


def write(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    limit_tokens: int = _FILE_TOKENS,
    batch_characters: int = _BATCH_CHARACTERS,
    on_documents: Callable[[int], None] | None = None,
    in_process: bool = False,
) -> dict[str, Any]:
    """Encode documents into `folder` on all cores, in bounded memory, and return the counts.

    Properties: the bytes depend on the documents and the tokenizer only, not on the batches. The name of a special
    token in raw text is encoded as text. `on_documents` is called with the number of documents read so far.
    """
    counts = write_splits(
        (("", document) for document in documents),
        tokenizer,
        {"": folder},
        limit_tokens=limit_tokens,
        batch_characters=batch_characters,
        on_documents=on_documents,
        in_process=in_process,
    )
    return counts[""]


def write_splits(
    documents: Iterable[tuple[str, Document]],
    tokenizer: PreTrainedTokenizerBase,
    folders: Mapping[str, Path],
    *,
    limit_tokens: int = _FILE_TOKENS,
    batch_characters: int = _BATCH_CHARACTERS,
    on_documents: Callable[[int], None] | None = None,
    in_process: bool = False,
) -> dict[str, dict[str, Any]]:
    """Encode pairs of (split, document) in one pass into one folder per split, and return the counts by split.

    Each folder gets the bytes that `write` would write for the documents of its split. `in_process` starts no worker
    processes.
    """
    with ExitStack() as stack:
        writers = {
            split: stack.enter_context(_ShardWriter(folder, tokenizer, limit_tokens))
            for split, folder in folders.items()
        }
        batches, batches_to_encode = tee(_batches(documents, writers, batch_characters))
        texts = ([piece.text for piece in batch.pieces] for batch in batches_to_encode)
        encoded_batches = encode_batches(texts, tokenizer.backend_tokenizer.to_str(), in_process)
        for batch, encoded in zip(batches, encoded_batches, strict=True):
            batch.writer.add(batch.pieces, encoded)
            if on_documents is not None:
                on_documents(sum(writer.documents_read for writer in writers.values()))
    return {split: writer.finish() for split, writer in writers.items()}


class Shards:
    """A folder of token shards, memory-mapped: pages are read from disk when they are accessed."""

    def __init__(self, folder: str | Path, open_tokens: OpenTokens | None = None) -> None:
        """Map the files of a folder and check their sizes against its counts.

        If the tokens are not in the folder, `open_tokens` opens each tokens file.
        """
        self.folder, self._open_tokens = Path(folder), open_tokens
        try:
            self.counts: dict[str, Any] = json.loads((self.folder / "counts.json").read_text(encoding="utf-8"))
            self.tokens = int(self.counts["tokens"])
            self._limit = int(self.counts["limit_tokens"])
            lengths = [min(self._limit, self.tokens - start) for start in range(0, self.tokens, self._limit)]
            dtype = np.dtype(self.counts["dtype"]).newbyteorder("<")
            open_file = open_tokens or self._map
            self._files = [open_file(f"tokens-{i:05d}.bin", dtype, length) for i, length in enumerate(lengths)]
            self.documents: Ints = self._map("documents.bin", np.dtype("<i8"), self.counts["documents"])
            self.sentences: Ints = self._map("sentences.bin", np.dtype("<i8"), self.counts["sentences"])
            self.unigrams: Ints = self._map("unigrams.bin", np.dtype("<i8"), self.counts["vocab"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{self.folder} has no valid token shards ({error})",
                do="Delete the folder; the next run writes it again",
            ) from error

    @property
    def is_remote(self) -> bool:
        """True if the tokens are not on this machine, so that it is worth reading ahead."""
        return self._open_tokens is not None

    def read(self, start: int, stop: int) -> npt.NDArray[np.integer[Any]]:
        """Return a copy of the tokens in [start, stop), across files."""
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"[{start}, {stop}) is outside the {self.tokens} tokens of {self.folder}")
        parts = [
            file[max(0, start - offset) : max(0, stop - offset)]
            for file, offset in zip(self._files, range(0, self.tokens, self._limit), strict=True)
            if offset < stop and start < offset + self._limit
        ]
        return np.concatenate([self._files[0][:0], *parts])

    def gather(self, positions: Ints) -> Ints:
        """Return the tokens at an array of positions of any shape."""
        if len(self._files) == 1:
            return self._files[0][positions].astype(np.int64)
        out = np.empty(positions.shape, dtype=np.int64)
        file_indices = positions // self._limit
        for i in np.unique(file_indices):
            in_file = file_indices == i
            out[in_file] = self._files[i][positions[in_file] - i * self._limit]
        return out

    def prefetch(self, start: int, stop: int) -> None:
        """Start to fetch the tokens in [start, stop), if they are in a store; nothing waits for them."""
        if not self.is_remote:
            return
        for i, file in enumerate(self._files[start // self._limit : -(-stop // self._limit)], start // self._limit):
            file.prefetch(max(0, start - i * self._limit), min(self._limit, stop - i * self._limit))

    def _map(self, name: str, dtype: np.dtype[Any], length: int) -> Any:
        path = self.folder / name
        size = path.stat().st_size
        if size != length * dtype.itemsize:
            raise ValueError(f"{name} has {size} bytes, expected {length * dtype.itemsize}")
        # A plain array: np.memmap's subclass makes each indexing several times slower.
        return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(length,)))


class TokenFiles:
    """Writes a stream of tokens to files of `limit` tokens each."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], limit: int) -> None:
        self._folder, self._dtype, self._limit = folder, dtype, limit
        self._file: BinaryIO | None = None
        self._count = self._room = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, tokens: Ints) -> None:
        """Append tokens; a full file is closed and the next one opened."""
        while tokens.size:
            if not self._room:
                self.__exit__()
                self._file = (self._folder / f"tokens-{self._count:05d}.bin").open("wb")
                self._count, self._room = self._count + 1, self._limit
            head, tokens = tokens[: self._room], tokens[self._room :]
            assert self._file is not None
            self._file.write(head.astype(self._dtype).tobytes())
            self._room -= head.size


def entropy(counts: Ints) -> float:
    """Return the entropy in nats of tokens drawn in proportion to counts."""
    probabilities = counts[counts > 0] / counts.sum()
    return float(-(probabilities * np.log(probabilities)).sum())


class _Piece(NamedTuple):
    """A stretch of text that is encoded separately: a sentence, or a part of a very long sentence."""

    document: int
    opens_sentence: bool
    text: str


class _ShardWriter:
    """Writes one folder of shards, and counts what goes into it."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerBase, limit_tokens: int) -> None:
        self.folder, self.documents_read = folder, 0
        self._limit, self._size = limit_tokens, len(tokenizer)
        self._replacement = _replacement(tokenizer)
        self._unigrams = np.zeros(self._size, dtype=np.int64)
        self._characters = self._bytes = self._documents = self._sentences = self._tokens = 0
        self._last_document, self._sentence_pending = -1, False

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._out = stack.enter_context(TokenFiles(self.folder, _dtype(self._size), self._limit))
            self._document_file = stack.enter_context((self.folder / "documents.bin").open("wb"))
            self._sentence_file = stack.enter_context((self.folder / "sentences.bin").open("wb"))
            self._files = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def pieces(self, document: Document) -> Iterator[_Piece]:
        """Yield a document's sentences, those above 65,536 characters in several pieces, and count the document."""
        ordinal, text = self.documents_read, document.text
        self.documents_read += 1
        self._characters += len(text)
        self._bytes += len(text.encode())
        for start, stop in pairwise([*sentence_starts(text), len(text)]):
            opens = True
            while stop - start > _PIECE_CHARACTERS:
                end = _cut(text, start)
                yield _Piece(ordinal, opens, text[start:end])
                start, opens = end, False
            yield _Piece(ordinal, opens, text[start:stop])

    def add(self, pieces: Sequence[_Piece], encoded: EncodedBatch) -> None:
        """Append the tokens of some pieces. Documents and sentences without tokens get no start."""
        document_starts: list[int] = []
        sentence_starts: list[int] = []
        position = self._tokens
        for piece, length in zip(pieces, encoded.lengths, strict=True):
            self._sentence_pending = self._sentence_pending or piece.opens_sentence
            if not length:
                continue
            if piece.document != self._last_document:
                document_starts.append(position)
                self._last_document = piece.document
            if self._sentence_pending:
                sentence_starts.append(position)
                self._sentence_pending = False
            position += length
        tokens = self._replacement[encoded.ids]
        self._unigrams += np.bincount(tokens, minlength=self._size)
        self._out.write(tokens)
        self._document_file.write(np.asarray(document_starts, dtype="<i8").tobytes())
        self._sentence_file.write(np.asarray(sentence_starts, dtype="<i8").tobytes())
        self._tokens = position
        self._documents += len(document_starts)
        self._sentences += len(sentence_starts)

    def finish(self) -> dict[str, Any]:
        """Write the unigrams and the counts, and return the counts."""
        if not self._tokens:
            raise DataError("the documents contain no tokens", do="Check corpus.files and corpus.text")
        counts = {
            "documents": self._documents,
            "empty_documents": self.documents_read - self._documents,
            "characters": self._characters,
            "bytes": self._bytes,
            "sentences": self._sentences,
            "tokens": self._tokens,
            "vocab": self._size,
            "dtype": _dtype(self._size).name,
            "limit_tokens": self._limit,
            "unigram_entropy_nats": entropy(self._unigrams),
        }
        # Not `tofile`: its error on a full disk does not mention the disk.
        (self.folder / "unigrams.bin").write_bytes(self._unigrams.astype("<i8").tobytes())
        (self.folder / "counts.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
        return counts


class _Batch(NamedTuple):
    """Pieces that are encoded together and belong to one folder."""

    writer: _ShardWriter
    pieces: list[_Piece]


def _batches(
    documents: Iterable[tuple[str, Document]], writers: Mapping[str, _ShardWriter], characters: int
) -> Iterator[_Batch]:
    """Collect the pieces of each split into batches of about `characters` characters."""
    batches = {split: _Batch(writer, []) for split, writer in writers.items()}
    sizes = dict.fromkeys(writers, 0)
    for split, document in documents:
        for piece in writers[split].pieces(document):
            batches[split].pieces.append(piece)
            sizes[split] += len(piece.text)
            if sizes[split] >= characters:
                yield batches[split]
                batches[split], sizes[split] = _Batch(writers[split], []), 0
    yield from (batch for batch in batches.values() if batch.pieces)


def _cut(text: str, start: int) -> int:
    """Return where a very long sentence is cut: before a space if possible."""
    space = text.rfind(" ", start + 1, start + _PIECE_CHARACTERS)
    while space > start and text[space - 1].isspace():
        space -= 1
    return space if space > start else start + _PIECE_CHARACTERS


def _replacement(tokenizer: PreTrainedTokenizerBase) -> Ints:
    """Return a table over ids that maps special tokens, which a model may still produce, to the unknown token."""
    table = np.arange(len(tokenizer), dtype=np.int64)
    if tokenizer.unk_token_id is not None:
        table[list(tokenizer.all_special_ids)] = tokenizer.unk_token_id
    return table


def _dtype(vocabulary_size: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
