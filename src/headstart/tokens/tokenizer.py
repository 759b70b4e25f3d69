"""Train a tokenizer on a bounded sample of text, the same bytes for the same text and seed.

The trainers of `tokenizers` walk hash maps, so ids and ties differ from run to run. WordPiece gets its
continuing characters in a fixed order beforehand, byte-level BPE has a fixed alphabet, and Unigram's
pieces are rounded and sorted afterwards.
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
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headstart.core.data import Vocabulary
from headstart.core.errors import ArtifactError, DataError
from headstart.core.vocabulary import vocabulary_of
from headstart.tokens.sampling import LONGEST_WORD, sample
from headstart.tokens.settings import TokenizerConfig as TokenizerConfig  # noqa: PLC0414 - offered here as well

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MAX_LENGTH = 512
_CHARACTER_COVERAGE = 0.9999
_SPECIAL_SCORE = -1e4  # Unigram's search must never prefer a special token's name, met in raw text, to its letters


def train(texts: Iterable[str], config: TokenizerConfig, seed: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer on a sample of texts."""
    return train_on(sample(texts, config.sample_mb, seed), config)


def train_on(chunks: list[str], config: TokenizerConfig) -> PreTrainedTokenizerFast:
    """Train a tokenizer with [PAD] [UNK] [CLS] [SEP] [MASK] as ids 0 to 4 on all of some chunks of text.

    `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]` are its templates. `save_pretrained` writes a folder that
    AutoTokenizer loads by itself.
    """
    normalizer = _normalizer(config)
    if normalizer is not None:
        chunks = [normalizer.normalize_str(chunk) for chunk in chunks]
    if not chunks:
        raise DataError("there is no text to train a tokenizer on", do="Check corpus.files and corpus.text")
    trained = {"wordpiece": _wordpiece, "bpe": _bpe, "unigram": _unigram}[config.kind](chunks, config)
    found = trained.get_vocab_size()
    if found < config.vocab_size:
        size = sum(len(chunk.encode()) for chunk in chunks)
        raise DataError(
            f"{size / 1e6:.3g} MB of text give {found:,} tokens, "
            f"and tokenizer.vocab_size asks for {config.vocab_size:,}",
            allowed="A token must occur at least twice",
            do=f"Set tokenizer.vocab_size to {found} or less, or add text",
        )
    if normalizer is not None:
        trained.normalizer = normalizer
    return _wrap(trained, config)


def load(path: str | Path) -> PreTrainedTokenizerFast:
    """Load a tokenizer's folder, or say what is wrong with it; nothing is downloaded."""
    path = Path(path)
    if not (path / "tokenizer.json").is_file():
        raise ArtifactError(
            f"{path} {'has no tokenizer.json' if path.is_dir() else 'is no folder'}",
            allowed="A tokenizer is a folder that save_pretrained of a fast tokenizer wrote",
            do="Check tokenizer.path",
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    # The loader raises bare Exception for a torn tokenizer.json.
    except Exception as error:
        raise ArtifactError(
            f"the tokenizer in {path} cannot be loaded ({error})", do="Restore the folder or train anew"
        ) from error
    if not tokenizer.is_fast:
        raise ArtifactError(f"{path} holds a slow tokenizer", allowed="Headstart reads tokenizer.json")
    return cast("PreTrainedTokenizerFast", tokenizer)


def add_special(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[str]) -> Vocabulary:
    """Append the special tokens that the tokenizer lacks, after all others so that shards keep their ids."""
    missing = [token for token in tokens if token not in tokenizer.extra_special_tokens]
    if missing:
        tokenizer.add_special_tokens({"extra_special_tokens": [*tokenizer.extra_special_tokens, *missing]})
    return vocabulary_of(tokenizer)


def save_for(tokenizer: PreTrainedTokenizerFast, folder: Path, input_names: list[str], longest: int) -> None:
    """Write a tokenizer beside a model, so that it gives just the inputs that the model takes."""
    tokenizer.model_input_names = input_names
    # save_pretrained writes an attribute only if it stands among the first arguments too.
    tokenizer.init_kwargs["model_input_names"] = input_names
    for leftover in ("local_files_only", "is_local"):
        tokenizer.init_kwargs.pop(leftover, None)
    tokenizer.model_max_length = longest
    tokenizer.save_pretrained(str(folder))


def _normalizer(config: TokenizerConfig) -> Any:
    if config.kind == "wordpiece":
        return normalizers.BertNormalizer(lowercase=config.lowercase)
    lower = [normalizers.Lowercase()] if config.lowercase else []
    if config.kind == "bpe":
        return normalizers.Sequence(lower) if lower else None
    # As SentencePiece does: compatibility forms, then single spaces.
    steps = [normalizers.NFKC(), *lower, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


def _wordpiece(chunks: list[str], config: TokenizerConfig) -> Tokenizer:
    alphabet, chunks = _limit_alphabet(chunks, config.vocab_size // 3)
    continuing = [f"##{character}" for character in _continuing(chunks, alphabet)]
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
    # A new tokenizer, because the trainer declared the continuing characters special.
    vocabulary = learner.get_vocab(with_added_tokens=False)
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
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
        # Folded text never spells a special token's name; other text must be able to spell it by letters.
        initial_alphabet=[] if config.lowercase else sorted(set("".join(SPECIAL_TOKENS))),
        unk_token="[UNK]",
        seed_size=min(1_000_000, 20 * config.vocab_size),  # type: ignore[call-arg]  # missing in the stubs
        show_progress=False,
    )
    learner.train_from_iterator(chunks, trainer)
    ranked = _rank(json.loads(learner.to_str())["model"]["vocab"])
    tokenizer = Tokenizer(models.Unigram([*((token, _SPECIAL_SCORE) for token in SPECIAL_TOKENS), *ranked], unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _rank(pieces: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Sort Unigram's pieces, with the chance taken out of their scores.

    Sums over threads differ in their last digits. And characters that the model did not keep are put back at
    the lowest score plus 0.0001 each, in the order of a hash map: they all get the lowest.
    """
    kept = [(piece, score) for piece, score in pieces if piece not in SPECIAL_TOKENS]
    lowest = min(score for _, score in kept)
    highest_put_back = lowest + 0.0001 * sum(len(piece) == 1 for piece, _ in kept)
    scores = [lowest if len(piece) == 1 and score <= highest_put_back else score for piece, score in kept]
    return sorted(((piece, round(score, 4)) for (piece, _), score in zip(kept, scores, strict=True)), key=_by_score)


def _by_score(pair: tuple[str, float]) -> tuple[float, str]:
    return -pair[1], pair[0]


def _limit_alphabet(chunks: list[str], most: int) -> tuple[list[str], list[str]]:
    """Return the characters that cover 99.99 % of the text, at most so many, and the text without the others.

    Chosen here and not by the trainers, which break ties at random or cannot limit the alphabet at all.
    """
    counts: Counter[int] = Counter()
    for block in _blocks(chunks):
        codes, found = np.unique(block, return_counts=True)
        counts.update(dict(zip(codes.tolist(), found.tolist(), strict=True)))
    ranked = sorted(
        ((chr(code), n) for code, n in counts.items() if not chr(code).isspace()), key=lambda p: (-p[1], p[0])
    )
    wanted, covered, alphabet = _CHARACTER_COVERAGE * sum(n for _, n in ranked), 0, []
    for character, n in ranked[:most]:
        if covered >= wanted:
            break
        alphabet.append(character)
        covered += n
    others = re.compile(rf"[^\s{re.escape(''.join(sorted(alphabet)))}]+")
    return sorted(alphabet), [others.sub(" ", chunk) for chunk in chunks]


def _continuing(chunks: Sequence[str], alphabet: Iterable[str]) -> list[str]:
    """Return, sorted, the characters that continue a word: before them stands neither a space nor a mark."""
    inside = np.zeros(sys.maxunicode + 1, dtype=bool)
    inside[[ord(character) for character in alphabet if not _is_mark(character)]] = True
    found: set[int] = set()
    for block in _blocks(chunks):
        is_inside = inside[block]
        found.update(np.unique(block[1:][is_inside[1:] & is_inside[:-1]]).tolist())
    return sorted(map(chr, found))


def _is_mark(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _blocks(chunks: Sequence[str], size: int = 256) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield the code points of some chunks at a time, a space between two."""
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
