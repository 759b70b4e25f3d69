"""The permuted LM objective: targets, spans, attention masks and the information that a target has."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import DataCollatorForPermutationLanguageModeling

from headstart.backbones.xlnet import XLNet
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.permuted_lm import PermutedLM

SIZE = 500
SPECIAL = np.arange(SIZE) < 5
VOCABULARY = Vocabulary(SIZE, pad=0, cls=2, sep=3, mask=4, special=SPECIAL, starts_word=~SPECIAL)


def synthetic_rows(count: int, length: int, seed: int = 0) -> Rows:
    ids = np.random.default_rng(seed).integers(5, SIZE, size=(count, length))
    ids[:, 0], ids[:, -1] = 2, 3
    return Rows(ids, [Sample(0, index) for index in range(count)])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return XLNet(XLNet.Config(size="tiny")).build(VOCABULARY, 64, "AutoModelForCausalLM").eval()


def logits_of(model, inputs):
    with torch.no_grad():
        return model(**{name: tensor for name, tensor in inputs.items() if name != "labels"}).logits


@given(
    rate=st.floats(0.01, 0.9),
    longest=st.integers(1, 12),
    length=st.integers(8, 96),
    separator=st.integers(1, 96),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_each_row_has_the_same_number_of_ordered_targets(rate, longest, length, separator, seed):
    rows = synthetic_rows(3, length, seed)
    rows.ids[:, min(separator, length - 1)] = 3
    ordinary = (~SPECIAL[rows.ids]).sum(1)
    batch = PermutedLM(rate=rate, max_span=longest).corrupt(rows, VOCABULARY, seed)
    expected = max(1, round(rate * length))
    assert batch["positions"].shape == (3, expected)
    for row in range(3):
        filled = int(batch["weights"][row].sum())
        assert filled == min(expected, ordinary[row]), "all ordinary tokens if the rate exceeds their number"
        selected = batch["positions"][row, :filled].numpy()
        assert (np.diff(selected) > 0).all(), "no position twice"
        assert not SPECIAL[rows.ids[row, selected]].any()
        assert (batch["labels"][row, :filled].numpy() == rows.ids[row, selected]).all()
        order = batch["order"][row].numpy()
        assert sorted(order[selected]) == list(range(filled))
        assert (np.delete(order, selected) == -1).all()
    assert (batch["input_ids"].numpy() == rows.ids).all(), "tokens are unchanged"


@given(length=st.integers(8, 48), seed=st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_targets_attend_to_the_context_and_preceding_targets(length, seed):
    objective = PermutedLM(rate=0.4)
    batch = objective.corrupt(synthetic_rows(2, length, seed), VOCABULARY, seed)
    inputs = objective.as_inputs(batch)
    assert inputs.keys() == {"input_ids", "token_type_ids", "perm_mask", "target_mapping", "labels"}
    assert inputs["perm_mask"].shape == (2, length, length)
    assert inputs["perm_mask"].dtype == inputs["target_mapping"].dtype == torch.float32
    for row in range(2):
        rank = batch["order"][row].tolist()
        for i in range(length):
            for j in range(length):
                sees = rank[j] == -1 or rank[j] < rank[i]
                assert inputs["perm_mask"][row, i, j] == (0.0 if sees else 1.0)
        mapping = inputs["target_mapping"][row]
        assert (mapping.sum(1) == 1).all()
        assert torch.equal(mapping.argmax(1), batch["positions"][row])
        assert torch.equal(inputs["input_ids"][row][mapping.argmax(1)], inputs["labels"][row])


def test_targets_do_not_depend_on_themselves_or_later_ones(model):
    """Changing the token of a target changes the logits of later targets only."""
    objective = PermutedLM(rate=0.25)
    batch = objective.corrupt(synthetic_rows(1, 32), VOCABULARY, 0)
    inputs = objective.as_inputs(batch)
    before = logits_of(model, inputs)
    positions = batch["positions"][0]
    ranks = batch["order"][0, positions]
    assert len(ranks) == 8
    for position, rank in zip(positions.tolist(), ranks.tolist(), strict=True):
        changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
        changed["input_ids"][0, position] = 5 + (changed["input_ids"][0, position] + 100) % (SIZE - 5)
        differs = (logits_of(model, changed) != before).any(-1)[0]
        assert torch.equal(differs, ranks > rank)
    context = {**inputs, "input_ids": inputs["input_ids"].clone()}
    context["input_ids"][0, int((batch["order"][0] == -1).nonzero()[5])] = 7
    assert (logits_of(model, context) != before).any(-1).all(), "all targets see the context"


def test_targets_depend_on_their_position(model):
    """The query stream has the position and not the token, so targets with the same view differ by position only."""
    objective = PermutedLM(rate=0.25)
    rows = synthetic_rows(1, 32)
    rows.ids[0, 1:-1] = 9
    inputs = objective.as_inputs(objective.corrupt(rows, VOCABULARY, 0))
    logits = logits_of(model, inputs)[0]
    assert not torch.allclose(logits[0], logits[1], atol=1e-6)


def runs(chosen):
    """Return the lengths of runs of True values in rows."""
    padded = np.pad(chosen, ((0, 0), (1, 1))).astype(int)
    changes = np.diff(padded, axis=1)
    return np.nonzero(changes == -1)[1] - np.nonzero(changes == 1)[1]


def test_span_lengths_are_uniform():
    batch = PermutedLM(rate=0.02).corrupt(synthetic_rows(300, 2000), VOCABULARY, 0)
    lengths = runs(batch["order"].numpy() >= 0)
    assert len(lengths) > 3500
    # At this rate about one span in 150 touches the next.
    assert (lengths > 5).mean() < 0.02
    for length in range(1, 6):
        assert abs((lengths == length).mean() - 0.2) < 5 * math.sqrt(0.2 * 0.8 / len(lengths))


def test_every_position_can_be_a_target_and_the_first_target():
    """Long spans are rarely at the edge of their context, so positions at the ends of a row are half as likely."""
    batch = PermutedLM().corrupt(synthetic_rows(4000, 62), VOCABULARY, 0)
    selected = (batch["order"] >= 0).float().mean(0)
    assert selected[0] == selected[-1] == 0
    assert ((selected[1:-1] > 0.06) & (selected[1:-1] < 0.21)).all()
    assert selected.sum() == pytest.approx(10)
    first = torch.nonzero(batch["order"] == 0)[:, 1].float()
    assert abs(first.mean().item() - 30.5) < 5 * 17.3 / math.sqrt(4000), "the order is not left to right"


def test_statistics_agree_with_the_collator_of_transformers(verses, tiny_tokenizer):
    """Fraction of targets, lengths of runs and number of visible tokens, on the same rows."""
    text = [token for verse in verses for token in tiny_tokenizer(verse, add_special_tokens=False)["input_ids"]]
    length, count = 254, 400  # 252 ordinary tokens, so that a sixth of them and of the row are the same number
    rows = np.asarray(text[: count * (length - 2)]).reshape(count, length - 2)
    rows = np.pad(rows, ((0, 0), (1, 1)))
    rows[:, 0], rows[:, -1] = tiny_tokenizer.cls_token_id, tiny_tokenizer.sep_token_id
    assert rows.size > 100_000
    torch.manual_seed(0)
    theirs = DataCollatorForPermutationLanguageModeling(tiny_tokenizer)
    objective, vocabulary = PermutedLM(), vocabulary_of(tiny_tokenizer)
    fraction, seen, lengths = {"ours": [], "theirs": []}, {"ours": [], "theirs": []}, {"ours": [], "theirs": []}
    for start in range(0, count, 40):
        part = rows[start : start + 40]
        samples = [Sample(0, start + row) for row in range(len(part))]
        batch = objective.corrupt(Rows(part, samples), vocabulary, 0)
        other = theirs(part.tolist())
        masks = {"ours": objective.as_inputs(batch)["perm_mask"], "theirs": other["perm_mask"]}
        selected = {"ours": batch["order"] >= 0, "theirs": other["labels"] != -100}
        for who, mask in masks.items():
            fraction[who].extend(selected[who].float().mean(1).tolist())
            visible = (1 - mask).sum(2)
            seen[who].extend((visible * selected[who]).sum(1).div(selected[who].sum(1)).tolist())
            lengths[who].append(runs(selected[who].numpy()))
    for values in (fraction, seen):
        ours, others = np.asarray(values["ours"]), np.asarray(values["theirs"])
        spread = math.sqrt((ours.var() + others.var()) / count)
        assert abs(ours.mean() - others.mean()) < 4 * spread, (ours.mean(), others.mean(), spread)
    assert np.mean(fraction["ours"]) == pytest.approx(42 / 254)
    ours, others = np.concatenate(lengths["ours"]), np.concatenate(lengths["theirs"])
    assert min(len(ours), len(others)) > 4000
    for length in (1, 2, 3, 4, 5, 6):
        actual, expected = ((runs == length).mean() if length < 6 else (runs > 5).mean() for runs in (ours, others))
        spread = math.sqrt(expected * (1 - expected) * (1 / len(ours) + 1 / len(others)))
        assert abs(actual - expected) < 4 * spread, (length, actual, expected, spread)


def test_segments_are_the_documents_of_a_row():
    row = np.asarray([[2, 10, 11, 3, 12, 13, 3, 14, 3]])
    batch = PermutedLM().corrupt(Rows(row, [Sample(0, 0)]), VOCABULARY, 0)
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 2, 2]]


def test_unused_slots_do_not_count(model):
    objective = PermutedLM()
    rows = synthetic_rows(2, 60)
    rows.ids[1, 3:] = 3
    batch = objective.corrupt(rows, VOCABULARY, 0)
    assert batch["weights"].sum(1).tolist() == [10, 2]
    inputs = objective.as_inputs(batch)
    assert (inputs["labels"][1] == -100).sum() == 8
    with torch.no_grad():
        actual = objective.loss(model, batch).item()
        expected = model(**inputs).loss.item() * 12
        alone = objective.loss(model, objective.corrupt(rows.take(np.asarray([0])), VOCABULARY, 0)).item()
    assert actual == pytest.approx(expected, rel=1e-5)
    assert alone < actual


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_does_not_change_the_output(side, verses, tiny_tokenizer):
    torch.manual_seed(0)
    network = XLNet(XLNet.Config(size="tiny")).build(vocabulary_of(tiny_tokenizer), 64, "AutoModelForCausalLM").eval()
    texts = sorted(verses[:40], key=len)
    examples = [{"input_ids": tiny_tokenizer(text, truncation=True, max_length=64)["input_ids"]} for text in texts]
    selected = [examples[2], examples[-1], {**examples[5], "attention_mask": [1] * len(examples[5]["input_ids"])}]
    before = tiny_tokenizer.padding_side
    tiny_tokenizer.padding_side = side
    try:
        collator = PermutedLM().collator(tiny_tokenizer)
        together, alone = collator(selected), [collator([example]) for example in selected]
    finally:
        tiny_tokenizer.padding_side = before
    width = max(len(example["input_ids"]) for example in selected)
    assert together["perm_mask"].shape == (3, width, width)
    with torch.no_grad():
        losses = [network(**one).loss.item() * int((one["labels"] != -100).sum()) for one in (together, *alone)]
    assert losses[0] == pytest.approx(sum(losses[1:]), rel=1e-5)


def test_runs_in_bf16(model):
    objective = PermutedLM()
    batch = objective.corrupt(synthetic_rows(4, 48), VOCABULARY, 0)
    exact = objective.loss(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rough = objective.loss(model, batch)
    rough.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    model.zero_grad()
    assert rough.item() == pytest.approx(exact.item(), rel=0.01)


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"rate": 1.0}, {"max_span": 0}])
def test_invalid_settings_raise(wrong):
    with pytest.raises(ValidationError):
        PermutedLM(**wrong)
