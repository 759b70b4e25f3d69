"""Static vectors: one vector per token, in the format of model2vec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from headstart.core.data import InputSpec
from headstart.core.errors import ArtifactError
from headstart.stages.export.format import FOLDER, ExportedNetwork, ExportFormat, Opened
from headstart.stages.export.source import Source
from headstart.stages.runs.token_batches import batch_tokens, run_in_token_batches
from headstart.tasks.embed import Embed
from headstart.tasks.sentence_vectors import STATIC

Floats = npt.NDArray[np.float32]
_WIDTH = 256
_FREQUENCY = 1e-4
"""The constant of the weights: a token of this frequency gets half the weight of a rare one."""


class Static(ExportFormat):
    """One vector per token, distilled from a sentence encoder, in the format of model2vec."""

    packages: ClassVar[Sequence[str]] = ("model2vec",)

    def write(self, source: Source, work: Path) -> list[Path]:
        """Run the encoder on every token of the vocabulary alone, and save the vectors with the tokenizer."""
        from model2vec import StaticModel

        if not isinstance(source.task, Embed):
            raise ArtifactError(
                f"{source.folder} is a model for `{source.facts.recipe['task']['kind']}`",
                allowed="Static vectors are distilled from a model for `embed`",
                do="Use `--to int8` for a small and fast model",
            )
        tokenizer: Any = source.spec.tokenizer
        vectors = _vectors(source, len(tokenizer)) * _weights(len(tokenizer))
        for name in ("unk_token_id", "pad_token_id"):
            if (token := getattr(tokenizer, name)) is not None:
                vectors[token] = 0.0
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        config = {"model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": vectors.shape[1]}
        model = StaticModel(vectors, backend, config, normalize=True, max_length=source.spec.max_length)
        folder = work / self.settings.to
        model.save_pretrained(folder)
        source.save_tokenizer(folder)
        return [folder]

    def open(self, folder: Path, source: Source, threads: int) -> Opened:
        """Read the vectors; the mean over a text's tokens is what model2vec computes, up to the length."""
        assert isinstance(source.task, Embed)
        task = Embed(Embed.Config.model_validate({**source.task.config.model_dump(), "pooling": STATIC}))
        task.restore(source.task.state())
        spec = InputSpec(source.spec.tokenizer, source.spec.family, source.spec.max_length)
        return Opened(StaticNetwork(load_file(folder / "model.safetensors")["embeddings"]), task, spec)

    def usage(self, source: Source) -> str:
        """Return lines for model2vec."""
        return (
            "from model2vec import StaticModel\n\n"
            f'model = StaticModel.from_pretrained("{FOLDER}")\n'
            'vectors = model.encode(["a text", "another"])\n'
        )


class StaticNetwork(ExportedNetwork):
    """A table of token vectors."""

    def __init__(self, vectors: torch.Tensor) -> None:
        """Keep the table."""
        super().__init__()
        self.table = torch.nn.Embedding(*vectors.shape)
        self.table.weight = torch.nn.Parameter(vectors.float(), requires_grad=False)

    def get_input_embeddings(self) -> torch.nn.Module:
        """Return the table."""
        return self.table


def _vectors(source: Source, count: int) -> Floats:
    """Return the vector of each token between the special tokens, reduced to its principal components."""
    task = source.task
    before, after = _special_tokens(source.spec.tokenizer)
    features = [{"input_ids": [[*before, token, *after]], "example": token} for token in range(count)]
    model = source.model.model
    outputs = run_in_token_batches(model, task, features, source.spec, batch_tokens(model.device))
    states = np.stack(outputs).astype(np.float32)
    centered = states - states.mean(axis=0)
    _, directions = np.linalg.eigh(centered.T @ centered)
    return centered @ directions[:, ::-1][:, :_WIDTH]


def _special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that the tokenizer puts before and after a text."""
    whole, text = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    start = next(i for i in range(len(whole)) if whole[i : i + len(text)] == text)
    return whole[:start], whole[start + len(text) :]


def _weights(count: int) -> Floats:
    """Return the weight of each token: rare ones count more, with frequencies by Zipf's law.

    The vocabulary of a tokenizer is ordered by frequency, roughly.
    Paper: Arora et al. 2017, smooth inverse frequency
    """
    frequency = 1 / np.arange(2, count + 2)
    frequency /= frequency.sum()
    return (_FREQUENCY / (_FREQUENCY + frequency)).astype(np.float32)[:, None]
