"""Tasks that use the checkpoint's own head are one network; sentence embeddings keep a loss and a pooling each."""

from __future__ import annotations

import pytest

from headstart.core import config, registry
from headstart.stages.multitask.sharing import have_one_head


def task(**section):
    return registry.build("tasks", config.resolve_section("tasks", "task", section, []))


@pytest.mark.parametrize(
    ("tasks", "family", "one"),
    [
        ([{"kind": "text_to_text"}, {"kind": "text_to_text"}], "encoder-decoder", True),
        ([{"kind": "classify"}, {"kind": "classify"}], "encoder", False),
        ([{"kind": "embed", "loss": "cosine"}, {"kind": "embed", "loss": "ranking"}], "encoder", False),
        ([{"kind": "embed"}, {"kind": "embed"}], "encoder", False),
    ],
)
def test_one_network_needs_one_head(tasks, family, one):
    assert have_one_head([task(**section) for section in tasks], family) is one
