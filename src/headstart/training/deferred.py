"""Networks whose weights are computed when they are needed: a process that shards a network never holds all of it.

A network built in the block of `deferred` has its weights on the meta device. What its initialization does to them is
recorded, with the state of torch's generator before each random operation. `compute` repeats this for some modules, to
the same bits.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_any, tree_map

_aten = torch.ops.aten
_LARGE = 2**16
"""Elements of a weight that gets memory of its own."""
_EMPTY = (_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default, _aten.empty_strided.default)


class NotDeferrable(Exception):
    """An initialization does what cannot be recorded; the network must be built whole."""


class _Weight(torch.nn.Parameter):
    """A weight on the meta device. It denies that: some of torch's initializations do nothing on that device."""

    is_meta = False  # type: ignore[assignment]
    deferred: _Recorder


@dataclass(frozen=True)
class _Part:
    """A tensor in an operation: a part of the memory of a weight."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.as_strided(self.size, self.stride, self.offset)


@dataclass(frozen=True)
class _Operation:
    """An operation in place: its function, what it changes, its other arguments, and the generator's state before."""

    function: Callable[..., Any]
    part: _Part
    rest: tuple[Any, ...]
    named: dict[str, Any]
    generator: torch.Tensor | None

    def repeat(self, whole: torch.Tensor) -> None:
        if self.generator is not None:
            torch.set_rng_state(self.generator)
        self.function(self.part.of(whole), *self.rest, **self.named)


class _Recorder(TorchDispatchMode):
    """Records what happens to weights on the meta device, and draws as many random numbers as on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[int, torch.nn.Parameter] = {}
        """By the address of their memory's description. They are kept, so that no address is used twice."""
        self.starts: dict[int, torch.Tensor | None] = {}
        """The weights as they were created; None for memory that was only allocated, which is released."""
        self.operations: defaultdict[int, list[_Operation]] = defaultdict(list)
        self._unset: dict[int, torch.Tensor] = {}
        """Memory that was only allocated, by its address. It is kept, so that no address is used twice."""

    def adopt(self, parameter: torch.nn.Parameter) -> _Weight:
        """Return a weight on the meta device in place of a new one."""
        meta = _Weight(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
        meta.__dict__.update(parameter.__dict__)
        meta.deferred = self
        unset = self._unset.pop(_address(parameter), None) is not None
        address = _address(meta)
        self.weights[address], self.starts[address] = meta, None if unset else parameter.detach()
        return meta

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if not tree_any(self._is_weight, (args, named)):
            return self._run(function, args, named)
        if function is _aten.constant_pad_nd.default and not any(args[1]):
            # transformers pads the bias of a tied output layer, mostly by nothing.
            return _aten.alias.default(args[0])
        if function._schema.is_mutable:
            if not self._is_weight(args[0]) or tree_any(_is_meta, (args[1:], named)):
                raise NotDeferrable(f"{function} changes a weight by another one, and neither is in memory")
            self.record(function, args[0], args[1:], named, torch.Tag.nondeterministic_seeded in function.tags)
            return args[0]
        result = function(*args, **named)
        if tree_any(lambda value: _is_meta(value) and not self._is_weight(value), result):
            raise NotDeferrable(f"{function} computes from a weight that is not in memory")
        return result

    def require_set(self) -> None:
        """Raise if a weight was only allocated: some initializations do nothing on the meta device."""
        for address, start in self.starts.items():
            if start is None and not self.operations.get(address):
                shape = tuple(self.weights[address].shape)
                raise NotDeferrable(f"a weight of the shape {shape} is not initialized without memory")

    def _run(self, function: Any, args: Any, named: Any) -> Any:
        """Run an operation on other tensors, and note which memory it allocates without setting it."""
        result = function(*args, **named)
        for tensor in (args[0] if function._schema.is_mutable else result, result):
            if isinstance(tensor, torch.Tensor) and function in _EMPTY and not _is_meta(tensor):
                self._unset[_address(tensor)] = tensor
            elif isinstance(tensor, torch.Tensor) and not function.is_view:
                self._unset.pop(_address(tensor), None)
        return result

    def _is_weight(self, value: object) -> bool:
        """Return True for a weight, and for a view of one."""
        return _is_meta(value) and _address(value) in self.weights

    def record(
        self, function: Any, target: torch.Tensor, rest: tuple[Any, ...], named: dict[str, Any], draws: bool
    ) -> None:
        """Record an operation that changes a weight in place; `draws` if it draws random numbers."""
        state = torch.get_rng_state() if draws else None
        part = _Part(tuple(target.shape), target.stride(), int(target.storage_offset()))
        rest = tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, rest)
        self.operations[_address(target)].append(_Operation(function, part, rest, named, state))
        if draws:
            # Later weights must find the generator as if this one had been drawn.
            function(_memory_like(target), *rest, **named)


@contextmanager
def deferred() -> Iterator[None]:
    """Keep the weights of networks that are built in this block on the meta device.

    Raises:
        NotDeferrable: by an operation whose result depends on a weight's values.
    """
    recorder, register = _Recorder(), torch.nn.Module.register_parameter

    def adopting(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and not _is_meta(parameter):
            parameter = recorder.adopt(parameter)
        register(module, name, parameter)  # type: ignore[arg-type]

    def truncated(tensor: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        # It draws again what is out of bounds: how many numbers it draws depends on the numbers.
        if not _is_meta(tensor):
            return truncate(tensor, *rest, **named)
        recorder.record(truncate, tensor, rest, named, draws=True)
        return tensor

    truncate = torch.nn.init._no_grad_trunc_normal_
    torch.nn.Module.register_parameter = adopting  # type: ignore[method-assign,assignment]
    torch.nn.init._no_grad_trunc_normal_ = truncated
    try:
        with recorder:
            yield
        recorder.require_set()
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
        torch.nn.init._no_grad_trunc_normal_ = truncate


def is_deferred(module: torch.nn.Module) -> bool:
    """Return True if weights of a module are not in memory yet."""
    return any(isinstance(parameter, _Weight) for parameter in module.parameters())


@torch.no_grad()
def compute(module: torch.nn.Module, device: torch.device) -> None:
    """Compute the weights of a module that are not in memory yet, and move the module to its device."""
    whole: dict[int, torch.nn.Parameter] = {}
    before = torch.get_rng_state()
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if isinstance(parameter, _Weight):
                if id(parameter) not in whole:
                    whole[id(parameter)] = _computed(parameter, device)
                part._parameters[name] = whole[id(parameter)]
    torch.set_rng_state(before)
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.to(device)


def _computed(parameter: _Weight, device: torch.device) -> torch.nn.Parameter:
    recorder, address = parameter.deferred, _address(parameter)
    # Each weight is computed once, into the memory with which it was created if that has values.
    start = recorder.starts.pop(address)
    if start is None:
        start = _memory_like(parameter)
    for operation in recorder.operations.pop(address, ()):
        operation.repeat(start)
    return torch.nn.Parameter(start.to(device), requires_grad=parameter.requires_grad)


def _memory_like(parameter: torch.Tensor) -> torch.Tensor:
    """Return memory on the CPU for a weight, which goes back to the system once it is released.

    The allocator would cut the place of a whole weight into places for shards, and find none for the next whole weight.
    """
    if not parameter.is_contiguous() or parameter.numel() < _LARGE:
        return torch.empty_like(parameter, device="cpu").detach()
    memory = mmap.mmap(-1, parameter.numel() * parameter.element_size())
    return torch.frombuffer(memory, dtype=parameter.dtype).view(parameter.shape)


def _is_meta(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
