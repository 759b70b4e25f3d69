"""An extended tokenizer: new entries of the model, fewer tokens per text, and unchanged old ids."""

from __future__ import annotations

import copy
import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, BertTokenizerFast, PreTrainedTokenizerFast

from headstart.core.errors import ArtifactError, DataError
from headstart.core.vocabulary import vocabulary_of
from headstart.tokens.extension import extend, load_pieces
from headstart.tokens.tokenizer import add_special

KINDS = ("wordpiece", "bpe", "unigram")
TERMS = ["Cardiomyopathy", "immunoglobulin", "thrombocytopenia", "bradycardia", "angioplasty"]


@pytest.fixture(scope="module")
def domain(verses: list[str]) -> list[str]:
    """Real text with words that occur in no verse, at the frequency of domain terms."""
    return [f"{verse} The {TERMS[n % 5]} of {TERMS[n % 3]}, and {TERMS[0]}." for n, verse in enumerate(verses[:600])]


@pytest.fixture(scope="module")
def extended(tiny_tokenizers, domain, tmp_path_factory):
    tokenizers = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        pieces = extend(copy.deepcopy(tiny_tokenizers[kind]), domain, 60, folder)
        tokenizers[kind] = (AutoTokenizer.from_pretrained(str(folder)), pieces, folder)
    return tokenizers


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_tokens_per_word_and_one_per_term(kind, tiny_tokenizers, extended, domain):
    before, (after, pieces, _) = tiny_tokenizers[kind], extended[kind]
    assert len(after) == len(before) + 60 == len(before) + len(pieces)
    words = sum(len(text.split()) for text in domain)
    rates = [
        sum(len(t(text, add_special_tokens=False)["input_ids"]) for text in domain) / words for t in (before, after)
    ]
    assert rates[1] < 0.85 * rates[0], rates
    for term in TERMS:
        assert len(before.tokenize(f"of {term}")) > 4 and len(after.tokenize(f"of {term}")) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_encoded_the_token_before(kind, tiny_tokenizers, extended):
    before, (after, pieces, folder) = tiny_tokenizers[kind], extended[kind]
    assert sorted(pieces) == list(range(len(before), len(after))) and load_pieces(folder) == pieces
    for token, old_ids in pieces.items():
        assert len(old_ids) > 1 and max(old_ids) < len(before)
        texts = [before.decode(old_ids), after.decode([token])]
        assert texts[0].strip() == texts[1].strip(), "both decode to the same text"


@pytest.mark.parametrize("kind", KINDS)
def test_old_tokens_keep_their_ids_and_flags(kind, tiny_tokenizers, extended):
    before, after = tiny_tokenizers[kind], extended[kind][0]
    ids = after.get_vocab()
    assert all(ids[token] == token_id for token, token_id in before.get_vocab().items())
    assert after.all_special_ids == before.all_special_ids
    old, new = vocabulary_of(before), vocabulary_of(after)
    assert (new.special[: old.size] == old.special).all() and not new.special[old.size :].any()
    assert (new.starts_word[: old.size] == old.starts_word).all()
    terms = [token_id for token, token_id in ids.items() if token.strip("Ġ▁").lower() in map(str.lower, TERMS)]
    assert len(terms) >= 5 and new.starts_word[terms].all()


def test_text_is_lowercased_as_before(verses, domain, tmp_path):
    from headstart.tokens.tokenizer import TokenizerConfig, train

    lowercase = train(verses, TokenizerConfig(vocab_size=600, lowercase=True), seed=0)
    extend(lowercase, domain, 30, tmp_path)
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    assert loaded.tokenize("CARDIOMYOPATHY cardiomyopathy") == ["cardiomyopathy"] * 2
    assert "Cardiomyopathy" not in loaded.get_vocab()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_bytes(kind, tiny_tokenizers, extended, domain, tmp_path):
    extend(copy.deepcopy(tiny_tokenizers[kind]), domain, 60, tmp_path)
    for name in ("tokenizer.json", "extension.json"):
        assert (tmp_path / name).read_bytes() == (extended[kind][2] / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_that_were_added_later_keep_their_ids(kind, tiny_tokenizers, domain, tmp_path):
    tokenizer = copy.deepcopy(tiny_tokenizers[kind])
    added = add_special(tokenizer, ["<one>", "<two>"]).added
    extend(tokenizer, domain, 10, tmp_path)
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    assert vocabulary_of(loaded).added == added and len(loaded) == len(tokenizer) + 10
    assert vocabulary_of(loaded).special.sum() == 7
    ids = loaded("<one> of Cardiomyopathy", add_special_tokens=False)["input_ids"]
    assert ids[0] == added["<one>"] and ids[-1] >= len(tokenizer)
    again = loaded.backend_tokenizer.encode("so <two> is").tokens
    assert "<two>" in again


def test_the_most_useful_words_come_first(tiny_tokenizer, tmp_path):
    texts = ["zyxwvut zyxwvut zyxwvut zyxwvut qponml qponml onceonly " * 3, "thee and thou"]
    extend(copy.deepcopy(tiny_tokenizer), texts, 1, tmp_path)
    assert AutoTokenizer.from_pretrained(str(tmp_path)).tokenize("zyxwvut") == ["zyxwvut"]


def test_bpe_continues_merging_where_it_stopped(tiny_tokenizers, extended, domain):
    """The new merges come last, so a text is encoded as before, and then merged further."""
    before, (after, pieces, folder) = tiny_tokenizers["bpe"], extended["bpe"]
    old = json.loads(before.backend_tokenizer.to_str())["model"]["merges"]
    new = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
    assert new[: len(old)] == old and len(new) == len(old) + 60
    for text in domain[:50]:
        old_ids = [pieces.get(i, [i]) for i in after(text, add_special_tokens=False)["input_ids"]]
        assert [i for part in old_ids for i in part] == before(text, add_special_tokens=False)["input_ids"]


def test_a_tokenizer_class_of_transformers(tmp_path):
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyz",
        *map("##{}".format, "abcdefghij"),
    ]
    words += [f"##{letter}" for letter in "klmnopqrstuvwxyz"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    bert = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    extend(bert, ["Heart heart attack"] * 3, 5, tmp_path / "out")
    loaded = AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    assert type(loaded) is type(bert) and loaded.tokenize("HEART attack") == ["heart", "attack"]


def test_words_of_one_token_are_not_learned(tiny_tokenizer, tmp_path):
    with pytest.raises(DataError, match="as a single token"):
        extend(copy.deepcopy(tiny_tokenizer), ["the the of of"] * 4, 5, tmp_path)


def test_other_kinds_are_refused(tmp_path):
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    words = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    with pytest.raises(ArtifactError, match=r"model is WordLevel\. tokenizer\.extend supports WordPiece, Unigram, BPE"):
        extend(words, ["a b b"], 5, tmp_path)
