"""Frozen features: remembered states are the computed ones, and the body never moves."""

from __future__ import annotations

import pytest
import torch

from headstart.adaptation.features import Features, FrozenBody
from headstart.adaptation.full import Full
from headstart.adaptation.scratch import Scratch
from headstart.core.contracts import Examples
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder

KINDS = ["bert", "modernbert"]


class Given:
    """A task with rows of real text, and a source of networks."""

    def __init__(self, folder, verses, pair: bool = False) -> None:
        self.task = Classify(Classify.Config(text=["a", "b"] if pair else ["a"]))
        texts = [verse for verse in verses if verse][:24]
        columns = {"a": texts, "b": texts[::-1]} if pair else {"a": texts}
        rows = Examples(columns, ["yes", "no"] * 12, "verses")
        self.task.fit_labels(rows)
        self.source = CheckpointFolder(folder, self.task, 0)
        tokenizer = self.source.tokenizer()
        self.pad = tokenizer.pad_token_id
        self.encoded = self.task.encode(rows, tokenizer, 48)

    def batch(self, *places: int):
        return self.task.collate([self.encoded[place] for place in places], self.pad)

    def features(self, **settings):
        adaptation = Features(Features.Config(**settings))
        return adaptation, adaptation.adapt(self.source)


@pytest.fixture(params=KINDS)
def given(request, checkpoint, verses) -> Given:
    return Given(checkpoint(request.param), verses)


@pytest.fixture
def modern(checkpoint, verses) -> Given:
    return Given(checkpoint("modernbert"), verses)


def body_of(model) -> dict[str, torch.Tensor]:
    wrapped = model.base_model
    inner = wrapped.body if isinstance(wrapped, FrozenBody) else wrapped
    return {name: value.detach().clone() for name, value in inner.state_dict().items()}


def train(given: Given, model, steps: int = 6) -> None:
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.5)
    for step in range(steps):
        model.train()
        loss = given.task.loss(model, given.batch(step % 3, 5, 7))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()


def test_remembered_states_equal_computed_ones(modern):
    """Another batch, other padding, other neighbours: the states of a text stay its own."""
    _, cached = modern.features()
    plain = modern.source.pretrained().eval()
    frozen = cached.base_model
    for places in ([0, 1, 2], [2, 0], [1, 3, 0, 2], [3], [3, 3]):
        batch = modern.batch(*places)
        with torch.no_grad():
            mine = frozen(batch["input_ids"], batch["attention_mask"]).last_hidden_state
            theirs = plain.base_model(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        real = batch["attention_mask"].bool()
        torch.testing.assert_close(mine[real], theirs[real], atol=2e-5, rtol=1e-4)
    assert len(frozen.known) == 4


def test_a_text_is_computed_once(modern):
    _, model = modern.features()
    frozen = model.base_model
    rows = []
    frozen.body.register_forward_hook(
        lambda _, args, kwargs, out: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    for places in ([0, 1], [1, 2], [0, 1, 2], [2, 2]):
        modern.task.logits(model, modern.batch(*places))
    assert rows == [2, 1]


def test_with_no_room_it_computes_each_time_with_the_same_result(modern):
    _, cached = modern.features()
    _, uncached = modern.features(cache_mb=0)
    batch = modern.batch(0, 1, 2)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(
                modern.task.logits(cached.eval(), batch),
                modern.task.logits(uncached.eval(), batch),
                atol=2e-5,
                rtol=1e-4,
            )
    assert not uncached.base_model.known


def test_when_the_room_is_full_the_rest_is_computed(modern):
    _, model = modern.features(cache_mb=0.02)
    frozen = model.base_model
    plain = modern.source.pretrained().eval()
    for _ in range(2):
        batch = modern.batch(*range(8))
        with torch.no_grad():
            mine = modern.task.logits(model.eval(), batch)
            torch.testing.assert_close(mine, modern.task.logits(plain, batch), atol=2e-5, rtol=1e-4)
    held = sum(states.numel() * states.element_size() for states in frozen.known.values())
    assert 0 < len(frozen.known) < 8 and held <= 20_000


def test_the_body_stays_bit_identical_and_the_head_moves(given):
    adaptation, model = given.features()
    before, head = body_of(model), model.classifier.weight.detach().clone()
    train(given, model)
    after = body_of(model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert all("pooler" in name for name in moved), "a pooler that the checkpoint did not hold is part of the head"
    assert not torch.equal(model.classifier.weight, head)
    finished = adaptation.finish(model)
    original = given.source.pretrained().base_model.state_dict()
    assert all(torch.equal(v, original[n]) for n, v in finished.base_model.state_dict().items() if "pooler" not in n)


def test_what_is_trained_is_what_the_checkpoint_did_not_hold(given):
    adaptation, model = given.features()
    names = {name for group in adaptation.groups(model) for name in group.names}
    assert names == {name for name, p in model.named_parameters() if p.requires_grad}
    assert any("classifier" in name for name in names)
    assert not any("layers." in name or "encoder." in name or "embeddings" in name for name in names)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained < sum(p.numel() for p in model.parameters()) / 4


def test_there_is_no_dropout_in_a_frozen_body(given):
    _, model = given.features()
    model.train()
    assert not any(module.training for module in model.base_model.body.modules())
    if model.config.model_type == "modernbert":
        model.head.eval()
        model.drop.eval()
    else:
        model.dropout.eval()
    batch = given.batch(0, 1)
    with torch.no_grad():
        assert torch.equal(given.task.logits(model, batch), given.task.logits(model, batch))


def test_the_finished_model_is_plain_and_says_the_same(given, tmp_path):
    from transformers import AutoModelForSequenceClassification

    adaptation, model = given.features()
    train(given, model)
    batch = given.batch(0, 1, 2)
    with torch.no_grad():
        before = given.task.logits(model.eval(), batch)
    finished = adaptation.finish(model)
    finished.save_pretrained(str(tmp_path))
    loaded, info = AutoModelForSequenceClassification.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(given.task.logits(loaded.eval(), batch), before, atol=2e-5, rtol=1e-4)


def test_remembering_gives_the_gradients_of_computing(modern):
    def gradients(**settings):
        _, model = modern.features(**settings)
        model.eval()
        for _ in range(2):
            model.zero_grad()
            modern.task.loss(model, modern.batch(0, 1, 2)).backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    remembered, computed = gradients(), gradients(cache_mb=0)
    assert remembered.keys() == computed.keys() and remembered
    for name in remembered:
        torch.testing.assert_close(remembered[name], computed[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_work_too(kind, checkpoint, verses):
    given = Given(checkpoint(kind), verses, pair=True)
    _, model = given.features()
    plain = given.source.pretrained().eval()
    batch = given.batch(0, 3, 5)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(
                given.task.logits(model.eval(), batch), given.task.logits(plain, batch), atol=2e-5, rtol=1e-4
            )


@pytest.mark.parametrize(("adaptation", "of_checkpoint"), [(Full, True), (Scratch, False)])
def test_the_other_adaptations_move_everything(given, adaptation, of_checkpoint):
    method = adaptation()
    model = method.adapt(given.source)
    names = [name for group in method.groups(model) for name in group.names]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert all(p.requires_grad for p in model.parameters())
    original = given.source.pretrained().base_model.state_dict()
    same = [
        torch.equal(v, original[n])
        for n, v in model.base_model.state_dict().items()
        if n.endswith("weight") and v.ndim > 1 and "pooler" not in n
    ]
    assert all(same) if of_checkpoint else not any(same)
    assert method.finish(model) is model
