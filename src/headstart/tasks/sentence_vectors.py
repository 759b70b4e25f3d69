"""Sentence vectors by sentence-transformers: its pooling, its losses, and the files by which it knows a folder."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from headstart.core.data import Batch, InputSpec
from headstart.core.errors import ResourceError

Vectors = Sequence[torch.Tensor]
"""The vectors of a batch's texts, one tensor of shape (rows, width) for each text of a row."""
STATIC = "static"
_PACKAGE = "sentence_transformers.sentence_transformer"


def library(module: str) -> Any:
    """Import a module of sentence-transformers' single-vector models, or say how to get it."""
    try:
        return importlib.import_module(f"{_PACKAGE}.{module}")
    except ImportError as error:
        raise ResourceError(
            f"sentence-transformers is missing ({error})",
            allowed="Sentence embeddings are pooled, trained and saved by it",
            do="pip install 'headstart[search]'",
        ) from error


def pooled(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Return one vector for each row of token states; static ones, too, are averaged."""
    mode = "mean" if pooling == STATIC else pooling
    pool = library("modules").Pooling(states.shape[-1], mode)
    vectors: torch.Tensor = pool({"token_embeddings": states, "attention_mask": mask})["sentence_embedding"]
    return vectors


def cosine(vectors: Vectors, batch: Batch) -> torch.Tensor:
    """Return the squared distance of each pair's cosine from its score, on average."""
    loss: torch.Tensor = (
        library("losses").CosineSimilarityLoss(None).compute_loss_from_embeddings(list(vectors), batch["labels"])
    )
    return loss


def triplet(vectors: Vectors, margin: float) -> torch.Tensor:
    """Return by how much each negative is not further from its anchor than the positive and a margin, on average."""
    loss: torch.Tensor = (
        library("losses").TripletLoss(None, triplet_margin=margin).compute_loss_from_embeddings(list(vectors), None)
    )
    return loss


def ranking(vectors: Vectors, batch: Batch, scale: float) -> torch.Tensor:
    """Return the cross-entropy of finding each row's second text among those of the whole batch, on average.

    `batch["numbers"]` numbers the texts of a row, equal ones alike. A text that stands in the batch twice would be the
    right answer and a wrong one at once; so would two answers to one question: neither counts as a wrong one.
    """
    numbers = batch["numbers"]
    rows, texts = numbers.shape
    answers = numbers[:, 1:].T.reshape(-1)
    askers = numbers[:, 0].repeat(texts - 1)
    repeated = numbers[:, 1:2] == answers
    repeated[:, :rows] |= numbers[:, :1] == askers[:rows]
    repeated.fill_diagonal_(False)
    similarity = importlib.import_module("sentence_transformers.util").cos_sim

    def without_repeated(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = similarity(ours, theirs)
        return found.masked_fill(repeated, -torch.inf)

    measure = library("losses").MultipleNegativesRankingLoss(None, scale=scale, similarity_fct=without_repeated)
    loss: torch.Tensor = measure.compute_loss_from_embeddings(list(vectors), None)
    return loss


def softmax(vectors: Vectors, batch: Batch, head: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the cross-entropy of each pair's label from (u, v, |u - v|), on average.

    sentence-transformers' own holds its head inside the loss and embeds by itself; ours must stand in the model, where
    the loop steps and saves it.
    """
    first, second = vectors
    return torch.nn.functional.cross_entropy(
        head(torch.cat([first, second, (first - second).abs()], dim=-1)), batch["labels"]
    )


def write_modules(model: PreTrainedModel, reading: InputSpec, pooling: str, folder: Path) -> None:
    """Write beside saved weights what makes `SentenceTransformer(folder)` give the vectors that were trained.

    A context-free model is a table of token vectors in a folder of its own, so that the whole network stays loadable.
    """
    modules = library("modules")
    if pooling == STATIC:
        embeddings: Any = model.get_input_embeddings()
        table = embeddings.weight.detach().cpu().float().contiguous()
        chain = [modules.StaticEmbedding(reading.tokenizer, embedding_weights=table)]
        folders = ["0_StaticEmbedding"]
    else:
        width = model.config.hidden_size
        chain, folders = [None, modules.Pooling(width, pooling)], ["", "1_Pooling"]
        shape = {"max_seq_length": reading.max_length, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")
    listed = []
    for place, (module, name) in enumerate(zip(chain, folders, strict=True)):
        kind = modules.Transformer if module is None else type(module)
        listed.append(
            {"idx": place, "name": str(place), "path": name, "type": f"{kind.__module__}.{kind.__qualname__}"}
        )
        if module is not None:
            (folder / name).mkdir(exist_ok=True)
            module.save(str(folder / name))
    (folder / "modules.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
