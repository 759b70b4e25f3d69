"""Layer-wise learning rate decay: each layer's rate is a fraction of that of the layer above."""

from __future__ import annotations

import pytest

from headstart.adaptation.layers import levels
from headstart.adaptation.layerwise_decay import LayerwiseDecay
from headstart.training import optimizer
from headstart.training.settings import TrainingSettings


@pytest.mark.parametrize("kind", ["bert", "albert"])
def test_rates_fall_from_the_head_to_the_embeddings(given_of, kind):
    method = LayerwiseDecay(LayerwiseDecay.Config(decay=0.5))
    model = method.adapt(given_of(kind).source)
    top = max(levels(model).values())
    rates = {name: group.lr_scale for group in method.groups(model) for name in group.names}
    assert rates == pytest.approx({name: 0.5 ** (top - level) for name, level in levels(model).items()})
    assert all(group.starts == 0 for group in method.groups(model))


def test_the_optimizer_uses_these_rates(given_of):
    method = LayerwiseDecay()
    model = method.adapt(given_of("modernbert").source)
    built = optimizer.build(model, method.groups(model), TrainingSettings(learning_rate=0.01))
    optimizer.set_rate(built, 0.01)
    rates = {id(p): group["lr"] for group in built.param_groups for p in group["params"]}
    assert rates[id(model.classifier.weight)] == pytest.approx(0.01)
    assert rates[id(model.model.embeddings.tok_embeddings.weight)] == pytest.approx(0.01 * 0.9**3)
