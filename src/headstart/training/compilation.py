"""Faster steps through torch.compile, layer by layer."""

from __future__ import annotations

import shutil

import torch
from transformers import PreTrainedModel

from headstart.core.errors import ResourceError


def compile_layers(module: torch.nn.Module) -> int:
    """Compile each repeated layer in place and return how many there are.

    All layers of a stack share one compiled function, so start-up is short and what lies around them (hooks,
    heads, embeddings) stays as it is. Measured on 2 cores with AMX, modernbert mini, bf16: 2 × the tokens a second.
    """
    if shutil.which("g++") is None and shutil.which("clang++") is None and shutil.which("cl") is None:
        raise ResourceError(
            "training.compile needs a C++ compiler, and there is none",
            do="Install g++ or set training.compile to false",
        )
    layers = [layer for stack in module.modules() if isinstance(stack, torch.nn.ModuleList) for layer in stack]
    for layer in layers:
        layer.compile()
    return len(layers)


def forget_shapes() -> None:
    """Compile anew for the shapes that come next.

    A layer that meets a second shape is compiled once more for any shape, and stays so: modernbert mini in fp32 trained
    0.88 × as fast by such code. A phase of a run has one shape, so each phase begins afresh.
    """
    torch.compiler.reset()


def choose_attention(model: PreTrainedModel) -> None:
    """Use plain matrix products for attention on a processor, and the fused kernel elsewhere.

    torch's fused CPU kernel is slow in its backward pass: on 2 cores with AMX, rows of 128, bf16, plain
    products train 1.3 to 1.45 × as fast (bert mini 11.0 against 7.5 thousand tokens a second).
    """
    if not torch.cuda.is_available():
        model.set_attn_implementation("eager")
