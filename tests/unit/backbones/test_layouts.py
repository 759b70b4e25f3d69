"""The kinds of each family, and their tiny configs."""

from __future__ import annotations

import pytest

from headstart.backbones.layouts import kinds, tiny_config
from headstart.core import registry

FAMILIES = [name for name in registry.names("backbones") if name != "checkpoint"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_has_a_tiny_config(family):
    for kind in kinds(family):
        config = tiny_config(family, kind)
        assert config.vocab_size == 100
        assert kind is None or config.model_type == kind


def test_the_default_kind_comes_first():
    default = registry.resolve("backbones", "encoder").Config.model_fields["kind"].default
    assert kinds("encoder")[0] == default and len(kinds("encoder")) > 1
    assert kinds("bilm") == [None]
