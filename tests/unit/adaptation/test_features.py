"""Feature extraction: cached states equal computed ones, and the body stays frozen."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForSequenceClassification

from headstart.adaptation.features import FeatureExtraction
from headstart.adaptation.frozen import FrozenBody
from headstart.adaptation.full import Full
from headstart.adaptation.on_top import learned_mixture, output_with_states
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
    adaptation = FeatureExtraction(FeatureExtraction.Config(**settings))
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


def test_cached_states_equal_computed_states(modern):
    """The states of a text do not depend on the batch, its padding or its other texts."""
    _, cached = features(modern)
    plain = modern.source.pretrained().eval()
    frozen = cached.base_model
    for rows in ([0, 1, 2], [2, 0], [1, 3, 0, 2], [3], [3, 3]):
        batch = modern.batch(*rows)
        with torch.no_grad():
            states = frozen(batch["input_ids"], batch["attention_mask"]).last_hidden_state
            expected = plain.base_model(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        mask = batch["attention_mask"].bool()
        torch.testing.assert_close(states[mask], expected[mask], atol=2e-5, rtol=1e-4)
    assert len(frozen.cache) == 4


def test_a_text_is_computed_once(modern):
    _, model = features(modern)
    frozen = model.base_model
    rows = []
    frozen.body.register_forward_hook(
        lambda _, args, kwargs, out: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    for indices in ([0, 1], [1, 2], [0, 1, 2], [2, 2]):
        modern.task.logits(model, modern.batch(*indices))
    assert rows == [2, 1]


def test_without_a_cache_the_result_is_the_same(modern):
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
    assert not uncached.base_model.cache


def test_texts_beyond_a_full_cache_are_computed(modern):
    _, model = features(modern, cache_mb=0.02)
    frozen = model.base_model
    plain = modern.source.pretrained().eval()
    for _ in range(2):
        batch = modern.batch(*range(8))
        with torch.no_grad():
            logits = modern.task.logits(model.eval(), batch)
            torch.testing.assert_close(logits, modern.task.logits(plain, batch), atol=2e-5, rtol=1e-4)
    size = sum(states.numel() * states.element_size() for states in frozen.cache.values())
    assert 0 < len(frozen.cache) < 8 and size <= 20_000


def test_the_body_stays_bit_identical_and_the_head_changes(given):
    adaptation, model = features(given)
    before, head = body_of(model), model.classifier.weight.detach().clone()
    train(given, model)
    after = body_of(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert all("pooler" in name for name in changed), "a pooler is part of the head"
    assert not torch.equal(model.classifier.weight, head)
    finished = adaptation.finish(model)
    original = given.source.pretrained().base_model.state_dict()
    assert all(torch.equal(v, original[n]) for n, v in finished.base_model.state_dict().items() if "pooler" not in n)


def test_only_the_head_and_the_pooler_train(given):
    adaptation, model = features(given)
    names = {name for group in adaptation.groups(model) for name in group.names}
    assert names == {name for name, p in model.named_parameters() if p.requires_grad}
    assert any("classifier" in name for name in names)
    assert any("pooler" in name for name in names) == hasattr(given.source.pretrained().base_model, "pooler")
    assert not any("layers." in name or "encoder." in name or "embeddings" in name for name in names)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained < sum(p.numel() for p in model.parameters()) / 4


def test_a_frozen_body_has_no_dropout(given):
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


def test_the_finished_model_is_plain_and_gives_the_same_logits(given, tmp_path):
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


def test_cached_states_give_the_same_gradients(modern):
    def gradients(**settings):
        _, model = features(modern, **settings)
        model.eval()
        for _ in range(2):
            model.zero_grad()
            modern.task.loss(model, modern.batch(0, 1, 2)).backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    cached, computed = gradients(), gradients(cache_mb=0)
    assert cached.keys() == computed.keys() and cached
    for name in cached:
        torch.testing.assert_close(cached[name], computed[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_of_texts_work_too(kind, given_of):
    given = given_of(kind, pair=True)
    _, model = features(given)
    plain = given.source.pretrained().eval()
    batch = given.batch(0, 3, 5)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(
                given.task.logits(model.eval(), batch), given.task.logits(plain, batch), atol=2e-5, rtol=1e-4
            )


@pytest.mark.parametrize(("adaptation", "is_pretrained"), [(Full, True), (Scratch, False)])
def test_full_and_scratch_train_everything(given, adaptation, is_pretrained):
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
    assert all(same) if is_pretrained else not any(same)
    assert method.finish(model) is model


@pytest.mark.parametrize("layout", ["bert", "modernbert", "gpt2", "t5", "xlnet", "bilm"])
@pytest.mark.parametrize("settings", [{}, {"layers": "mix"}, {"layers": "concat", "hidden": 5}], ids=str)
def test_an_lstm_on_frozen_features_trains_and_is_saved_with_the_network(layout, settings, pretrained, tmp_path):
    given = pretrained(layout)
    adaptation, model = features(given, top="bilstm", **settings)
    before = body_of(model)
    names = {name for group in adaptation.groups(model) for name in group.names}
    assert any("lstm.weight_hh_l0_reverse" in name for name in names)
    _, changed = given.train(model)
    assert any("lstm.weight_hh_l0_reverse" in name for name in changed)
    assert bool(learned_mixture(model)) == (settings.get("layers") == "mix" or layout == "bilm")
    after = body_of(model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert all("pooler" in name or name.startswith("mix.") for name in moved), moved
    expected = given.outputs(model)
    finished = adaptation.finish(model)
    finished.save_pretrained(str(tmp_path))
    loaded, info = AutoModelForSequenceClassification.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values()), info
    for network in (finished, loaded):
        torch.testing.assert_close(given.outputs(network), expected, atol=2e-5, rtol=1e-4)


def test_hidden_needs_an_lstm():
    with pytest.raises(ValidationError, match="Set top to bilstm"):
        FeatureExtraction.Config(hidden=8)


SELECTIONS = [
    {"layers": "mean"}, {"layers": "mean", "last": 2, "normalize": True}, {"layers": "concat"},
    {"layers": "concat", "last": 3, "normalize": False}, {"layers": "mix"}, {"layers": "mix", "last": 2},
]  # fmt: skip


@pytest.mark.parametrize("settings", SELECTIONS, ids=str)
def test_every_combination_of_layers_starts_as_their_mean(given, settings):
    """A mixture and a projection are initialized to the mean; the second pass reads the cache."""
    _, model = features(given, **settings)
    plain = given.source.pretrained().eval()
    batch = given.batch(0, 1, 2)
    with torch.no_grad():
        output = plain.base_model(batch["input_ids"], batch["attention_mask"], output_hidden_states=True)
        layers = output.hidden_states[-(settings.get("last") or (2 if settings["layers"] == "concat" else 3)) :]
        if settings.get("normalize", settings["layers"] == "concat"):
            layers = [torch.nn.functional.layer_norm(states, states.shape[-1:]) for states in layers]
        expected = output_with_states(plain.base_model, type(output), torch.stack(list(layers)).mean(0))
        for _ in range(2):
            output = model.base_model(batch["input_ids"], batch["attention_mask"])
            mask = batch["attention_mask"].bool()
            torch.testing.assert_close(
                output.last_hidden_state[mask], expected.last_hidden_state[mask], atol=2e-5, rtol=1e-4
            )
            if getattr(expected, "pooler_output", None) is not None:
                torch.testing.assert_close(output.pooler_output, expected.pooler_output, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("layers", "last", "width"), [("top", None, 1), ("mean", None, 1), ("concat", 2, 2),
                                                       ("mix", None, 3)])  # fmt: skip
def test_the_cache_holds_only_the_selected_layers(modern, layers, last, width):
    _, model = features(modern, layers=layers, last=last)
    modern.logits(model, 0, 1)
    states = list(model.base_model.cache.values())
    assert len(states) == 2 and {s.shape[-1] for s in states} == {width * model.config.hidden_size}


@pytest.mark.parametrize("layers", ["mean", "concat", "mix"])
def test_several_layers_give_a_headstart_network_with_the_same_logits(given, layers, tmp_path):
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
    for network in (finished, loaded):
        torch.testing.assert_close(given.logits(network, 0, 1, 2), expected, atol=2e-5, rtol=1e-4)
    assert {*loaded.config.id2label.values()} == {"yes", "no"}


@pytest.mark.parametrize("layers", ["top", "mix"])
def test_mean_pooling_replaces_the_first_position(given_of, layers, tmp_path):
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


def test_a_network_with_a_pooling_setting_stays_plain(modern):
    adaptation, model = features(modern, pooling="mean")
    finished = adaptation.finish(model)
    assert type(finished).__name__ == "ModernBertForSequenceClassification"
    assert finished.config.classifier_pooling == "mean"


def test_the_weights_of_the_mixture_train(modern):
    _, model = features(modern, layers="mix")
    start = [p.detach().clone() for p in model.base_model.top.parameters()]
    train(modern, model)
    assert all(not torch.equal(p, s) for p, s in zip(model.base_model.top.parameters(), start, strict=True))


def test_padding_may_be_on_the_left(modern):
    _, model = features(modern)
    right = modern.batch(0, 3)
    with torch.no_grad():
        expected = model.base_model(right["input_ids"], right["attention_mask"]).last_hidden_state
        lengths = right["attention_mask"].sum(1)
        positions = (torch.arange(right["input_ids"].shape[1]) + lengths[:, None]) % right["input_ids"].shape[1]
        left = {name: right[name].gather(1, positions) for name in ("input_ids", "attention_mask")}
        states = model.base_model(left["input_ids"], left["attention_mask"]).last_hidden_state
    assert len(model.base_model.cache) == 2
    assert torch.equal(states[left["attention_mask"].bool()], expected[right["attention_mask"].bool()])


def test_a_bilm_trains_its_own_mixture_and_stays_plain(network):
    class Source:
        def pretrained(self):
            return network("bilm", num_labels=2)

        def new_parameters(self):
            return frozenset({"bilm.mix.weights", "bilm.mix.scale", "classifier.weight", "classifier.bias"})

    ids = torch.tensor([[2, 7, 8, 9, 3], [2, 11, 12, 13, 3]])
    adaptation = FeatureExtraction(FeatureExtraction.Config())
    model = adaptation.adapt(Source()).eval()
    trainable = {name for group in adaptation.groups(model) for name in group.names}
    assert {name.rpartition(".")[0] for name in trainable} == {"bilm.body.mix", "classifier"}
    expected = network("bilm", num_labels=2).eval()(input_ids=ids).logits
    for _ in range(2):
        torch.testing.assert_close(model(input_ids=ids).logits, expected)
    model(input_ids=ids).logits.sum().backward()
    assert model.bilm.body.mix.weights.grad.abs().sum() > 0 and len(model.bilm.cache) == 2
    finished = adaptation.finish(model)
    assert type(finished).__name__ == "BiLMForSequenceClassification"
    torch.testing.assert_close(finished(input_ids=ids).logits, expected)


def test_more_layers_than_the_network_has_are_rejected(modern):
    with pytest.raises(RecipeError, match=r"adaptation\.last is 4, but the model has 3 hidden states .* 2 layers"):
        features(modern, layers="mix", last=4)
    with pytest.raises(ValidationError, match="reads one layer unchanged"):
        FeatureExtraction.Config(layers="top", last=2)


def test_a_task_without_a_separate_head_is_rejected(modern):
    class Generation(type(modern.task)):
        def auto_class(self, family):
            return "AutoModelForCausalLM"

    assert "no separate head" in FeatureExtraction().supports(Generation(modern.task.config), "decoder")
    assert FeatureExtraction().supports(modern.task, "encoder") is None


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_one_layer_alone_is_read(given, layer, tmp_path):
    adaptation, model = features(given, layer=layer)
    batch = given.batch(0, 1)
    plain = given.source.pretrained().eval()
    with torch.no_grad():
        states = model.base_model(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        every = plain.base_model(batch["input_ids"], batch["attention_mask"], output_hidden_states=True).hidden_states
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(states[mask], every[layer][mask], atol=2e-5, rtol=1e-4)
    train(given, model)
    before = given.task.logits(model.eval(), batch)
    finished = adaptation.finish(model).eval()
    torch.testing.assert_close(given.task.logits(finished, batch), before, atol=2e-5, rtol=1e-4)
    finished.save_pretrained(str(tmp_path))
    reopened = AutoModelForSequenceClassification.from_pretrained(str(tmp_path)).eval()
    torch.testing.assert_close(given.task.logits(reopened, batch), before, atol=2e-5, rtol=1e-4)


def test_a_layer_that_does_not_exist_or_that_contradicts_layers_is_refused(modern):
    with pytest.raises(RecipeError, match=r"adaptation\.layer is 3, but the model has 2 layers"):
        features(modern, layer=3)
    with pytest.raises(ValidationError, match="layer is 1, which is one layer alone, but layers is 'mix'"):
        FeatureExtraction.Config(layers="mix", layer=1)
    assert "layer" not in FeatureExtraction.Config().model_dump()


def test_the_learned_weights_of_layers_are_reported(modern):
    adaptation, model = features(modern, layers="mix")
    assert learned_mixture(model) == {"weights": [pytest.approx(1 / 3, abs=1e-3)] * 3, "gamma": 1.0}
    train(modern, model)
    learned = learned_mixture(adaptation.finish(model))
    assert sum(learned["weights"]) == pytest.approx(1, abs=1e-3) and learned["gamma"] != 1.0
    assert learned_mixture(modern.source.pretrained()) == {}
