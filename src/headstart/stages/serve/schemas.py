"""The bodies of requests and replies, from which the OpenAPI page is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr

Name = Annotated[StrictStr, Field(min_length=1, max_length=256)]
Input = StrictStr | list[StrictStr]
"""A text, or a list of texts: two texts for a task on pairs, words for a task that labels words."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class TaskRequest(_Request):
    """Inputs for a task that the path names."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["In the beginning was the word."]}]})

    inputs: list[Input] = Field(
        description="one entry per row: a text, a pair of texts, or a list of words, as the task reads them"
    )
    top_k: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = Field(
        None, description="number of labels in `scores`"
    )


class ClassifyRequest(TaskRequest):
    """Inputs for a classification task."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"task": "sentiment", "inputs": ["A fine film.", "Not for me."], "top_k": 2}]}
    )

    task: Name


class EmbeddingRequest(_Request):
    """A request as OpenAI's clients send it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "sentences", "input": ["a sentence", "another one"]}]}
    )

    model: Name
    input: StrictStr | list[StrictStr]
    encoding_format: Literal["float", "base64"] = "float"
    user: StrictStr | None = Field(None, max_length=256, description="accepted and ignored")


class RerankRequest(_Request):
    """A question and the texts to be ranked by their relevance for it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "relevance", "query": "a question", "texts": ["one", "another"]}]}
    )

    model: Name
    query: StrictStr
    texts: list[StrictStr]
    return_text: Annotated[bool, Field(strict=True)] = False


class SearchRequest(_Request):
    """A question to an index."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"query": "Who wrote the first program?", "k": 3}]})

    query: StrictStr
    k: Annotated[int, Field(strict=True, ge=1, le=1_000)] = Field(5, description="number of passages")
    index: Name | None = Field(None, description="name of the index; not needed if there is only one")


class Reply(BaseModel):
    """What every reply of a task says."""

    task: str
    model_hash: str = Field(description="content hash of the folder that answered, sha256:…")
    results: list[dict[str, Any]]
    tokens: int = Field(description="tokens computed, without padding")


class TaskFacts(BaseModel):
    """A task that can be asked for."""

    name: str
    model_hash: str
    kind: str
    adaptation: str
    labels: list[Any]
    inputs: list[str] = Field(description="what one input consists of")
    max_length: int = Field(description="tokens to which inputs are truncated")
    body: str | None = Field(description="content hash of the checkpoint that it was fine-tuned from")
    sharing: str | None = Field(description="how it shares its body; null if it is not in memory")


class TaskList(BaseModel):
    """All tasks."""

    tasks: list[TaskFacts]


class Embedding(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingReply(BaseModel):
    """A reply as OpenAI's clients read it, with the content hash of the model."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    model_hash: str
    usage: dict[str, int]


class Ranked(BaseModel):
    """One text of a ranking."""

    index: int
    score: float
    text: str | None = None


class Passage(BaseModel):
    """A passage that was found."""

    score: float = Field(description="cosine of the question's vector and the passage's")
    place: str = Field(description="document and line of the passage")
    text: str


class SearchReply(BaseModel):
    """The passages nearest to a question, the best first."""

    index: str
    index_hash: str = Field(description="content hash of the index, sha256:…")
    model_hash: str = Field(description="content hash of the model that embeds the question, sha256:…")
    passages: list[Passage]


class IndexFacts(BaseModel):
    """An index that can be searched."""

    name: str
    index_hash: str
    model_hash: str
    passages: int


class IndexList(BaseModel):
    """All indexes."""

    indexes: list[IndexFacts]


class ErrorReply(BaseModel):
    """A refused request; `error.message` is a sentence."""

    error: dict[str, Any]
