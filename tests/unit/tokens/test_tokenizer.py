"""Tokenizer training: the three kinds, determinism, bounded samples, and loading without Headstart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from headstart.core.errors import ArtifactError, DataError
from headstart.core.vocabulary import vocabulary_of
from headstart.tokens.sampling import CHUNK_CHARACTERS, chunks, sample, sample_mixture
from headstart.tokens.tokenizer import SPECIAL_TOKENS, TokenizerConfig, load, train

KINDS = ("wordpiece", "bpe", "unigram")
PROBES = ["Badegra kamo.", "two\nlines  and spaces", "naïve 世界 [SEP] 🙂", "", "z" * 300]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, check=False, text=True, env=environment)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_templates_and_length(kind: str, tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    tokenizer = tokenizers[kind]
    assert tokenizer.convert_ids_to_tokens(list(range(5))) == list(SPECIAL_TOKENS)
    assert (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.mask_token_id) == (0, 2, 4)
    assert len(tokenizer) == 400 and tokenizer.model_max_length == 512
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("bada", "kamo lo"))
    assert tokenizer("bada")["input_ids"] == [2, *a, 3]
    pair = tokenizer("bada", "kamo lo", return_token_type_ids=True)
    assert pair["input_ids"] == [2, *a, 3, *b, 3]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert vocabulary_of(tokenizer).special.sum() == 5


@pytest.mark.parametrize("kind", KINDS)
def test_known_words_round_trip(kind: str, tokenizers: dict[str, PreTrainedTokenizerFast], texts: list[str]) -> None:
    text = " ".join(texts[0].split())
    back = tokenizers[kind].decode(tokenizers[kind](text)["input_ids"], skip_special_tokens=True)
    assert back.replace(" ", "") == text.replace(" ", "")


def test_lowercase_and_lossless_byte_level(texts: list[str], tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    lowercase = train(texts, TokenizerConfig(vocab_size=400), seed=0)
    assert lowercase.tokenize("KÁMO") == lowercase.tokenize("kamo")
    probe = "Ünï 世界 🙂\n\ttab"
    assert tokenizers["bpe"].decode(tokenizers["bpe"](probe, add_special_tokens=False)["input_ids"]) == probe


def test_autotokenizer_gives_the_same_ids_without_headstart(
    tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path
) -> None:
    for kind, tokenizer in tokenizers.items():
        tokenizer.save_pretrained(str(tmp_path / kind))
        assert load(tmp_path / kind)(PROBES)["input_ids"] == tokenizer(PROBES)["input_ids"]
    program = (
        "import json, sys\n"
        "sys.modules['headstart'] = None  # as if it were not installed\n"
        "from transformers import AutoTokenizer\n"
        "folder, probes = sys.argv[1], json.loads(sys.argv[2])\n"
        "loaded = {k: AutoTokenizer.from_pretrained(f'{folder}/{k}') for k in ('wordpiece', 'bpe', 'unigram')}\n"
        "print(json.dumps({k: [t(probes)['input_ids'], t('a', 'b')['input_ids'], t.mask_token_id, t.model_max_length]"
        " for k, t in loaded.items()}))"
    )
    done = run(program, str(tmp_path), json.dumps(PROBES))
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    for kind, t in tokenizers.items():
        assert answers[kind] == [t(PROBES)["input_ids"], t("a", "b")["input_ids"], 4, 512], kind


def test_training_in_another_process_gives_the_same_bytes(
    tokenizers: dict[str, PreTrainedTokenizerFast], texts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    program = (
        "import json, sys\n"
        "from headstart.tokens.tokenizer import TokenizerConfig, train\n"
        "texts = json.load(open(sys.argv[1]))\n"
        "for kind in ('wordpiece', 'bpe', 'unigram'):\n"
        "    config = TokenizerConfig(kind=kind, vocab_size=400, lowercase=False)\n"
        "    print(json.dumps(train(texts, config, seed=0).backend_tokenizer.to_str()))"
    )
    done = run(program, str(tmp_path / "texts.json"))
    assert done.returncode == 0, done.stderr
    for kind, line in zip(KINDS, done.stdout.splitlines(), strict=True):
        assert json.loads(line) == tokenizers[kind].backend_tokenizer.to_str(), kind


def test_too_little_text_names_the_largest_possible_vocabulary(texts: list[str]) -> None:
    with pytest.raises(
        DataError, match=r"give \d+ tokens, but tokenizer.vocab_size is 16,384.*Set tokenizer.vocab_size to"
    ):
        train(texts[:20], TokenizerConfig(), seed=0)


def test_text_for_less_than_the_smallest_vocabulary_needs_more_text() -> None:
    """A number below the minimum of `tokenizer.vocab_size` would be refused, so it is not proposed."""
    with pytest.raises(DataError, match=r"give \d+ tokens.*at least 300 tokens\. Add text") as caught:
        train(["a bad cab, a bad dab"], TokenizerConfig(vocab_size=300), seed=0)
    assert "Set tokenizer.vocab_size" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_is_refused(kind: str) -> None:
    with pytest.raises(DataError):
        train(["", "  "], TokenizerConfig.model_validate({"kind": kind}), seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_megabyte_of_one_letter_does_not_hang(kind: str, texts: list[str]) -> None:
    start = time.perf_counter()
    tokenizer = train(
        ["a" * 1_000_000, *texts], TokenizerConfig.model_validate({"kind": kind, "vocab_size": 400}), seed=0
    )
    assert time.perf_counter() - start < 20
    assert max(len(token) for token in tokenizer.get_vocab()) <= 102


def test_sample_is_bounded_pure_and_uniform() -> None:
    stream = [f"{i:04d} " * 200 for i in range(2000)]
    kept = sample(stream, 0.2, seed=3)
    assert 0.19e6 < sum(len(chunk) for chunk in kept) <= 0.2e6
    assert kept == sample(iter(stream), 0.2, seed=3) and kept != sample(stream, 0.2, seed=4)
    ordinals = [int(chunk[:4]) for chunk in kept]
    assert ordinals == sorted(ordinals)
    assert 800 < sum(ordinals) / len(ordinals) < 1200
    assert sample(stream, 100, seed=3) == [text.rstrip() for text in stream]


@given(st.text(max_size=200).map(lambda text: text * 200))
@settings(max_examples=30, deadline=None)
def test_chunks_lose_nothing_but_white_space(text: str) -> None:
    pieces = list(chunks([text]))
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < len(piece) <= CHUNK_CHARACTERS for piece in pieces)


def test_load_names_the_problem(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match=r"has no tokenizer.json.*Check tokenizer.path"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        load(tmp_path)


def test_a_sample_of_several_streams_follows_the_shares() -> None:
    """The short stream is repeated, the one with the most text for its share is not."""
    many, few = [f"m{n} " * 20 for n in range(2000)], [f"f{n} " * 20 for n in range(50)]

    def size(chunks: list[str], letter: str) -> int:
        return sum(len(chunk.encode()) for chunk in chunks if chunk.startswith(letter))

    for megabytes in (0.02, 50):
        sampled = sample_mixture([many, few], [0.6, 0.4], megabytes, seed=0)
        assert size(sampled, "f") / (size(sampled, "f") + size(sampled, "m")) == pytest.approx(0.4, abs=0.02)
        assert sum(len(chunk.encode()) for chunk in sampled) <= megabytes * 1e6
        assert len([c for c in sampled if c[0] == "m"]) == len({c for c in sampled if c[0] == "m"})
    assert sample_mixture([many], [1.0], 0.02, seed=3) == sample(many, 0.02, seed=3)
