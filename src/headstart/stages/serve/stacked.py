"""Adapters of different tasks in one forward pass: their matrices are stacked, and each layer runs one batched product.

Algorithm:
    The rows of a batch are sorted by kind of adapter and by task, so that all LoRA rows are adjacent, then all rows
    with bottleneck adapters (by activation function and by what they read), then (IA)³, then rows without an adapter.
    A hook on each linear layer of the body changes the slice of rows that have an adapter there. The matrices of the
    batch's distinct tasks are stacked, with zeros where ranks differ or a task leaves the layer unchanged, and each
    row selects its own.

Properties:
    The stack of a batch is built from the immutable weights of the tasks and is used by that batch alone. A task that
    is replaced or evicted during a batch cannot change its result. Each thread has a batch of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.activations import ACT2FN

from headstart.stages.serve.adapter_weights import AdapterWeights

_ORDER = {"lora": 0, "bottleneck": 1, "ia3": 2}


def sort_key(adapter: AdapterWeights | None) -> tuple[int, str, int]:
    """Return the key by which the rows of a batch are sorted, so that each `AdapterGroup` is a slice."""
    if adapter is None:
        return (len(_ORDER), "", 0)
    return (_ORDER[adapter.kind], f"{adapter.activation} {adapter.reads}", id(adapter))


class AdapterGroup:
    """Adjacent rows of a batch whose adapters are of one kind."""

    def __init__(self, start: int, adapters: Sequence[AdapterWeights], device: torch.device) -> None:
        """Collect the distinct adapters of the rows from `start` on, one adapter per row."""
        self.rows = slice(start, start + len(adapters))
        self.distinct = list({id(adapter): adapter for adapter in adapters}.values())
        place = {id(adapter): i for i, adapter in enumerate(self.distinct)}
        self.index = torch.tensor([place[id(adapter)] for adapter in adapters], device=device)
        self.kind, self.activation, self.reads = adapters[0].kind, adapters[0].activation, adapters[0].reads
        self.residual_norms = adapters[0].residual_norms

    def before(self, module: str, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs of a linear layer, which (IA)³ scales in feed-forward blocks."""
        if self.kind != "ia3" or not any(module in adapter.scales_inputs for adapter in self.distinct):
            return inputs
        scale = self._scale(module, inputs, True)
        scaled = inputs.clone()
        scaled[self.rows] *= scale
        return scaled

    def after(self, module: str, inputs: torch.Tensor, outputs: torch.Tensor, hooks: AdapterHooks) -> None:
        """Change the outputs of a linear layer or of a norm in place."""
        if not any(module in adapter.modules for adapter in self.distinct):
            return
        rows = outputs[self.rows]
        match self.kind:
            case "lora":
                down, up = self._selected(module, 0), self._selected(module, 1)
                middle = torch.matmul(inputs[self.rows], down.transpose(1, 2).to(inputs.dtype))
                rows += torch.matmul(middle, up.transpose(1, 2).to(middle.dtype))
            case "bottleneck":
                if self.reads == "norm":
                    # The norm is applied to the sum again, without its hooks.
                    summed = inputs[self.rows] + self._bottleneck(module, rows)
                    outputs[self.rows] = hooks.modules[module].forward(summed)
                elif self.reads == "residual":
                    residual = hooks.norm_input(self.residual_norms[module])[self.rows]
                    rows += self._bottleneck(module, residual + rows)
                else:
                    rows += self._bottleneck(module, rows)
            case "ia3":
                if any(module not in adapter.scales_inputs for adapter in self.distinct):
                    rows *= self._scale(module, outputs, False)

    def _bottleneck(self, module: str, states: torch.Tensor) -> torch.Tensor:
        """Return what the adapters of the rows add, for states of shape (rows, positions, width)."""
        down, down_bias, up, up_bias = (self._selected(module, i) for i in range(4))
        middle = torch.matmul(states, down.transpose(1, 2).to(states.dtype)) + down_bias[:, None]
        middle = ACT2FN[self.activation](middle)
        return torch.matmul(middle, up.transpose(1, 2).to(middle.dtype)) + up_bias[:, None]

    def _selected(self, module: str, part: int) -> torch.Tensor:
        """Return a tensor of the adapters for each row, shape (rows or 1, …), padded with zeros to the largest."""
        tensors = [adapter.modules[module][part] if module in adapter.modules else None for adapter in self.distinct]
        stacked = _stack(tensors)
        # One task: the product broadcasts over the rows, which is a single matrix product.
        return stacked if len(tensors) == 1 else stacked.index_select(0, self.index)

    def _scale(self, module: str, like: torch.Tensor, of_inputs: bool) -> torch.Tensor:
        """Return the factors of (IA)³ for each row, ones where a task does not scale here; shape (rows, 1, width)."""
        width = like.shape[-1]
        vectors = [
            adapter.modules[module][0]
            if module in adapter.modules and (module in adapter.scales_inputs) == of_inputs
            else torch.ones(width, device=like.device)
            for adapter in self.distinct
        ]
        return torch.stack(vectors).index_select(0, self.index)[:, None].to(like.dtype)


class _Pass(threading.local):
    """The forward pass of the current thread."""

    groups: Sequence[AdapterGroup] = ()

    def __init__(self) -> None:
        self.norm_inputs: dict[str, torch.Tensor] = {}
        """The input of each norm, if an adapter reads it."""


class AdapterHooks:
    """Hooks on the linear layers and norms of a body, which apply the adapters of the thread's current batch."""

    def __init__(self, body: torch.nn.Module) -> None:
        """Register the hooks. They do nothing outside `applied`."""
        self._pass = _Pass()
        self.modules: dict[str, torch.nn.Module] = {
            name: module
            for name, module in body.named_modules()
            if isinstance(module, torch.nn.Linear) or "Norm" in type(module).__name__
        }
        for name, module in self.modules.items():
            is_linear = isinstance(module, torch.nn.Linear)
            module.register_forward_pre_hook(self._before(name) if is_linear else self._keep(name))
            module.register_forward_hook(self._after(name))

    @contextmanager
    def applied(self, groups: Sequence[AdapterGroup]) -> Iterator[None]:
        """Apply the adapters of these groups in the forward passes of the calling thread."""
        self._pass.groups = groups
        try:
            yield
        finally:
            self._pass.groups = ()
            self._pass.norm_inputs.clear()

    def norm_input(self, name: str) -> torch.Tensor:
        """Return what a norm of the body read in the current forward pass."""
        return self._pass.norm_inputs[name]

    def _before(self, name: str) -> Any:
        def hook(_: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
            groups = self._pass.groups
            if not groups:
                return None
            inputs = arguments[0]
            for group in groups:
                inputs = group.before(name, inputs)
            return (inputs, *arguments[1:])

        return hook

    def _keep(self, name: str) -> Any:
        def hook(_: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
            if any(name in group.residual_norms.values() for group in self._pass.groups):
                self._pass.norm_inputs[name] = arguments[0]

        return hook

    def _after(self, name: str) -> Any:
        def hook(_: torch.nn.Module, arguments: tuple[Any, ...], outputs: torch.Tensor) -> None:
            for group in self._pass.groups:
                group.after(name, arguments[0], outputs, self)

        return hook


def make_groups(adapters: Sequence[AdapterWeights | None], device: torch.device) -> list[AdapterGroup]:
    """Return the groups of a batch, whose rows are sorted by `sort_key`."""
    groups: list[AdapterGroup] = []
    start = 0
    while start < len(adapters):
        end = start
        while end < len(adapters) and sort_key(adapters[end])[:2] == sort_key(adapters[start])[:2]:
            end += 1
        members = [adapter for adapter in adapters[start:end] if adapter is not None]
        if members:
            groups.append(AdapterGroup(start, members, device))
        start = end
    return groups


def _stack(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Stack tensors of different shapes, padded with zeros; None is all zeros."""
    present = [tensor for tensor in tensors if tensor is not None]
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in present), strict=True)]
    if len(present) == len(tensors) and all(list(tensor.shape) == shape for tensor in present):
        return torch.stack(present)
    stacked = present[0].new_zeros(len(tensors), *shape)
    for i, tensor in enumerate(tensors):
        if tensor is not None:
            stacked[i][tuple(slice(size) for size in tensor.shape)] = tensor
    return stacked
