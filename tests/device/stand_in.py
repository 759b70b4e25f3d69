"""A device in pure Python, to find code that assumes the CPU on a machine without a GPU.

A tensor on it wraps a CPU tensor. As on a GPU, an operation on tensors of both devices raises, and reading a value on
the host waits for the device. `COUNTS` counts these waits (`sync`) and copies that were asked not to wait although the
memory of their source is not pinned (`unpinned`). It finds wrong placement and waits; it says nothing about kernels or
speed, and it has no fused LSTM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

NAME = "standin"
COUNTS: Counter[str] = Counter()
_aten = torch.ops.aten
_COPIES = (_aten.copy_.default, _aten._to_copy.default, _aten._foreach_copy_.default)
_INDEXED = (_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default, _aten._index_put_impl_.default)
_DYNAMIC = ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim")
"""Operations whose output has a size that depends on values: the host waits for it."""


class _Backend(backend_registration._DummyBackendModule):
    """What torch asks a backend for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
DEVICE = torch.device(NAME, 0)


class DeviceTensor(torch.Tensor):
    """A tensor on the device; `raw` is the CPU tensor that holds its values."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> DeviceTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            layout=raw.layout, device=DEVICE,
        )  # fmt: skip
        tensor.raw = raw
        return tensor

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.raw})"

    def tolist(self) -> Any:
        COUNTS["sync"] += 1
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Mode(TorchDispatchMode):
    """While it is active, tensors can be created on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def swapping() -> Iterator[None]:
    """Run the block with the device; modules are moved to it by new parameters, as their type of tensor changes."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with Mode():
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU tensors behind its arguments, after the checks that a GPU would make."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    on_device = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    wanted = kwargs.get("device")
    to_device = bool(on_device) if wanted is None else torch.device(wanted).type == NAME
    if not on_device and not to_device:
        return func(*args, **kwargs)
    _require_one_device(func, args, tensors)
    _count(func, args, kwargs, to_device)
    args_, kwargs_ = tree_map(_raw, args), tree_map(_raw, dict(kwargs))
    if kwargs_.get("device") is not None:
        kwargs_["device"] = torch.device("cpu")
    kwargs_.pop("pin_memory", None)
    if func is _aten._local_scalar_dense.default:
        return args_[0].item()
    if func is _aten.copy_.default:
        to_device = isinstance(args[0], DeviceTensor)
    out = func(*args_, **kwargs_)
    if not to_device:
        return out
    if func is _aten._to_copy.default and out is args_[0]:
        out = out.clone()
    wrapped = tree_map(lambda x: DeviceTensor(x) if type(x) is torch.Tensor else x, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _require_one_device(func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    """Raise if an operation mixes the devices, as CUDA does; scalars, copies and indices on the CPU are allowed."""
    kinds = {isinstance(tensor, DeviceTensor) for tensor in tensors if tensor.dim() > 0}
    if len(kinds) < 2 or func in _COPIES:
        return
    if func in _INDEXED and isinstance(args[0], DeviceTensor):
        values = args[2] if len(args) > 2 and isinstance(args[2], torch.Tensor) else args[0]
        if isinstance(values, DeviceTensor) or values.dim() == 0:
            return
    shapes = [(tuple(tensor.shape), tensor.device.type) for tensor in tensors]
    raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got {shapes}")


def _count(func: Any, args: Any, kwargs: dict[str, Any], to_device: bool) -> None:
    name = func.name().split(".")[0]
    source = args[1] if func is _aten.copy_.default else args[0] if args else None
    by_mask = name == "aten::index" and any(getattr(index, "dtype", None) == torch.bool for index in args[1])
    if func is _aten._local_scalar_dense.default or name in _DYNAMIC or by_mask:
        COUNTS["sync"] += 1
    elif func is _aten._to_copy.default or func is _aten.copy_.default:
        target = to_device if func is _aten._to_copy.default else isinstance(args[0], DeviceTensor)
        if isinstance(source, DeviceTensor) and not target:
            COUNTS["sync"] += 1
        elif target and isinstance(source, torch.Tensor) and not isinstance(source, DeviceTensor):
            waits = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True))
            COUNTS["to_device" if waits or source.dim() == 0 else "unpinned"] += 1


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, DeviceTensor) else value


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))


def _empty(size: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
    return DeviceTensor(torch.empty(size, dtype=dtype))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _raw(target).copy_(_raw(source))
    return target


_library = torch.library.Library("aten", "IMPL")
_library.impl("empty_strided", lambda *a, **k: _empty_strided(*a[:3], **k), "PrivateUse1")
_library.impl("empty.memory_format", lambda *a, **k: _empty(*a[:2], **k), "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
