"""A tiny checkpoint of any layout with any head, an input batch and a short training loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

from headstart.tasks.base import BaseTask
from headstart.tasks.source import CheckpointFolder

CLASSIFIER = "AutoModelForSequenceClassification"
LANGUAGE_MODELS = {
    "encoder": "AutoModelForMaskedLM",
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
    "xlnet": "AutoModelForCausalLM",
    "bilm": "AutoModel",
}
END = 3


class Headed(BaseTask):
    """A task that only defines a head."""

    families: ClassVar[tuple[str, ...]] = tuple(LANGUAGE_MODELS)

    def __init__(self, head: str, settings: dict[str, Any]) -> None:
        super().__init__(None)
        self.head_class, self.settings = head, settings

    def auto_class(self, family: str) -> str:
        return self.head_class

    def head_settings(self) -> dict[str, Any]:
        return self.settings


@dataclasses.dataclass
class Pretrained:
    """A checkpoint, and a batch of two texts, the second of them padded."""

    folder: Path
    head: str = CLASSIFIER
    seed: int = 0

    def __post_init__(self) -> None:
        settings = {"num_labels": 3} if self.head.endswith("Classification") else {}
        # T5's and BART's heads read the end-of-text token, here that of the tests' vocabulary.
        self.source = CheckpointFolder(self.folder, Headed(self.head, {**settings, "eos_token_id": END}), self.seed)
        ids = torch.arange(10, 34).view(2, 12)
        ids[0, -1] = ids[1, 8] = END
        ids[1, 9:] = 0
        self.batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
        if self.head == "AutoModelForSeq2SeqLM":
            self.batch["decoder_input_ids"] = torch.arange(40, 50).view(2, 5)

    def outputs(self, model: Any, **changes: torch.Tensor) -> torch.Tensor:
        """The model's main output, without dropout."""
        with torch.no_grad():
            return main(model.eval()(**{**self.batch, **changes}))

    def train(self, model: Any, steps: int = 3) -> tuple[set[str], set[str]]:
        """Trains at a high learning rate; returns the names of the trainable and of the changed parameters."""
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        torch.manual_seed(0)
        for _ in range(steps):
            (main(model.train()(**self.batch)) - 1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return trainable, {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}


def main(output: Any) -> torch.Tensor:
    """The main tensor of a model's output."""
    tensor: torch.Tensor = next(output[key] for key in ("logits", "start_logits", "last_hidden_state") if key in output)
    return tensor.float()


def count(model: Any) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


PretrainedMaker = Callable[..., Pretrained]
