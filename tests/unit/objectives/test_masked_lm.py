"""The masked LM objective: masks, replacements, attention directions and the head on predicted positions."""

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
BARE_SPACES = ("Ġ", "▁")  # may belong to the next word and share its offsets
ENCODERS = ("bert", "roberta", "modernbert", "deberta-v2", "albert", "electra")


def synthetic_vocabulary() -> Vocabulary:
    """Return a vocabulary with five special tokens; every third of the other tokens continues a word."""
    special = np.arange(SIZE) < 5
    starts = special | (np.arange(SIZE) % 3 != 0)
    return Vocabulary(SIZE, pad=0, cls=2, sep=3, mask=MASK, special=special, starts_word=starts)


def synthetic_rows(count: int, length: int, seed: int = 0, epoch: int = 0) -> Rows:
    ids = np.random.default_rng(seed).integers(5, SIZE, size=(count, length))
    ids[:, 0], ids[:, -1] = 2, 3
    return Rows(ids, [Sample(epoch, index) for index in range(count)])


def within(count: int, trials: int, fraction: float, sigmas: float = 5.0) -> bool:
    return abs(count - trials * fraction) <= sigmas * math.sqrt(trials * fraction * (1 - fraction))


@given(rate=st.floats(0.01, 0.9), length=st.integers(8, 128), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_each_row_has_the_same_number_of_predictions(rate, length, seed):
    rows = synthetic_rows(4, length, seed)
    objective = MaskedLM(rate=rate)
    batch = objective.corrupt(rows, synthetic_vocabulary(), seed)
    expected = max(1, round(rate * length))
    assert batch["positions"].shape == (4, expected)
    filled = batch["weights"].sum(1)
    assert (filled == min(expected, length - 2)).all(), "all ordinary tokens if the rate exceeds their number"
    for row in range(4):
        selected = batch["positions"][row, : int(filled[row])].numpy()
        assert len(set(selected.tolist())) == len(selected), "no position twice"
        assert (batch["labels"][row, : len(selected)].numpy() == rows.ids[row, selected]).all()
        others = np.setdiff1d(np.arange(length), selected)
        assert (batch["input_ids"][row].numpy()[others] == rows.ids[row, others]).all()


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize(("mask", "random"), [(0.8, 0.1), (0.5, 0.3), (1.0, 0.0)])
def test_fractions_of_masked_random_and_kept_over_100_000_predictions(whole_words, mask, random):
    rows = synthetic_rows(1600, 128)
    batch = MaskedLM(rate=0.5, mask=mask, random=random, whole_words=whole_words).corrupt(
        rows, synthetic_vocabulary(), 1
    )
    used = batch["weights"] > 0
    shown = batch["input_ids"].gather(1, batch["positions"])[used]
    labels = batch["labels"][used]
    total = len(labels)
    assert total > 100_000
    masked, same = int((shown == MASK).sum()), int((shown == labels).sum())
    assert within(masked, total, mask)
    # A random token equals the original one with probability 1 / (number of ordinary tokens).
    coincidence = random / (SIZE - 5)
    assert within(same, total, 1 - mask - random + coincidence)
    assert within(total - masked - same, total, random - coincidence)
    negative_ids = shown[(shown != MASK) & (shown != labels)]
    assert not len(negative_ids) or (negative_ids.min() >= 5 and len(negative_ids.unique()) == SIZE - 5)


def test_positions_are_uniform():
    batch = MaskedLM().corrupt(synthetic_rows(5300, 128), synthetic_vocabulary(), 0)
    counts = torch.bincount(batch["positions"].flatten(), minlength=128)
    assert counts[0] == counts[-1] == 0
    assert all(within(int(count), 5300, 19 / 126) for count in counts[1:-1])


def same_word(text, left, right):
    """Return whether two neighboring tokens, given by their offsets in the text, belong to one word."""
    return left[1] == right[0] and text[left[1] - 1].isalnum() and text[right[0]].isalnum()


@pytest.fixture(scope="module")
def plain_texts(verses):
    """Pairs of verses joined by a line break, without apostrophes, which tokenizers treat differently."""
    texts = [f"{first}\n{second}" for first, second in zip(verses[0:400:2], verses[1:400:2], strict=True)]
    return [text for text in texts if "'" not in text and "’" not in text]


@pytest.mark.parametrize("kind", KINDS)
def test_word_starts_agree_with_the_text(kind, tiny_tokenizers, plain_texts):
    tokenizer = tiny_tokenizers[kind]
    vocabulary = vocabulary_of(tokenizer)
    several = 0
    for text in plain_texts:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        opens = vocabulary.word_starts(np.asarray(encoded["input_ids"]))
        offsets = encoded["offset_mapping"]
        assert opens[0]
        for index in range(1, len(offsets)):
            left, right = offsets[index - 1], offsets[index]
            if encoded.tokens()[index - 1] in BARE_SPACES:
                continue
            assert opens[index] == (not same_word(text, left, right)), (text, text[left[0] : right[1]])
            several += not opens[index]
    assert several > 1000


@pytest.mark.parametrize("kind", KINDS)
def test_selected_words_are_masked_completely(kind, tiny_tokenizers, plain_texts):
    tokenizer = tiny_tokenizers[kind]
    vocabulary = vocabulary_of(tokenizer)
    objective = MaskedLM(whole_words=True, rate=0.3)
    several = alone = 0
    for number, text in enumerate(plain_texts[:100]):
        encoded = tokenizer(text, return_offsets_mapping=True)
        ids = np.asarray([encoded["input_ids"]])
        batch = objective.corrupt(Rows(ids, [Sample(0, number)]), vocabulary, 0)
        selected = np.zeros(ids.shape[1], dtype=bool)
        selected[batch["positions"][0][batch["weights"][0] > 0].numpy()] = True
        assert not selected[[0, -1]].any()
        assert selected.sum() <= round(0.3 * ids.shape[1])
        offsets = encoded["offset_mapping"]
        for index in range(2, ids.shape[1] - 1):
            if encoded.tokens()[index - 1] in BARE_SPACES:
                continue
            if same_word(text, offsets[index - 1], offsets[index]):
                assert selected[index] == selected[index - 1]
                several += selected[index]
            else:
                alone += selected[index] != selected[index - 1]
    assert several > 100, "words of several tokens were chosen"
    assert alone > 100, "and their neighbors were not"


@pytest.mark.parametrize("kind", KINDS)
def test_whole_words_reach_the_rate(kind, tiny_tokenizers, verses):
    tokenizer = tiny_tokenizers[kind]
    stream = [token for text in verses[:400] for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    ids = np.asarray(stream[: 100 * 128]).reshape(100, 128)
    samples = [Sample(0, index) for index in range(100)]
    batch = MaskedLM(whole_words=True).corrupt(Rows(ids, samples), vocabulary_of(tokenizer), 0)
    assert batch["positions"].shape == (100, 19)
    assert (batch["weights"].sum(1) == 19).float().mean() > 0.95


def test_words_end_at_special_tokens():
    """Tokens 6 and 9 continue words, but not after [SEP] or at the start of a row."""
    row = np.asarray([2, 6, 7, 9, 3, 9, 6, 8, 3])
    vocabulary = synthetic_vocabulary()
    assert vocabulary.word_starts(row).tolist() == [True, True, True, False, True, True, False, True, True]
    assert vocabulary.word_starts(np.stack([row, row])).tolist() == [vocabulary.word_starts(row).tolist()] * 2
    for index in range(50):
        batch = MaskedLM(whole_words=True, rate=0.23).corrupt(Rows(row[None], [Sample(0, index)]), vocabulary, 0)
        assert batch["positions"].shape == (1, 2)
        used = batch["positions"][0][batch["weights"][0] > 0].tolist()
        assert used in ([2, 3], [5, 6], [1, 7]), used


def test_words_of_byte_level_tokens(tiny_tokenizers):
    """A word after a line break has no space marker, and part of a character is not a separate word."""
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


def test_combining_characters_do_not_start_words():
    """The vowel signs of Devanagari are neither letters nor digits in Unicode."""
    pieces = ["▁", "न", "म", "स", "्", "त", "े", "।"]
    model = models.Unigram([("[UNK]", 0.0), *((piece, -1.0) for piece in pieces)], unk_id=0)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    ids = np.asarray(tokenizer("नमस्ते।")["input_ids"])
    assert tokenizer.convert_ids_to_tokens(ids) == pieces
    assert vocabulary_of(tokenizer).word_starts(ids).tolist() == [True, *[False] * 6, True]


def test_static_masks_are_constant_and_dynamic_masks_change():
    vocabulary = synthetic_vocabulary()
    for masks, same in (("static", True), ("dynamic", False)):
        first, later = (
            MaskedLM(masks=masks).corrupt(synthetic_rows(8, 64, epoch=epoch), vocabulary, 0) for epoch in (0, 5)
        )
        assert torch.equal(first["positions"], later["positions"]) is same
        assert torch.equal(first["input_ids"], later["input_ids"]) is same
    rows = synthetic_rows(8, 64)
    by_seed = [MaskedLM(masks="static").corrupt(rows, vocabulary, seed)["positions"] for seed in (0, 1)]
    assert not torch.equal(*by_seed)


@pytest.mark.parametrize("kind", ENCODERS)
def test_head_on_predicted_positions_gives_the_loss_of_full_logits(kind):
    torch.manual_seed(0)
    vocabulary = synthetic_vocabulary()
    model = Encoder(Encoder.Config(kind=kind, size="tiny")).build(vocabulary, 64, "AutoModelForMaskedLM").eval()
    objective = MaskedLM()
    rows = synthetic_rows(4, 64)
    rows.ids[3, 1:] = 3  # nothing to predict: unused slots must not count
    batch = objective.corrupt(rows, vocabulary, 0)
    assert objective.weight(batch) == 30
    with torch.no_grad():
        narrow, measured = objective.loss(model, batch).item(), objective.measure(model, batch)
        full = model(input_ids=batch["input_ids"]).logits
    assert full.shape == (4, 64, SIZE), "the model is restored after the call"
    labels = torch.full((4, 64), -100)
    for row in range(3):
        labels[row, batch["positions"][row]] = batch["labels"][row]
    expected = F.cross_entropy(full.flatten(0, 1), labels.flatten(), reduction="sum").item()
    right = ((full.argmax(-1) == labels) & (labels != -100)).sum().item()
    assert narrow == pytest.approx(expected, rel=1e-5)
    assert measured == pytest.approx({"loss": expected, "accuracy": right}, rel=1e-5)


def seen_columns(direction: str, column: int, length: int) -> set[int]:
    """Return the columns that a column attends to, by the definition of the setting."""
    left, right = set(range(column + 1)), set(range(column, length))
    return {
        "both": left | right, "left": left, "right": right, "prefix": left | set(range(length // 2))
    }[direction]  # fmt: skip


@pytest.mark.parametrize("attention", ["both", "left", "right", "prefix"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_predictions_depend_only_on_visible_tokens(kind, attention):
    torch.manual_seed(0)
    vocabulary, length = synthetic_vocabulary(), 12
    model = Encoder(Encoder.Config(kind=kind, size="tiny")).build(vocabulary, 16, "AutoModelForMaskedLM").eval()
    rows = synthetic_rows(1, length)
    batch = MaskedLM(attention=attention).corrupt(rows, vocabulary, 0)
    batch = {**batch, "positions": torch.arange(length)[None]}
    inputs = torch.cat([batch["input_ids"]] * (length + 1))
    inputs[torch.arange(length), torch.arange(length)] = (
        77  # row i has another token in column i, the last row is unchanged
    )
    many = {name: torch.cat([tensor] * (length + 1)) for name, tensor in batch.items()} | {"input_ids": inputs}
    for implementation in ("eager", "sdpa") if kind != "deberta-v2" else ("eager",):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            logits = masked_logits(model, many)
        moved = (logits[:-1] - logits[-1:]).abs().amax(-1) > 1e-5
        for column in range(length):
            seen = seen_columns(attention, column, length) - {
                index for index in range(length) if batch["input_ids"][0, index] == 77
            }
            assert set(torch.nonzero(moved[:, column]).flatten().tolist()) == seen, (implementation, column)
    assert not [module for module in model.modules() if module._forward_pre_hooks or module._forward_hooks]


def test_sliding_window_applies_within_a_direction():
    """ModernBERT's sliding-window layers keep their window if the attention has a direction."""
    torch.manual_seed(0)
    vocabulary = synthetic_vocabulary()
    config = Encoder.Config(size="tiny", max_length=1024)
    model = Encoder(config).build(vocabulary, 64, "AutoModelForMaskedLM", sliding_window=4).eval()
    model.config.layer_types = ["sliding_attention"] * 2
    for layer in model.base_model.layers:
        layer.attention_type = "sliding_attention"
    batch = MaskedLM(attention="left").corrupt(synthetic_rows(1, 40), vocabulary, 0)
    batch = {**batch, "positions": torch.arange(40)[None]}
    other = batch["input_ids"].clone()
    other[0, 10] = 77
    with torch.no_grad():
        moved = (masked_logits(model, batch) - masked_logits(model, {**batch, "input_ids": other})).abs().amax(-1)
    # Two layers with a window of four positions each.
    assert torch.nonzero(moved[0] > 1e-6).flatten().tolist() == list(range(10, 19))


def test_bidirectional_batches_have_no_attention_column():
    rows, vocabulary = synthetic_rows(4, 64), synthetic_vocabulary()
    both, left = (MaskedLM(attention=attention).corrupt(rows, vocabulary, 0) for attention in ("both", "left"))
    assert left.keys() - both.keys() == {"attention"}
    assert left["attention"].tolist() == [1] * 4
    assert all(torch.equal(both[name], left[name]) for name in both), "the same tokens are masked"


def test_attention_mask_works_under_autocast():
    torch.manual_seed(0)
    vocabulary = synthetic_vocabulary()
    objective = MaskedLM(attention="prefix")
    batch = objective.corrupt(synthetic_rows(2, 32), vocabulary, 0)
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
def test_collator_with_a_direction_gives_the_same_loss(side, examples, tiny_tokenizer):
    """In a padded batch each row has the same loss as without padding."""
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
    """Return counts: (ordinary tokens, predicted, replaced by the mask, kept)."""
    counts = np.zeros(4, dtype=int)
    for batch, ids in zip(batches, originals, strict=True):
        selected = batch["labels"] != -100
        assert (batch["labels"][selected] == ids[selected]).all()
        assert (batch["input_ids"][~selected] == ids[~selected]).all()
        special = np.isin(ids, tokenizer.all_special_ids)
        assert not selected.numpy()[special].any()
        shown = batch["input_ids"]
        counts += [
            int((~special).sum()), int(selected.sum()), int((shown[selected] == tokenizer.mask_token_id).sum()),
            int((shown[selected] == ids[selected]).sum()),
        ]  # fmt: skip
    return counts


def test_statistics_agree_with_the_collator_of_transformers(examples, tiny_tokenizer):
    """On the same padded batches; Headstart rounds 0.15 of each row's length, which includes special tokens."""
    groups = [examples[start : start + 50] for start in range(0, len(examples), 50)]
    originals = [tiny_tokenizer.pad(group, return_tensors="pt")["input_ids"] for group in groups]
    ours = MaskedLM().collator(tiny_tokenizer)
    theirs = DataCollatorForLanguageModeling(tiny_tokenizer, mlm_probability=0.15, seed=0)
    selected, other = (statistics(map(collate, groups), originals, tiny_tokenizer) for collate in (ours, theirs))
    assert selected[0] == other[0] > 70_000
    assert selected[1] == sum(max(1, round(0.15 * len(example["input_ids"]))) for example in examples)
    special_share = sum(2 for _ in examples) / other[0]
    assert abs(selected[1] - other[1]) / other[0] < 0.15 * special_share + 5 * math.sqrt(0.15 * 0.85 / other[0])
    for index, fraction in ((2, 0.8), (3, 0.1)):
        spread = math.sqrt(fraction * (1 - fraction) * (1 / selected[1] + 1 / other[1]))
        assert abs(selected[index] / selected[1] - other[index] / other[1]) < 5 * spread


@pytest.mark.parametrize("side", ["right", "left"])
def test_collator_pads_on_either_side_and_never_predicts_padding(side, examples, tiny_tokenizer):
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


def test_mask_of_an_example_does_not_depend_on_the_batch(examples, tiny_tokenizer):
    collator = MaskedLM().collator(tiny_tokenizer)
    together = collator(examples[:8])
    for row, example in enumerate(examples[:8]):
        alone = collator([example])
        for name, tensor in alone.items():
            assert torch.equal(together[name][row, : tensor.shape[1]], tensor[0])
    collator.epoch = 1
    assert not torch.equal(collator(examples[:8])["labels"], together["labels"])


def test_collator_keeps_the_width_of_padded_examples(examples, tiny_tokenizer):
    collator = MaskedLM().collator(tiny_tokenizer)
    padded = tiny_tokenizer.pad(examples[:3], padding="max_length", max_length=80)
    rows = [{key: padded[key][row] for key in ("input_ids", "attention_mask")} for row in range(3)]
    batch, bare = collator(rows), collator(examples[:3])
    width = bare["input_ids"].shape[1]
    assert batch["input_ids"].shape == (3, 80)
    assert all(torch.equal(batch[name][:, :width], bare[name]) for name in bare)
    assert not batch["attention_mask"][:, width:].any()


def test_collator_predicts_the_first_token_if_it_is_not_special(examples, tiny_tokenizer):
    """Scripts that split a stream into blocks have no [CLS] at the start of a block."""
    blocks = [{"input_ids": example["input_ids"][1:-1][:20]} for example in examples[:300]]
    batch = MaskedLM(whole_words=True, rate=0.5).collator(tiny_tokenizer)(blocks)
    assert (batch["labels"][:, 0] != -100).float().mean() > 0.3


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"rate": 1.5}, {"mask": 0.95, "random": 0.1}, {"masks": "sometimes"}])
def test_invalid_settings_raise(wrong):
    with pytest.raises(ValidationError):
        MaskedLM(**wrong)
