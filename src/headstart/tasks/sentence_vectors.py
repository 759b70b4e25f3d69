"""Pooling, losses and model files of sentence-transformers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from headstart.core.data import Batch, InputSpec
from headstart.core.errors import ResourceError
from headstart.core.extras import install_command
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Vectors: TypeAlias = "Sequence[torch.Tensor]"
"""The vectors of a batch's texts, one tensor of shape (rows, width) for each text of a row."""
STATIC = "static"
_PACKAGE = "sentence_transformers.sentence_transformer"


def library(module: str) -> Any:
    """Import a module of sentence-transformers' single-vector models, or raise with the install command."""
    try:
        return importlib.import_module(f"{_PACKAGE}.{module}")
    except ImportError as error:
        raise ResourceError(
            f"sentence-transformers is not installed ({error})",
            allowed="Sentence embeddings need it for pooling, training and saving",
            do=install_command("search"),
        ) from error


def pooled(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Pool the token states of each row into one vector; static pooling is the mean."""
    mode = "mean" if pooling == STATIC else pooling
    pool = library("modules").Pooling(states.shape[-1], mode)
    vectors: torch.Tensor = pool({"token_embeddings": states, "attention_mask": mask})["sentence_embedding"]
    return vectors


def cosine(vectors: Vectors, batch: Batch) -> torch.Tensor:
    """Return the mean squared error between the cosine and the score of each pair."""
    loss: torch.Tensor = (
        library("losses").CosineSimilarityLoss(None).compute_loss_from_embeddings(list(vectors), batch["labels"])
    )
    return loss


def triplet(vectors: Vectors, margin: float) -> torch.Tensor:
    """Return the mean triplet loss: max(0, distance(a, p) - distance(a, n) + margin)."""
    loss: torch.Tensor = (
        library("losses").TripletLoss(None, triplet_margin=margin).compute_loss_from_embeddings(list(vectors), None)
    )
    return loss


def ranking(vectors: Vectors, batch: Batch, scale: float) -> torch.Tensor:
    """Return the mean cross-entropy of finding each row's second text among those of the whole batch.

    `batch["numbers"]` numbers the texts of each row; equal texts have equal numbers. A text that occurs twice in the
    batch, or a second answer to the same question, would be a false negative: both are masked.
    """
    numbers = batch["numbers"]
    rows, texts = numbers.shape
    answers = numbers[:, 1:].T.reshape(-1)
    questions = numbers[:, 0].repeat(texts - 1)
    false_negative = numbers[:, 1:2] == answers
    false_negative[:, :rows] |= numbers[:, :1] == questions[:rows]
    false_negative.fill_diagonal_(False)
    cos_sim = importlib.import_module("sentence_transformers.util").cos_sim

    def similarity(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        cosines: torch.Tensor = cos_sim(first, second)
        return cosines.masked_fill(false_negative, -torch.inf)

    ranking_loss = library("losses").MultipleNegativesRankingLoss(None, scale=scale, similarity_fct=similarity)
    loss: torch.Tensor = ranking_loss.compute_loss_from_embeddings(list(vectors), None)
    return loss


def softmax(vectors: Vectors, batch: Batch, head: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy of each pair's label, predicted from (u, v, |u - v|).

    sentence-transformers keeps the head inside its loss. Here it belongs to the model, so that the training loop
    updates and saves it.
    """
    first, second = vectors
    return torch.nn.functional.cross_entropy(
        head(torch.cat([first, second, (first - second).abs()], dim=-1)), batch["labels"]
    )


def write_modules(model: PreTrainedModel, spec: InputSpec, pooling: str, folder: Path) -> None:
    """Write the files with which `SentenceTransformer(folder)` loads the saved weights and gives the trained vectors.

    A static model is a table of token vectors in a subfolder, so that the whole network stays loadable.
    """
    modules = library("modules")
    if pooling == STATIC:
        embeddings: Any = model.get_input_embeddings()
        table = embeddings.weight.detach().cpu().float().contiguous()
        chain = [modules.StaticEmbedding(spec.tokenizer, embedding_weights=table)]
        folders = ["0_StaticEmbedding"]
    else:
        width = model.config.hidden_size
        chain, folders = [None, modules.Pooling(width, pooling)], ["", "1_Pooling"]
        settings = {"max_seq_length": spec.max_length, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    listed = []
    for i, (module, name) in enumerate(zip(chain, folders, strict=True)):
        kind = modules.Transformer if module is None else type(module)
        listed.append({"idx": i, "name": str(i), "path": name, "type": f"{kind.__module__}.{kind.__qualname__}"})
        if module is not None:
            (folder / name).mkdir(exist_ok=True)
            module.save(str(folder / name))
    (folder / "modules.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
