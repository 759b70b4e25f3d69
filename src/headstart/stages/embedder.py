"""Texts → vectors of length one, by a folder of sentence-transformers."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.flop_counter import FlopCounterMode

from headstart.tasks.sentence_vectors import library
from headstart.tasks.source import require_checkpoint
from headstart.training import precision

_COUNTED = ["What a text of this many tokens costs is counted once, and holds for the others."]


class Embedder:
    """A model that embeds, as sentence-transformers reads its folder: any Hugging Face folder is averaged."""

    def __init__(self, model: str | Path, number_format: str = "auto") -> None:
        """Load the folder onto the device that there is."""
        self.device = precision.default_device()
        self.number_format = precision.resolve(number_format, self.device)
        self.model = library("model").SentenceTransformer(str(require_checkpoint(model)), device=str(self.device))

    def vectors(self, texts: list[str], batch_size: int = 32) -> npt.NDArray[np.float32]:
        """Return one row for each text."""
        with precision.autocast(self.number_format, self.device):
            found: Any = self.model.encode(
                texts, batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False, convert_to_tensor=True
            )
        vectors: npt.NDArray[np.float32] = found.float().cpu().numpy()
        return vectors

    def tokens(self, texts: list[str]) -> int:
        """Return how many tokens the model reads of some texts."""
        features = self.model.preprocess(texts)
        return int(features["attention_mask"].sum() if "attention_mask" in features else features["input_ids"].numel())

    @cached_property
    def flops_per_token(self) -> float:
        """Return what a token costs, as torch counts it on a text."""
        with FlopCounterMode(display=False) as counter:
            self.vectors(_COUNTED)
        return float(counter.get_total_flops()) / self.tokens(_COUNTED)
