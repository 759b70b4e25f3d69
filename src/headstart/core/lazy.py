"""torch and transformers, imported when they are first used.

Importing them takes seconds. The modules of registered classes take them from here, so that the settings of a recipe
are validated, and a wrong one is refused, without that delay:

    from headstart.core.lazy import torch

A type checker sees the modules themselves. A class that inherits from one of theirs needs the import at once; such
classes are in files of their own, which are imported where they are used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    import transformers
else:

    class LazyModule(ModuleType):
        """Stands for a module, which it imports at the first access to one of its attributes."""

        def __getattr__(self, name: str) -> Any:
            """Return the attribute of the module."""
            module = sys.modules.get(self.__name__) or importlib.import_module(self.__name__)
            return getattr(module, name)

    torch = LazyModule("torch")
    F = LazyModule("torch.nn.functional")
    transformers = LazyModule("transformers")

__all__ = ["F", "torch", "transformers"]
