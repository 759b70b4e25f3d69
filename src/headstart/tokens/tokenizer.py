"""Trains a tokenizer on a bounded sample of text; the same text and seed give the same bytes.

The trainers of `tokenizers` iterate over hash maps, so ids and ties differ between runs. Here WordPiece gets its
continuation characters in a fixed order beforehand, byte-level BPE has a fixed alphabet, and Unigram's pieces are
rounded and sorted afterwards.
"""

from __future__ import annotations

import json
import re
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headstart.checkpoint.load import load_tokenizer
from headstart.core.data import Vocabulary
from headstart.core.errors import ArtifactError, DataError
from headstart.core.vocabulary import vocabulary_of
from headstart.tokens.sampling import MAX_WORD_CHARACTERS, sample
from headstart.tokens.settings import MIN_VOCAB_SIZE
from headstart.tokens.settings import TokenizerConfig as TokenizerConfig  # noqa: PLC0414 - re-exported

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MAX_LENGTH = 512
_CHARACTER_COVERAGE = 0.9999
_SPECIAL_SCORE = -1e4  # so low that Unigram encodes the name of a special token in raw text by its characters


def train(texts: Iterable[str], config: TokenizerConfig, seed: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer on a sample of texts."""
    return train_on(sample(texts, config.sample_mb, seed), config)


def train_on(chunks: list[str], config: TokenizerConfig) -> PreTrainedTokenizerFast:
    """Train a tokenizer on chunks of text, with [PAD] [UNK] [CLS] [SEP] [MASK] as ids 0 to 4.

    Its templates are `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`. AutoTokenizer loads the folder that `save_pretrained`
    writes.
    """
    normalizer = _normalizer(config)
    if normalizer is not None:
        chunks = [normalizer.normalize_str(chunk) for chunk in chunks]
    if not chunks:
        raise DataError("there is no text to train a tokenizer on", do="Check corpus.files and corpus.text")
    trained = {"wordpiece": _wordpiece, "bpe": _bpe, "unigram": _unigram}[config.kind](chunks, config)
    if trained.get_vocab_size() < config.vocab_size:
        raise _too_little_text(chunks, trained.get_vocab_size(), config.vocab_size)
    if normalizer is not None:
        trained.normalizer = normalizer
    return _wrap(trained, config)


def _too_little_text(chunks: list[str], vocab_size: int, requested: int) -> DataError:
    megabytes = sum(len(chunk.encode()) for chunk in chunks) / 1e6
    message = f"{megabytes:.3g} MB of text give {vocab_size:,} tokens, but tokenizer.vocab_size is {requested:,}"
    if vocab_size < MIN_VOCAB_SIZE:
        return DataError(
            message,
            allowed=f"A token must occur at least twice, and a tokenizer needs at least {MIN_VOCAB_SIZE} tokens",
            do="Add text, or set tokenizer.path to an existing tokenizer",
        )
    return DataError(
        message,
        allowed="A token must occur at least twice",
        do=f"Set tokenizer.vocab_size to {vocab_size} or less, or add text",
    )


def load(path: str | Path) -> PreTrainedTokenizerFast:
    """Load a tokenizer from a folder; nothing is downloaded."""
    path = Path(path)
    if not (path / "tokenizer.json").is_file():
        raise ArtifactError(
            f"{path} {'has no tokenizer.json' if path.is_dir() else 'is not a folder'}",
            allowed="A tokenizer is a folder that `save_pretrained` of a fast tokenizer wrote",
            do="Check tokenizer.path",
        )
    tokenizer = load_tokenizer(path)
    if not tokenizer.is_fast:
        raise ArtifactError(f"{path} has a slow tokenizer", allowed="Headstart needs a fast tokenizer (tokenizer.json)")
    return cast("PreTrainedTokenizerFast", tokenizer)


def add_special(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[str]) -> Vocabulary:
    """Append missing special tokens after all other tokens, so that the ids in shards stay valid."""
    missing = [token for token in tokens if token not in tokenizer.extra_special_tokens]
    if missing:
        tokenizer.add_special_tokens({"extra_special_tokens": [*tokenizer.extra_special_tokens, *missing]})
    return vocabulary_of(tokenizer)


def save_for(tokenizer: PreTrainedTokenizerFast, folder: Path, input_names: list[str], max_length: int) -> None:
    """Save a tokenizer next to a model, so that it returns exactly the inputs that the model takes."""
    tokenizer.model_input_names = input_names
    # `save_pretrained` writes this attribute only if it is in `init_kwargs` too.
    tokenizer.init_kwargs["model_input_names"] = input_names
    save_with_length(tokenizer, folder, max_length)


def save_with_length(tokenizer: PreTrainedTokenizerBase, folder: Path, max_length: int) -> None:
    """Save a tokenizer that truncates to this many tokens by default, wherever it is loaded."""
    for leftover in ("local_files_only", "is_local"):
        tokenizer.init_kwargs.pop(leftover, None)
    tokenizer.model_max_length = max_length
    tokenizer.save_pretrained(str(folder))


def _normalizer(config: TokenizerConfig) -> Any:
    if config.kind == "wordpiece":
        return normalizers.BertNormalizer(lowercase=config.lowercase)
    lower = [normalizers.Lowercase()] if config.lowercase else []
    if config.kind == "bpe":
        return normalizers.Sequence(lower) if lower else None
    # As in SentencePiece: compatibility forms, then single spaces.
    steps = [normalizers.NFKC(), *lower, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


def _wordpiece(chunks: list[str], config: TokenizerConfig) -> Tokenizer:
    alphabet, chunks = _limit_alphabet(chunks, config.vocab_size // 3)
    continuing = [f"##{character}" for character in _continuation_characters(chunks, alphabet)]
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learner.train_from_iterator(
        chunks,
        trainers.WordPieceTrainer(
            vocab_size=config.vocab_size,
            min_frequency=2,
            special_tokens=[*SPECIAL_TOKENS, *continuing],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    # A new tokenizer, because the trainer marked the continuation characters as special.
    vocabulary = learner.get_vocab(with_added_tokens=False)
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _bpe(chunks: list[str], config: TokenizerConfig) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        chunks,
        trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            min_frequency=2,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return tokenizer


def _unigram(chunks: list[str], config: TokenizerConfig) -> Tokenizer:
    _, chunks = _limit_alphabet(chunks, config.vocab_size // 3)
    learner = Tokenizer(models.Unigram())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=config.vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        # Lowercased text never contains the name of a special token; other text must be able to encode its letters.
        initial_alphabet=[] if config.lowercase else sorted(set("".join(SPECIAL_TOKENS))),
        unk_token="[UNK]",
        seed_size=min(1_000_000, 20 * config.vocab_size),  # type: ignore[call-arg]  # not in the stubs
        show_progress=False,
    )
    learner.train_from_iterator(chunks, trainer)
    ranked = _rank(json.loads(learner.to_str())["model"]["vocab"])
    tokenizer = Tokenizer(models.Unigram([*((token, _SPECIAL_SCORE) for token in SPECIAL_TOKENS), *ranked], unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _rank(pieces: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Sort Unigram's pieces and remove what varies between runs from their scores.

    Sums over threads differ in their last digits, so scores are rounded. The trainer adds characters that the model
    dropped with the lowest score plus 0.0001 each, in the order of a hash map; here all of them get the lowest.
    """
    kept = [(piece, score) for piece, score in pieces if piece not in SPECIAL_TOKENS]
    lowest = min(score for _, score in kept)
    highest_added = lowest + 0.0001 * sum(len(piece) == 1 for piece, _ in kept)
    scores = [lowest if len(piece) == 1 and score <= highest_added else score for piece, score in kept]
    return sorted(((piece, round(score, 4)) for (piece, _), score in zip(kept, scores, strict=True)), key=_by_score)


def _by_score(pair: tuple[str, float]) -> tuple[float, str]:
    return -pair[1], pair[0]


def _limit_alphabet(chunks: list[str], limit: int) -> tuple[list[str], list[str]]:
    """Return the characters that cover 99.99 % of the text, at most `limit`, and the text without the others.

    The trainers break ties at random or cannot limit the alphabet at all.
    """
    counts: Counter[int] = Counter()
    for block in _blocks(chunks):
        codes, block_counts = np.unique(block, return_counts=True)
        counts.update(dict(zip(codes.tolist(), block_counts.tolist(), strict=True)))
    ranked = sorted(
        ((chr(code), n) for code, n in counts.items() if not chr(code).isspace()), key=lambda p: (-p[1], p[0])
    )
    target, covered, alphabet = _CHARACTER_COVERAGE * sum(n for _, n in ranked), 0, []
    for character, n in ranked[:limit]:
        if covered >= target:
            break
        alphabet.append(character)
        covered += n
    others = re.compile(rf"[^\s{re.escape(''.join(sorted(alphabet)))}]+")
    return sorted(alphabet), [others.sub(" ", chunk) for chunk in chunks]


def _continuation_characters(chunks: Sequence[str], alphabet: Iterable[str]) -> list[str]:
    """Return, sorted, the characters that continue a word: those not preceded by a space or punctuation."""
    inside = np.zeros(sys.maxunicode + 1, dtype=bool)
    inside[[ord(character) for character in alphabet if not _is_punctuation(character)]] = True
    codes: set[int] = set()
    for block in _blocks(chunks):
        is_inside = inside[block]
        codes.update(np.unique(block[1:][is_inside[1:] & is_inside[:-1]]).tolist())
    return sorted(map(chr, codes))


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _blocks(chunks: Sequence[str], size: int = 256) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield the code points of `size` chunks at a time, joined by spaces."""
    for start in range(0, len(chunks), size):
        text = " ".join(["", *chunks[start : start + size]])
        yield np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def _wrap(tokenizer: Tokenizer, config: TokenizerConfig) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    template = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    trim = [processors.ByteLevel(trim_offsets=True)] if config.kind == "bpe" else []
    tokenizer.post_processor = processors.Sequence([*trim, template]) if trim else template
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=_MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        **dict(zip(names, SPECIAL_TOKENS, strict=True)),
    )
