"""Masks: how many, which, what is shown instead, and a head that sees predicted positions alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from headstart.backbones.encoder import Encoder
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.masked_lm import MaskedLM, masked_logits

SIZE, MASK = 500, 4
KINDS = ("wordpiece", "bpe", "unigram")
BARE_SPACES = ("Ġ", "▁")  # may be a part of the word after them, and share its offsets
ENCODERS = ("bert", "roberta", "modernbert", "deberta-v2", "albert", "electra")


def made_up_vocabulary() -> Vocabulary:
    """Five special tokens, and every third of the others continues a word."""
    special = np.arange(SIZE) < 5
    starts = special | (np.arange(SIZE) % 3 != 0)
    return Vocabulary(SIZE, pad=0, cls=2, sep=3, mask=MASK, special=special, starts_word=starts)


def made_up_rows(count: int, length: int, seed: int = 0, epoch: int = 0) -> Rows:
    ids = np.random.default_rng(seed).integers(5, SIZE, size=(count, length))
    ids[:, 0], ids[:, -1] = 2, 3
    return Rows(ids, [Sample(epoch, index) for index in range(count)])


def within(found: int, trials: int, share: float, sigmas: float = 5.0) -> bool:
    return abs(found - trials * share) <= sigmas * math.sqrt(trials * share * (1 - share))


@given(rate=st.floats(0.01, 0.9), length=st.integers(8, 128), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_each_row_has_the_same_number_of_predictions(rate, length, seed):
    rows = made_up_rows(4, length, seed)
    objective = MaskedLM(rate=rate)
    batch = objective.corrupt(rows, made_up_vocabulary(), seed)
    wanted = max(1, round(rate * length))
    assert batch["positions"].shape == (4, wanted)
    filled = batch["weights"].sum(1)
    assert (filled == min(wanted, length - 2)).all(), "all ordinary tokens where the rate asks for more than there are"
    for row in range(4):
        chosen = batch["positions"][row, : int(filled[row])].numpy()
        assert len(set(chosen.tolist())) == len(chosen), "no position twice"
        assert (batch["labels"][row, : len(chosen)].numpy() == rows.ids[row, chosen]).all()
        others = np.setdiff1d(np.arange(length), chosen)
        assert (batch["input_ids"][row].numpy()[others] == rows.ids[row, others]).all()


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize(("mask", "random"), [(0.8, 0.1), (0.5, 0.3), (1.0, 0.0)])
def test_shares_of_masked_random_and_kept_over_100_000_predictions(whole_words, mask, random):
    rows = made_up_rows(1600, 128)
    batch = MaskedLM(rate=0.5, mask=mask, random=random, whole_words=whole_words).corrupt(rows, made_up_vocabulary(), 1)
    used = batch["weights"] > 0
    shown = batch["input_ids"].gather(1, batch["positions"])[used]
    labels = batch["labels"][used]
    total = len(labels)
    assert total > 100_000
    masked, same = int((shown == MASK).sum()), int((shown == labels).sum())
    assert within(masked, total, mask)
    # A random token is the original one by chance once in as many draws as there are ordinary tokens.
    by_chance = random / (SIZE - 5)
    assert within(same, total, 1 - mask - random + by_chance)
    assert within(total - masked - same, total, random - by_chance)
    negative_ids = shown[(shown != MASK) & (shown != labels)]
    assert not len(negative_ids) or (negative_ids.min() >= 5 and len(negative_ids.unique()) == SIZE - 5)


def test_positions_are_chosen_evenly():
    batch = MaskedLM().corrupt(made_up_rows(5300, 128), made_up_vocabulary(), 0)
    counts = torch.bincount(batch["positions"].flatten(), minlength=128)
    assert counts[0] == counts[-1] == 0
    assert all(within(int(count), 5300, 19 / 126) for count in counts[1:-1])


def same_word(text, left, right):
    """By the text alone: do two neighbouring tokens, given by their offsets, belong to one word?"""
    return left[1] == right[0] and text[left[1] - 1].isalnum() and text[right[0]].isalnum()


@pytest.fixture(scope="module")
def plain_texts(verses):
    """Pairs of verses with a line's end between them; apostrophes are left out, since tokenizers differ on them."""
    texts = [f"{first}\n{second}" for first, second in zip(verses[0:400:2], verses[1:400:2], strict=True)]
    return [text for text in texts if "'" not in text and "’" not in text]


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_told_by_the_tokens_as_by_the_text(kind, tiny_tokenizers, plain_texts):
    tokenizer = tiny_tokenizers[kind]
    vocabulary = vocabulary_of(tokenizer)
    several = 0
    for text in plain_texts:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        opens = vocabulary.word_starts(np.asarray(encoded["input_ids"]))
        offsets = encoded["offset_mapping"]
        assert opens[0]
        for place in range(1, len(offsets)):
            left, right = offsets[place - 1], offsets[place]
            if encoded.tokens()[place - 1] in BARE_SPACES:
                continue
            assert opens[place] == (not same_word(text, left, right)), (text, text[left[0] : right[1]])
            several += not opens[place]
    assert several > 1000


@pytest.mark.parametrize("kind", KINDS)
def test_a_chosen_word_is_chosen_whole(kind, tiny_tokenizers, plain_texts):
    tokenizer = tiny_tokenizers[kind]
    vocabulary = vocabulary_of(tokenizer)
    objective = MaskedLM(whole_words=True, rate=0.3)
    several = alone = 0
    for number, text in enumerate(plain_texts[:100]):
        encoded = tokenizer(text, return_offsets_mapping=True)
        ids = np.asarray([encoded["input_ids"]])
        batch = objective.corrupt(Rows(ids, [Sample(0, number)]), vocabulary, 0)
        chosen = np.zeros(ids.shape[1], dtype=bool)
        chosen[batch["positions"][0][batch["weights"][0] > 0].numpy()] = True
        assert not chosen[[0, -1]].any()
        assert chosen.sum() <= round(0.3 * ids.shape[1])
        offsets = encoded["offset_mapping"]
        for place in range(2, ids.shape[1] - 1):
            if encoded.tokens()[place - 1] in BARE_SPACES:
                continue
            if same_word(text, offsets[place - 1], offsets[place]):
                assert chosen[place] == chosen[place - 1]
                several += chosen[place]
            else:
                alone += chosen[place] != chosen[place - 1]
    assert several > 100, "words of several tokens were chosen"
    assert alone > 100, "and words beside others that were not"


@pytest.mark.parametrize("kind", KINDS)
def test_whole_words_fill_the_rate(kind, tiny_tokenizers, verses):
    tokenizer = tiny_tokenizers[kind]
    stream = [token for text in verses[:400] for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    ids = np.asarray(stream[: 100 * 128]).reshape(100, 128)
    samples = [Sample(0, index) for index in range(100)]
    batch = MaskedLM(whole_words=True).corrupt(Rows(ids, samples), vocabulary_of(tokenizer), 0)
    assert batch["positions"].shape == (100, 19)
    assert (batch["weights"].sum(1) == 19).float().mean() > 0.95


def test_a_word_does_not_go_on_across_a_special_token():
    """Tokens 6 and 9 continue words; after [SEP] or at a row's start there is none for them to continue."""
    row = np.asarray([2, 6, 7, 9, 3, 9, 6, 8, 3])
    vocabulary = made_up_vocabulary()
    assert vocabulary.word_starts(row).tolist() == [True, True, True, False, True, True, False, True, True]
    assert vocabulary.word_starts(np.stack([row, row])).tolist() == [vocabulary.word_starts(row).tolist()] * 2
    for index in range(50):
        batch = MaskedLM(whole_words=True, rate=0.23).corrupt(Rows(row[None], [Sample(0, index)]), vocabulary, 0)
        assert batch["positions"].shape == (1, 2)
        used = batch["positions"][0][batch["weights"][0] > 0].tolist()
        assert used in ([2, 3], [5, 6], [1, 7]), used


def test_words_of_byte_level_tokens(tiny_tokenizers):
    """A word after a line's end has no space marker, and half a character is no word of its own."""
    tokenizer = tiny_tokenizers["bpe"]
    vocabulary = vocabulary_of(tokenizer)

    def words(text):
        ids = np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"])
        groups = np.split(ids, np.flatnonzero(vocabulary.word_starts(ids))[1:])
        return [tokenizer.decode(group) for group in groups]

    assert words("unto\nwhatsoever") == ["unto", "\n", "whatsoever"]
    assert words("(behold) him") == ["(", "behold", ")", " him"]
    assert words("мир und Größe") == ["мир", " und", " Größe"]
    assert words("  two") == [" ", " two"]
    assert words("in 1611.") == ["in", " 1611", "."]


def test_a_sign_that_joins_letters_is_no_word_of_its_own():
    """The vowel signs of Devanagari are neither letters nor digits to Unicode."""
    pieces = ["▁", "न", "म", "स", "्", "त", "े", "।"]
    model = models.Unigram([("[UNK]", 0.0), *((piece, -1.0) for piece in pieces)], unk_id=0)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    ids = np.asarray(tokenizer("नमस्ते।")["input_ids"])
    assert tokenizer.convert_ids_to_tokens(ids) == pieces
    assert vocabulary_of(tokenizer).word_starts(ids).tolist() == [True, *[False] * 6, True]


def test_static_masks_stay_and_dynamic_ones_change():
    vocabulary = made_up_vocabulary()
    for masks, same in (("static", True), ("dynamic", False)):
        first, later = (
            MaskedLM(masks=masks).corrupt(made_up_rows(8, 64, epoch=epoch), vocabulary, 0) for epoch in (0, 5)
        )
        assert torch.equal(first["positions"], later["positions"]) is same
        assert torch.equal(first["input_ids"], later["input_ids"]) is same
    rows = made_up_rows(8, 64)
    by_seed = [MaskedLM(masks="static").corrupt(rows, vocabulary, seed)["positions"] for seed in (0, 1)]
    assert not torch.equal(*by_seed)


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_narrow_head_gives_the_loss_of_full_logits(kind):
    torch.manual_seed(0)
    vocabulary = made_up_vocabulary()
    model = Encoder(Encoder.Config(kind=kind, size="tiny")).build(vocabulary, 64, "AutoModelForMaskedLM").eval()
    objective = MaskedLM()
    rows = made_up_rows(4, 64)
    rows.ids[3, 1:] = 3  # nothing to predict here: unused slots must not count
    batch = objective.corrupt(rows, vocabulary, 0)
    assert objective.weight(batch) == 30
    with torch.no_grad():
        narrow, measured = objective.loss(model, batch).item(), objective.measure(model, batch)
        full = model(input_ids=batch["input_ids"]).logits
    assert full.shape == (4, 64, SIZE), "the model is whole again after the call"
    labels = torch.full((4, 64), -100)
    for row in range(3):
        labels[row, batch["positions"][row]] = batch["labels"][row]
    expected = F.cross_entropy(full.flatten(0, 1), labels.flatten(), reduction="sum").item()
    right = ((full.argmax(-1) == labels) & (labels != -100)).sum().item()
    assert narrow == pytest.approx(expected, rel=1e-5)
    assert measured == pytest.approx({"loss": expected, "accuracy": right}, rel=1e-5)


def seen_columns(direction: str, column: int, length: int) -> set[int]:
    """By the words of the setting: the columns that one sees."""
    left, right = set(range(column + 1)), set(range(column, length))
    return {
        "both": left | right, "left": left, "right": right, "prefix": left | set(range(length // 2))
    }[direction]  # fmt: skip


@pytest.mark.parametrize("attention", ["both", "left", "right", "prefix"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_a_prediction_changes_with_the_tokens_that_it_sees_and_no_others(kind, attention):
    torch.manual_seed(0)
    vocabulary, length = made_up_vocabulary(), 12
    model = Encoder(Encoder.Config(kind=kind, size="tiny")).build(vocabulary, 16, "AutoModelForMaskedLM").eval()
    rows = made_up_rows(1, length)
    batch = MaskedLM(attention=attention).corrupt(rows, vocabulary, 0)
    batch = {**batch, "positions": torch.arange(length)[None]}
    inputs = torch.cat([batch["input_ids"]] * (length + 1))
    inputs[torch.arange(length), torch.arange(length)] = 77  # row i has another token in column i, the last has none
    many = {name: torch.cat([tensor] * (length + 1)) for name, tensor in batch.items()} | {"input_ids": inputs}
    for implementation in ("eager", "sdpa") if kind != "deberta-v2" else ("eager",):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            logits = masked_logits(model, many)
        moved = (logits[:-1] - logits[-1:]).abs().amax(-1) > 1e-5
        for column in range(length):
            seen = seen_columns(attention, column, length) - {
                place for place in range(length) if batch["input_ids"][0, place] == 77
            }
            assert set(torch.nonzero(moved[:, column]).flatten().tolist()) == seen, (implementation, column)
    assert not [module for module in model.modules() if module._forward_pre_hooks or module._forward_hooks]


def test_far_tokens_stay_out_of_sight_in_local_layers():
    """Layers of ModernBERT that see a window keep it under a direction."""
    torch.manual_seed(0)
    vocabulary = made_up_vocabulary()
    config = Encoder.Config(size="tiny", max_length=1024)
    model = Encoder(config).build(vocabulary, 64, "AutoModelForMaskedLM", sliding_window=4).eval()
    model.config.layer_types = ["sliding_attention"] * 2
    for layer in model.base_model.layers:
        layer.attention_type = "sliding_attention"
    batch = MaskedLM(attention="left").corrupt(made_up_rows(1, 40), vocabulary, 0)
    batch = {**batch, "positions": torch.arange(40)[None]}
    other = batch["input_ids"].clone()
    other[0, 10] = 77
    with torch.no_grad():
        moved = (masked_logits(model, batch) - masked_logits(model, {**batch, "input_ids": other})).abs().amax(-1)
    # Two layers of four steps each.
    assert torch.nonzero(moved[0] > 1e-6).flatten().tolist() == list(range(10, 19))


def test_no_direction_costs_nothing_in_the_batch():
    rows, vocabulary = made_up_rows(4, 64), made_up_vocabulary()
    both, left = (MaskedLM(attention=attention).corrupt(rows, vocabulary, 0) for attention in ("both", "left"))
    assert left.keys() - both.keys() == {"attention"}
    assert left["attention"].tolist() == [1] * 4
    assert all(torch.equal(both[name], left[name]) for name in both), "the same tokens are hidden"


def test_autocast_takes_the_mask_as_it_takes_the_rest():
    torch.manual_seed(0)
    vocabulary = made_up_vocabulary()
    objective = MaskedLM(attention="prefix")
    batch = objective.corrupt(made_up_rows(2, 32), vocabulary, 0)
    for kind in ENCODERS:
        model = Encoder(Encoder.Config(kind=kind, size="tiny", dropout=0.0)).build(
            vocabulary, 32, "AutoModelForMaskedLM"
        )
        for implementation in ("eager", "sdpa") if kind != "deberta-v2" else ("eager",):
            model.set_attn_implementation(implementation)
            exact = objective.loss(model, batch)
            with torch.autocast("cpu", torch.bfloat16):
                rounded = objective.loss(model, batch)
            rounded.backward()
            assert rounded.item() == pytest.approx(exact.item(), rel=0.02)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_collator_gives_the_loss_of_a_direction(side, examples, tiny_tokenizer):
    """In a padded batch each row has the loss that it has alone."""
    torch.manual_seed(0)
    vocabulary = vocabulary_of(tiny_tokenizer)
    model = Encoder(Encoder.Config(kind="modernbert", size="tiny")).build(vocabulary, 64, "AutoModelForMaskedLM").eval()
    objective = MaskedLM(attention="right", rate=0.3)
    before = tiny_tokenizer.padding_side
    tiny_tokenizer.padding_side = side
    try:
        collator = objective.collator(tiny_tokenizer)
        together, apart = collator(examples[:6]), [collator([example]) for example in examples[:6]]
    finally:
        tiny_tokenizer.padding_side = before
    assert len({row["input_ids"].shape[1] for row in apart}) > 1
    with torch.no_grad():
        losses = [model(**row).loss.item() * (row["labels"] != -100).sum().item() for row in apart]
        whole = model(**together).loss.item() * (together["labels"] != -100).sum().item()
    assert whole == pytest.approx(sum(losses), rel=1e-5)


@pytest.fixture(scope="module")
def examples(verses, tiny_tokenizer):
    texts = [text for text in verses if text]
    return [{"input_ids": ids} for ids in tiny_tokenizer(texts[:2500], truncation=True, max_length=64)["input_ids"]]


def statistics(batches, originals, tokenizer):
    """Counts over the predicted positions: (ordinary tokens, predicted, shown as the mask, shown unchanged)."""
    counts = np.zeros(4, dtype=int)
    for batch, ids in zip(batches, originals, strict=True):
        chosen = batch["labels"] != -100
        assert (batch["labels"][chosen] == ids[chosen]).all()
        assert (batch["input_ids"][~chosen] == ids[~chosen]).all()
        special = np.isin(ids, tokenizer.all_special_ids)
        assert not chosen.numpy()[special].any()
        shown = batch["input_ids"]
        counts += [
            int((~special).sum()), int(chosen.sum()), int((shown[chosen] == tokenizer.mask_token_id).sum()),
            int((shown[chosen] == ids[chosen]).sum()),
        ]  # fmt: skip
    return counts


def test_statistics_agree_with_the_collator_of_transformers(examples, tiny_tokenizer):
    """On the same padded batches; ours rounds 0.15 of the length, special tokens counted, row by row."""
    groups = [examples[start : start + 50] for start in range(0, len(examples), 50)]
    originals = [tiny_tokenizer.pad(group, return_tensors="pt")["input_ids"] for group in groups]
    ours = MaskedLM().collator(tiny_tokenizer)
    theirs = DataCollatorForLanguageModeling(tiny_tokenizer, mlm_probability=0.15, seed=0)
    mine, other = (statistics(map(collate, groups), originals, tiny_tokenizer) for collate in (ours, theirs))
    assert mine[0] == other[0] > 70_000
    assert mine[1] == sum(max(1, round(0.15 * len(example["input_ids"]))) for example in examples)
    special_share = sum(2 for _ in examples) / other[0]
    assert abs(mine[1] - other[1]) / other[0] < 0.15 * special_share + 5 * math.sqrt(0.15 * 0.85 / other[0])
    for place, share in ((2, 0.8), (3, 0.1)):
        spread = math.sqrt(share * (1 - share) * (1 / mine[1] + 1 / other[1]))
        assert abs(mine[place] / mine[1] - other[place] / other[1]) < 5 * spread


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_collator_pads_on_either_side_and_never_predicts_padding(side, examples, tiny_tokenizer):
    before = tiny_tokenizer.padding_side
    tiny_tokenizer.padding_side = side
    try:
        batch = MaskedLM(rate=0.4).collator(tiny_tokenizer)(examples[:16])
    finally:
        tiny_tokenizer.padding_side = before
    lengths = [len(example["input_ids"]) for example in examples[:16]]
    assert len(set(lengths)) > 1
    assert batch["attention_mask"].sum(1).tolist() == lengths
    padding = batch["attention_mask"] == 0
    assert (batch["input_ids"][padding] == tiny_tokenizer.pad_token_id).all()
    assert (batch["labels"][padding] == -100).all()
    for row, length in enumerate(lengths):
        assert (batch["labels"][row] != -100).sum() == max(1, min(round(0.4 * length), length - 2))


def test_the_mask_of_an_example_does_not_depend_on_its_neighbours(examples, tiny_tokenizer):
    collator = MaskedLM().collator(tiny_tokenizer)
    together = collator(examples[:8])
    for row, example in enumerate(examples[:8]):
        alone = collator([example])
        for name, tensor in alone.items():
            assert torch.equal(together[name][row, : tensor.shape[1]], tensor[0])
    collator.epoch = 1
    assert not torch.equal(collator(examples[:8])["labels"], together["labels"])


def test_the_collator_takes_padded_examples_as_padded(examples, tiny_tokenizer):
    collator = MaskedLM().collator(tiny_tokenizer)
    padded = tiny_tokenizer.pad(examples[:3], padding="max_length", max_length=80)
    rows = [{key: padded[key][row] for key in ("input_ids", "attention_mask")} for row in range(3)]
    batch, bare = collator(rows), collator(examples[:3])
    width = bare["input_ids"].shape[1]
    assert batch["input_ids"].shape == (3, 80)
    assert all(torch.equal(batch[name][:, :width], bare[name]) for name in bare)
    assert not batch["attention_mask"][:, width:].any()


def test_the_collator_predicts_the_first_token_where_it_is_no_special_one(examples, tiny_tokenizer):
    """Scripts that cut a stream into blocks have no [CLS] at the start of each."""
    blocks = [{"input_ids": example["input_ids"][1:-1][:20]} for example in examples[:300]]
    batch = MaskedLM(whole_words=True, rate=0.5).collator(tiny_tokenizer)(blocks)
    assert (batch["labels"][:, 0] != -100).float().mean() > 0.3


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"rate": 1.5}, {"mask": 0.95, "random": 0.1}, {"masks": "sometimes"}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        MaskedLM(**wrong)
