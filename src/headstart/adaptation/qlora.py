"""QLoRA: LoRA beside matrices that are held in four bits."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from transformers import PreTrainedModel

from headstart.adaptation.lora import LoraSettings
from headstart.adaptation.peft_base import PeftAdaptation
from headstart.core.contracts import ModelSource, Task
from headstart.core.errors import ResourceError

if TYPE_CHECKING:
    from peft import LoraConfig

_INSTALL = "pip install 'headstart[quant]'"

_OUTSIDE_LAYERS = r"(?!.*\.\d+\.).*"
"""Matches the modules that lie in no numbered layer: heads, old and new, which stay as they are."""


class QLora(PeftAdaptation):
    """Hold the frozen matrices in four bits (NF4) and learn a low-rank update beside them."""

    paper: ClassVar[str] = "Dettmers et al. 2023, QLoRA"

    class Config(LoraSettings):
        """The settings of LoRA."""

        name: Literal["qlora"] = "qlora"

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or QLora.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Refuse everything where bitsandbytes is missing."""
        return super().supports(task, family) if _installed() else f"bitsandbytes is not installed ({_INSTALL})"

    def load(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint; transformers quantises the matrices of its layers on the way."""
        from transformers import BitsAndBytesConfig

        if not _installed():
            raise ResourceError("qlora needs bitsandbytes, which is not installed", do=f"Run {_INSTALL}")
        four_bits = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
            llm_int8_skip_modules=[_OUTSIDE_LAYERS],
        )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = source.pretrained(quantization_config=four_bits, device_map=device)
        module: Any
        for module in model.modules():
            # bitsandbytes 0.50 packs a processor's matrices anew when they are first evaluated, and never back: what is
            # trained afterwards gets no gradient through them.
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
        return model

    def method(self, model: PreTrainedModel, shared: dict[str, Any]) -> LoraConfig:
        """Return peft's LoRA, which knows matrices of four bits."""
        return self.config.to_peft(model, shared)


def _installed() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None
