"""Sentence encoders: text → vectors of length one.

sentence-transformers opens every folder. Its import takes 4 s (scikit-learn, peft, bitsandbytes), so the most common
form of folder, a plain encoder whose token states are averaged, is opened with transformers alone. Both give the same
vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn.functional import normalize
from transformers import PreTrainedTokenizerBase

from headstart.checkpoint.files import parse_json, read_json
from headstart.checkpoint.input_length import learned_positions, max_positions
from headstart.checkpoint.load import load_model, load_sentence_encoder, load_tokenizer
from headstart.tasks.sentence_vectors import library

_PLAIN = frozenset({"bert", "distilbert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta"})
"""Model types that sentence-transformers opens with `AutoModel` and no further settings."""


class TextEncoder(Protocol):
    """What an embedder needs of a model."""

    tokenizer: Any
    max_length: int | None

    def encode(self, texts: list[str]) -> torch.Tensor:
        """Return one normalized vector per text, all computed in one forward pass."""
        ...

    def count_tokens(self, texts: list[str]) -> int:
        """Return the number of tokens that the model reads, without padding."""
        ...


def open_encoder(folder: Path, device: torch.device, dtype: torch.dtype) -> TextEncoder:
    """Load a folder with transformers alone if it is a plain encoder, otherwise with sentence-transformers."""
    if is_mean_pooled(folder):
        return MeanPoolingEncoder(folder, device, dtype)
    return SentenceTransformersEncoder(folder, device, dtype)


class MeanPoolingEncoder:
    """A transformer whose token states are averaged, loaded with transformers alone."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Load the tokenizer and the weights."""
        self.device = device
        self.model = load_model("AutoModel", folder, dtype=dtype).to(device).eval()
        stated = _read(folder / "sentence_bert_config.json").get("max_seq_length")
        settings = {"model_max_length": stated} if stated is not None else {}
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(folder, **settings)
        # A folder may state a length beyond the maximum in the config where positions are computed.
        limit = max_positions(self.model.config) if stated is None else learned_positions(self.model)
        self.max_length = _at_most(int(self.tokenizer.model_max_length), limit)

    @torch.inference_mode()
    def encode(self, texts: list[str]) -> torch.Tensor:
        """Return one normalized vector per text, all computed in one forward pass."""
        features = self._features(texts).to(self.device)
        states = self.model(**features).last_hidden_state  # (texts, tokens, width)
        mask = features["attention_mask"].unsqueeze(-1).to(states.dtype)
        # Sums in float32, as sentence-transformers computes them.
        total = (states * mask).sum(dim=1, dtype=torch.float32)
        mean = total / mask.sum(dim=1, dtype=torch.float32).clamp(min=1e-9)
        return normalize(mean.to(states.dtype), dim=1)

    def count_tokens(self, texts: list[str]) -> int:
        """Return the number of tokens that the model reads, without padding."""
        return int(self._features(texts)["attention_mask"].sum())

    def _features(self, texts: list[str]) -> Any:
        return self.tokenizer(texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt")


class SentenceTransformersEncoder:
    """Any folder that sentence-transformers can open."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Load the folder."""
        self.model = load_sentence_encoder(
            library("model").SentenceTransformer, folder, device=str(device), model_kwargs={"dtype": dtype}
        )
        self.tokenizer, network = self.model.tokenizer, self.model.transformers_model
        self.max_length = _at_most(self.model.max_seq_length, None if network is None else learned_positions(network))
        if self.max_length != self.model.max_seq_length:
            # sentence-transformers itself would pass 514 tokens to a RoBERTa that has positions for 512.
            self.model.max_seq_length = self.max_length

    def encode(self, texts: list[str]) -> torch.Tensor:
        """Return one normalized vector per text, all computed in one forward pass."""
        vectors: torch.Tensor = self.model.encode(
            texts, batch_size=len(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_tensor=True
        )
        return vectors

    def count_tokens(self, texts: list[str]) -> int:
        """Return the number of tokens that the model reads, without padding."""
        features = self.model.preprocess(texts)
        return int(features["attention_mask"].sum() if "attention_mask" in features else features["input_ids"].numel())


def _at_most(length: int | None, limit: int | None) -> int | None:
    """Return the smaller of two lengths, of which None is no limit."""
    return min((number for number in (length, limit) if number is not None), default=None)


def is_mean_pooled(folder: Path) -> bool:
    """Return True if a folder is a plain encoder with mean pooling and nothing else that changes its vectors."""
    config = _read(folder / "config.json")
    if config.get("model_type") not in _PLAIN or "auto_map" in config or (folder / "adapter_config.json").is_file():
        return False
    settings = _read(folder / "config_sentence_transformers.json")
    if settings.get("default_prompt_name") or settings.get("truncate_dim"):
        return False
    transformer = _read(folder / "sentence_bert_config.json")
    if transformer.keys() - {"max_seq_length", "do_lower_case"} or transformer.get("do_lower_case"):
        return False
    return not (folder / "modules.json").is_file() or _is_mean_chain(folder)


def _is_mean_chain(folder: Path) -> bool:
    """Return True if modules.json lists a transformer, mean pooling and, optionally, normalization."""
    modules = parse_json(folder / "modules.json")
    names = [str(module["type"]).rpartition(".")[2] for module in modules]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
        return False
    pooling = _read(folder / modules[1]["path"] / "config.json")
    if "pooling_mode" in pooling:
        return bool(pooling["pooling_mode"] == "mean")
    # The format before sentence-transformers 6: one flag per mode.
    return [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value] == [
        "pooling_mode_mean_tokens"
    ]


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
