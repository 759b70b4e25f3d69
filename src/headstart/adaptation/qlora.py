"""QLoRA: LoRA on a model quantized to four bits."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headstart.adaptation.lora import LoraSettings
from headstart.adaptation.peft_base import PeftAdaptation
from headstart.core.contracts import ModelSource, Task
from headstart.core.errors import ResourceError
from headstart.core.extras import install_command
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

if TYPE_CHECKING:
    from peft import LoraConfig

_INSTALL = install_command("quant")

_OUTSIDE_LAYERS = r"(?!.*\.\d+\.).*"
"""Matches the modules outside numbered layers, such as heads, which are not quantized."""


class QLora(PeftAdaptation):
    """QLoRA: quantize the frozen weight matrices to four bits (NF4) and train low-rank updates."""

    paper: ClassVar[str] = "Dettmers et al. 2023, QLoRA"
    needs_whole_weights: ClassVar[str] = "quantizes its weights to four bits, which FSDP cannot shard"

    class Config(LoraSettings):
        """The settings of LoRA."""

        name: Literal["qlora"] = "qlora"

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or QLora.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Reject all tasks if bitsandbytes is not installed."""
        return super().supports(task, family) if _installed() else f"bitsandbytes is not installed ({_INSTALL})"

    def load(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint; transformers quantizes the matrices of its layers."""
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
            # On the CPU, bitsandbytes 0.50 repacks the matrices in the first evaluation and never back; training after
            # that would get no gradient through them.
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
        return model

    def peft_config(self, model: PreTrainedModel, shared: dict[str, Any]) -> LoraConfig:
        """Return peft's LoRA config, which supports four-bit matrices."""
        return self.config.to_peft(model, shared)


def _installed() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None
