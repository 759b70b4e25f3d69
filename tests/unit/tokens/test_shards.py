"""Shards contain the tokenizer's ids, independent of batches and files."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from headstart.core.data import Document
from headstart.core.errors import ArtifactError, DataError
from headstart.corpus.read.readers import CorpusConfig, Receipt, documents
from headstart.tokens.sentences import sentence_starts
from headstart.tokens.shards import Shards, write, write_splits
from headstart.tokens.tokenizer import TokenizerConfig, train


def documents_of(texts: list[str]) -> list[Document]:
    return [Document(f"t:{i}", text) for i, text in enumerate(texts)]


def per_document(shards: Shards) -> list[list[int]]:
    ends = [*shards.documents[1:], shards.tokens]
    return [shards.read(int(a), int(b)).tolist() for a, b in zip(shards.documents, ends, strict=True)]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_documents_and_sentences_have_the_tokenizers_ids(
    kind: str, tokenizers: dict[str, PreTrainedTokenizerFast], texts: list[str], tmp_path: Path
) -> None:
    tokenizer, texts = tokenizers[kind], ["", *texts[:20], " \n "]
    seen: list[int] = []
    counts = write(documents_of(texts), tokenizer, tmp_path, on_documents=seen.append)
    shards = Shards(tmp_path)
    expected = [ids for ids in tokenizer(texts, add_special_tokens=False)["input_ids"] if ids]
    assert per_document(shards) == expected
    assert counts == shards.counts == json.loads((tmp_path / "counts.json").read_text())
    assert (counts["documents"], counts["empty_documents"]) == (len(expected), len(texts) - len(expected))
    assert counts["characters"] == sum(map(len, texts))
    assert (
        counts["sentences"]
        == len(shards.sentences)
        == sum(len(sentence_starts(t)) for t in texts[1:21]) + (len(expected) - 20)
    )
    assert set(shards.documents.tolist()) <= set(shards.sentences.tolist())
    assert seen[-1] == len(texts)
    flat = np.concatenate([np.array(ids) for ids in expected])
    assert shards.unigrams.tolist() == np.bincount(flat, minlength=len(tokenizer)).tolist()
    shares = np.bincount(flat) / len(flat)
    assert counts["unigram_entropy_nats"] == pytest.approx(-sum(p * math.log(p) for p in shares if p))


def test_names_of_special_tokens_in_raw_text_are_text(
    tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path
) -> None:
    for kind, tokenizer in tokenizers.items():
        write(documents_of(["bada [SEP] kamo[MASK] [CLS][PAD] lo"]), tokenizer, tmp_path / kind)
        shards = Shards(tmp_path / kind)
        assert not set(shards.read(0, shards.tokens).tolist()) & {0, 2, 3, 4}, kind
        assert tokenizer("[SEP]", add_special_tokens=False)["input_ids"] == [3]


@given(
    pieces=st.lists(st.text(alphabet=st.sampled_from(list("ab de.\n!K")), max_size=40), min_size=1, max_size=12),
    batch_characters=st.integers(1, 60),
    limit_tokens=st.integers(1, 50),
)
@settings(max_examples=20, deadline=None)
def test_bytes_do_not_depend_on_batches_or_files(
    pieces: list[str],
    batch_characters: int,
    limit_tokens: int,
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    tokenizer = tokenizers["wordpiece"]
    given_documents = documents_of([*pieces, "Bada."])
    with tempfile.TemporaryDirectory() as name:
        one, two = Path(name) / "one", Path(name) / "two"
        write(given_documents, tokenizer, one)
        write(given_documents, tokenizer, two, limit_tokens=limit_tokens, batch_characters=batch_characters)
        for file in ("documents.bin", "sentences.bin", "unigrams.bin"):
            assert (one / file).read_bytes() == (two / file).read_bytes()
        joined = b"".join(path.read_bytes() for path in sorted(two.glob("tokens-*.bin")))
        assert joined == (one / "tokens-00000.bin").read_bytes()
        a, b = Shards(one), Shards(two)
        for start in range(0, a.tokens, 7):
            stop = min(a.tokens, start + 2 * limit_tokens)
            assert a.read(start, stop).tolist() == b.read(start, stop).tolist()
        everywhere = np.arange(a.tokens)[::-1].reshape(1, -1)
        assert (a.gather(everywhere) == b.gather(everywhere)).all()
        assert b.read(b.tokens, b.tokens).size == 0


@given(splits=st.lists(st.sampled_from(["train", "validation"]), min_size=1, max_size=12), batch=st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_splits_written_in_one_pass_equal_separate_passes(
    splits: list[str], batch: int, tokenizers: dict[str, PreTrainedTokenizerFast], texts: list[str]
) -> None:
    tokenizer = tokenizers["wordpiece"]
    pairs = list(zip(splits, documents_of(texts), strict=False))
    with tempfile.TemporaryDirectory() as name:
        folders = {split: Path(name) / split for split in set(splits)}
        counts = write_splits(pairs, tokenizer, folders, batch_characters=batch)
        for split, folder in folders.items():
            separate = [document for other, document in pairs if other == split]
            assert write(separate, tokenizer, Path(name) / "separate") == counts[split]
            for path in folder.iterdir():
                assert path.read_bytes() == (Path(name) / "separate" / path.name).read_bytes()


def test_a_very_long_sentence_is_encoded_in_pieces_with_the_same_tokens(
    tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path
) -> None:
    text = "bada kamo  lo " * 20_000
    for kind, tokenizer in tokenizers.items():
        counts = write(documents_of([text, "x" * 200_000]), tokenizer, tmp_path / kind)
        assert (counts["documents"], counts["sentences"]) == (2, 2)
        assert per_document(Shards(tmp_path / kind))[0] == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_large_vocabularies_take_four_bytes(tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path) -> None:
    tokenizer = tokenizers["wordpiece"].__class__(tokenizer_object=tokenizers["wordpiece"].backend_tokenizer)
    tokenizer.add_tokens([f"extra{i}" for i in range(66_000)])
    counts = write(documents_of(["bada extra65999"]), tokenizer, tmp_path)
    assert counts["dtype"] == "uint32"
    assert Shards(tmp_path).read(0, counts["tokens"])[-1] == 400 + 65_999


def test_errors_name_the_problem(tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contain no tokens"):
        write(
            documents_of(["", " "]),
            tokenizers["bpe"].__class__(tokenizer_object=tokenizers["wordpiece"].backend_tokenizer),
            tmp_path,
        )
    with pytest.raises(ArtifactError, match="has no valid token shards"):
        Shards(tmp_path / "nowhere")
    write(documents_of(["bada kamo"]), tokenizers["wordpiece"], tmp_path)
    with pytest.raises(IndexError):
        Shards(tmp_path).read(0, 10_000)
    (tmp_path / "tokens-00000.bin").write_bytes(b"\x00")
    with pytest.raises(ArtifactError, match=r"tokens-00000\.bin has 1 bytes"):
        Shards(tmp_path)


def test_real_articles(data_folder: Path, tmp_path: Path) -> None:
    path = data_folder / "corpora" / "wikipedia-en-2015" / "part-00.parquet"
    stream = documents(CorpusConfig(files=[str(path)]), Receipt())
    articles = [Document(d.id, d.text[:5000]) for d, _ in zip(stream, range(200), strict=False)]
    tokenizer = train((article.text for article in articles), TokenizerConfig(vocab_size=4000, sample_mb=0.5), seed=0)
    counts = write(articles, tokenizer, tmp_path)
    assert counts["documents"] == 200
    whole = tokenizer([article.text for article in articles], add_special_tokens=False)["input_ids"]
    assert per_document(Shards(tmp_path)) == whole
    assert 3 < counts["characters"] / counts["tokens"] < 6
    assert Shards(tmp_path).unigrams[1] < counts["tokens"] / 500
    assert 60 < counts["characters"] / counts["sentences"] < 200
