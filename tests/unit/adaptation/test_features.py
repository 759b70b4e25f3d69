"""Frozen features: remembered states are the computed ones, and the body never moves."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForSequenceClassification

from headstart.adaptation.features import Features
from headstart.adaptation.frozen import FrozenBody
from headstart.adaptation.full import Full
from headstart.adaptation.on_top import dressed
from headstart.adaptation.scratch import Scratch
from headstart.core.errors import RecipeError

KINDS = ["bert", "modernbert"]


@pytest.fixture(params=KINDS)
def given(request, given_of):
    return given_of(request.param)


@pytest.fixture
def modern(given_of):
    return given_of("modernbert")


def features(given, **settings):
    adaptation = Features(Features.Config(**settings))
    return adaptation, adaptation.adapt(given.source)


def body_of(model) -> dict[str, torch.Tensor]:
    wrapped = model.base_model
    inner = wrapped.body if isinstance(wrapped, FrozenBody) else wrapped
    return {name: value.detach().clone() for name, value in inner.state_dict().items()}


def train(given, model, steps: int = 6) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.5)
    for step in range(steps):
        model.train()
        loss = given.task.loss(model, given.batch(step % 3, 5, 7))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_remembered_states_equal_computed_ones(modern):
    """Another batch, other padding, other neighbours: the states of a text stay its own."""
    _, cached = features(modern)
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
    _, model = features(modern)
    frozen = model.base_model
    rows = []
    frozen.body.register_forward_hook(
        lambda _, args, kwargs, out: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    for places in ([0, 1], [1, 2], [0, 1, 2], [2, 2]):
        modern.task.logits(model, modern.batch(*places))
    assert rows == [2, 1]


def test_with_no_room_it_computes_each_time_with_the_same_result(modern):
    _, cached = features(modern)
    _, uncached = features(modern, cache_mb=0)
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
    _, model = features(modern, cache_mb=0.02)
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
    adaptation, model = features(given)
    before, head = body_of(model), model.classifier.weight.detach().clone()
    train(given, model)
    after = body_of(model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert all("pooler" in name for name in moved), "a pooler is part of the head"
    assert not torch.equal(model.classifier.weight, head)
    finished = adaptation.finish(model)
    original = given.source.pretrained().base_model.state_dict()
    assert all(torch.equal(v, original[n]) for n, v in finished.base_model.state_dict().items() if "pooler" not in n)


def test_what_is_trained_is_the_head_and_the_pooler(given):
    adaptation, model = features(given)
    names = {name for group in adaptation.groups(model) for name in group.names}
    assert names == {name for name, p in model.named_parameters() if p.requires_grad}
    assert any("classifier" in name for name in names)
    assert any("pooler" in name for name in names) == hasattr(given.source.pretrained().base_model, "pooler")
    assert not any("layers." in name or "encoder." in name or "embeddings" in name for name in names)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained < sum(p.numel() for p in model.parameters()) / 4


def test_there_is_no_dropout_in_a_frozen_body(given):
    _, model = features(given)
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
    adaptation, model = features(given)
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
        _, model = features(modern, **settings)
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
def test_pairs_work_too(kind, given_of):
    given = given_of(kind, pair=True)
    _, model = features(given)
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


READINGS = [
    {"layers": "mean"}, {"layers": "mean", "last": 2, "normalise": True}, {"layers": "concat"},
    {"layers": "concat", "last": 3, "normalise": False}, {"layers": "mix"}, {"layers": "mix", "last": 2},
]  # fmt: skip


@pytest.mark.parametrize("settings", READINGS, ids=str)
def test_at_first_every_reading_of_layers_is_their_mean(given, settings):
    """A mixture and a projection begin there; whatever is read, remembered states say what computed ones do."""
    _, model = features(given, **settings)
    plain = given.source.pretrained().eval()
    batch = given.batch(0, 1, 2)
    with torch.no_grad():
        output = plain.base_model(batch["input_ids"], batch["attention_mask"], output_hidden_states=True)
        layers = output.hidden_states[-(settings.get("last") or (2 if settings["layers"] == "concat" else 3)) :]
        if settings.get("normalise", settings["layers"] == "concat"):
            layers = [torch.nn.functional.layer_norm(states, states.shape[-1:]) for states in layers]
        expected = dressed(plain.base_model, type(output), torch.stack(list(layers)).mean(0))
        for _ in range(2):
            found = model.base_model(batch["input_ids"], batch["attention_mask"])
            real = batch["attention_mask"].bool()
            torch.testing.assert_close(
                found.last_hidden_state[real], expected.last_hidden_state[real], atol=2e-5, rtol=1e-4
            )
            if getattr(expected, "pooler_output", None) is not None:
                torch.testing.assert_close(found.pooler_output, expected.pooler_output, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("layers", "last", "width"), [("top", None, 1), ("mean", None, 1), ("concat", 2, 2),
                                                       ("mix", None, 3)])  # fmt: skip
def test_what_is_remembered_is_what_is_read(modern, layers, last, width):
    _, model = features(modern, layers=layers, last=last)
    modern.logits(model, 0, 1)
    states = list(model.base_model.known.values())
    assert len(states) == 2 and {s.shape[-1] for s in states} == {width * model.config.hidden_size}


@pytest.mark.parametrize("layers", ["mean", "concat", "mix"])
def test_several_layers_make_a_network_of_ours_that_says_the_same(given, layers, tmp_path):
    adaptation, model = features(given, layers=layers)
    before = body_of(model)
    train(given, model)
    assert all(torch.equal(v, before[n]) for n, v in body_of(model).items() if "pooler" not in n)
    if layers != "mean":
        assert all(p.grad is None and p.requires_grad for p in model.base_model.top.parameters())
        assert any(".top." in name for group in adaptation.groups(model) for name in group.names)
    expected = given.logits(model, 0, 1, 2)
    finished = adaptation.finish(model)
    assert type(finished).__name__ == "OnTopForSequenceClassification"
    finished.save_pretrained(str(tmp_path))
    loaded, info = AutoModelForSequenceClassification.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values())
    for one in (finished, loaded):
        torch.testing.assert_close(given.logits(one, 0, 1, 2), expected, atol=2e-5, rtol=1e-4)
    assert {*loaded.config.id2label.values()} == {"yes", "no"}


@pytest.mark.parametrize("layers", ["top", "mix"])
def test_a_head_that_reads_one_position_may_read_the_mean(given_of, layers, tmp_path):
    given = given_of("bert")
    adaptation, model = features(given, pooling="mean", layers=layers)
    train(given, model)
    batch = given.batch(0, 1, 2)
    with torch.no_grad():
        states = model.base_model(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        own = features(given, layers=layers)[1]
        own.base_model.top.load_state_dict(model.base_model.top.state_dict())
        plain = own.base_model(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    means = [row[mask.bool()].mean(0) for row, mask in zip(plain, batch["attention_mask"], strict=True)]
    torch.testing.assert_close(states[:, 0], torch.stack(means), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(states[:, 1:], plain[:, 1:])
    expected = given.logits(model, 0, 1, 2)
    adaptation.finish(model).save_pretrained(str(tmp_path))
    loaded = AutoModelForSequenceClassification.from_pretrained(str(tmp_path))
    torch.testing.assert_close(given.logits(loaded, 0, 1, 2), expected, atol=2e-5, rtol=1e-4)


def test_a_network_that_pools_by_itself_stays_plain(modern):
    adaptation, model = features(modern, pooling="mean")
    finished = adaptation.finish(model)
    assert type(finished).__name__ == "ModernBertForSequenceClassification"
    assert finished.config.classifier_pooling == "mean"


def test_the_mixtures_weights_are_learnt(modern):
    _, model = features(modern, layers="mix")
    start = [p.detach().clone() for p in model.base_model.top.parameters()]
    train(modern, model)
    assert all(not torch.equal(p, s) for p, s in zip(model.base_model.top.parameters(), start, strict=True))


def test_padding_may_stand_on_the_left(modern):
    _, model = features(modern)
    right = modern.batch(0, 3)
    with torch.no_grad():
        expected = model.base_model(right["input_ids"], right["attention_mask"]).last_hidden_state
        lengths = right["attention_mask"].sum(1)
        places = (torch.arange(right["input_ids"].shape[1]) + lengths[:, None]) % right["input_ids"].shape[1]
        left = {name: right[name].gather(1, places) for name in ("input_ids", "attention_mask")}
        found = model.base_model(left["input_ids"], left["attention_mask"]).last_hidden_state
    assert len(model.base_model.known) == 2
    assert torch.equal(found[left["attention_mask"].bool()], expected[right["attention_mask"].bool()])


def test_a_bilm_trains_its_own_mixture_and_stays_plain(network):
    class Source:
        def pretrained(self):
            return network("bilm", num_labels=2)

        def new_parameters(self):
            return frozenset({"bilm.mix.weights", "bilm.mix.scale", "classifier.weight", "classifier.bias"})

    ids = torch.tensor([[2, 7, 8, 9, 3], [2, 11, 12, 13, 3]])
    adaptation = Features(Features.Config())
    model = adaptation.adapt(Source()).eval()
    moving = {name for group in adaptation.groups(model) for name in group.names}
    assert {name.rpartition(".")[0] for name in moving} == {"bilm.body.mix", "classifier"}
    expected = network("bilm", num_labels=2).eval()(input_ids=ids).logits
    for _ in range(2):
        torch.testing.assert_close(model(input_ids=ids).logits, expected)
    model(input_ids=ids).logits.sum().backward()
    assert model.bilm.body.mix.weights.grad.abs().sum() > 0 and len(model.bilm.known) == 2
    finished = adaptation.finish(model)
    assert type(finished).__name__ == "BiLMForSequenceClassification"
    torch.testing.assert_close(finished(input_ids=ids).logits, expected)


def test_layers_that_are_not_there_are_refused(modern):
    with pytest.raises(RecipeError, match=r"adaptation\.last is 4; the network has 2 layers"):
        features(modern, layers="mix", last=4)
    with pytest.raises(ValidationError, match="reads one layer as it is"):
        Features.Config(layers="top", last=2)


def test_a_task_without_a_head_of_its_own_has_nothing_to_train(modern):
    class Written(type(modern.task)):
        def auto_class(self, family):
            return "AutoModelForCausalLM"

    assert "no head" in Features().supports(Written(modern.task.config), "decoder")
    assert Features().supports(modern.task, "encoder") is None
