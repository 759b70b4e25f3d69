"""The routes, as a FastAPI application."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from headstart.core import artifact
from headstart.core.log import logger
from headstart.core.pages.page import render
from headstart.stages.serve import answers
from headstart.stages.serve.guard import NOTES
from headstart.stages.serve.refusals import Refusal
from headstart.stages.serve.schemas import (
    ClassifyRequest,
    Embedding,
    EmbeddingReply,
    EmbeddingRequest,
    ErrorReply,
    IndexFacts,
    IndexList,
    Passage,
    Ranked,
    Reply,
    RerankRequest,
    SearchReply,
    SearchRequest,
    TaskFacts,
    TaskList,
    TaskRequest,
)
from headstart.stages.serve.service import ClientGone, Computed, Service

# This module has no `from __future__ import annotations`: FastAPI reads the types of routes inside a function.

_PAGE = Path(__file__).parent / "page.html.j2"
_CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
_HASH = "X-Headstart-Model"
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply} for status in (400, 401, 404, 413, 422, 429, 503, 504)
}


def build(service: Service) -> FastAPI:
    """Return the application that answers for a service; the service starts and stops with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.stop()

    app = FastAPI(
        title="Headstart", version=artifact.versions().get("headstart", "unknown"), lifespan=lifespan,
        docs_url=None, redoc_url=None,
        description="One backbone, many tasks. Every reply names the content hash of the model that answered.",
        responses=_REFUSALS,
    )  # fmt: skip
    _add_errors(app)
    _add_state(app, service)
    _add_tasks(app, service)
    _add_embeddings(app, service)
    _add_search(app, service)
    return app


def _add_errors(app: FastAPI) -> None:
    """Answer every error with a status and a sentence, never with a part of the request."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> JSONResponse:
        return JSONResponse(refusal.body(), refusal.status, refusal.headers())

    @app.exception_handler(ClientGone)
    async def left(request: Request, _: ClientGone) -> Response:
        request.scope[NOTES]["status"] = 499
        return Response(status_code=499)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        refusal = _explain(error)
        return JSONResponse(refusal.body(), refusal.status)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> JSONResponse:
        sentences = {
            404: "There is no such route. GET /openapi.json lists the routes.",
            405: "This route does not take this method. GET /openapi.json lists the routes.",
            400: "The body is not valid JSON in UTF-8, or it is nested too deeply.",
        }
        message = sentences.get(error.status_code, "The request cannot be answered.")
        return JSONResponse(Refusal(error.status_code, message).body(), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        logger.error("a request failed with %s", type(error).__name__)
        return JSONResponse(Refusal(500, "Internal error, please report it.").body(), 500)


def _explain(error: RequestValidationError) -> Refusal:
    """Return the first problem of a body as a sentence; only names of fields that exist are repeated."""
    problem = error.errors()[0]
    if problem["type"] == "json_invalid":
        return Refusal(400, "The body is not valid JSON.")
    # The first part is `body`; numbers are places in a list, and the others may be chosen by the client.
    known = (
        "task", "inputs", "model", "input", "query", "texts", "top_k", "encoding_format", "user", "return_text", "k",
        "index",
    )  # fmt: skip
    place = ".".join(str(part) for part in problem["loc"][1:] if part in known or isinstance(part, int))
    if problem["type"] == "extra_forbidden":
        return Refusal(422, "The body has a field that this route does not know. GET /openapi.json lists the fields.")
    if problem["type"] == "model_attributes_type":
        return Refusal(422, "The body is not a JSON object. Send one with the header Content-Type: application/json.")
    return Refusal(422, f"The body is not valid at `{place or 'its top'}`: {problem['msg'].rstrip('.')}.")


def _add_state(app: FastAPI, service: Service) -> None:
    """Add the routes about the server itself."""

    @app.get("/health", summary="Whether the process runs; needs no key")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", summary="Whether requests are answered at full speed")
    async def ready() -> dict[str, str]:
        if not service.is_ready:
            raise Refusal(503, "The server is shutting down." if service.draining else "The server is warming up.", 1)
        return {"status": "ready"}

    @app.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def metrics() -> Response:
        return Response(service.measure(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(render(_PAGE), headers={"Content-Security-Policy": _CONTENT_POLICY})


def _add_tasks(app: FastAPI, service: Service) -> None:
    """Add the routes of classification and tagging."""

    def facts(name: str) -> TaskFacts:
        entry = service.catalog.entry(name)
        slot = next((slot for slot in service.catalog.slots() if slot.name == name), None)
        sharing = None if slot is None else slot.sharing
        return TaskFacts(name=entry.name, model_hash=f"sha256:{entry.hash}", sharing=sharing, **entry.facts)

    async def predict(name: str, body: TaskRequest, request: Request, response: Response) -> Reply:
        computed = await _compute(service, name, body.inputs, request, response)
        results = answers.decode(computed.slot, computed.rows, computed.outputs, body.top_k)
        return Reply(task=name, model_hash=computed.model_hash, results=results, tokens=computed.tokens)

    @app.get("/v1/tasks", summary="All tasks")
    async def tasks() -> TaskList:
        return TaskList(tasks=[facts(name) for name in sorted(service.catalog.entries)])

    @app.get("/v1/tasks/{name}", summary="One task")
    async def task(name: str, response: Response) -> TaskFacts:
        found = facts(name)
        response.headers[_HASH] = found.model_hash
        return found

    @app.post("/v1/tasks/{name}", summary="Predictions of any task")
    async def run(name: str, body: TaskRequest, request: Request, response: Response) -> Reply:
        return await predict(name, body, request, response)

    @app.post("/v1/classify", summary="Predictions of a classification task")
    async def classify(body: ClassifyRequest, request: Request, response: Response) -> Reply:
        if service.catalog.entry(body.task).facts["kind"] not in ("classify", "multi_label"):
            raise Refusal(422, "This task does not classify texts. POST /v1/tasks/{name} answers for every task.")
        return await predict(body.task, body, request, response)


def _add_embeddings(app: FastAPI, service: Service) -> None:
    """Add the routes of vectors and rankings, in the forms that other clients know."""

    @app.post("/v1/embeddings", summary="Vectors, as OpenAI's clients ask for them")
    async def embeddings(body: EmbeddingRequest, request: Request, response: Response) -> EmbeddingReply:
        if service.catalog.entry(body.model).facts["kind"] != "embed":
            raise Refusal(422, "This task gives no vectors; only models of the task `embed` do.")
        inputs = [body.input] if isinstance(body.input, str) else body.input
        computed = await _compute(service, body.model, inputs, request, response)
        data = [
            Embedding(index=i, embedding=_vector(vector, body.encoding_format))
            for i, vector in enumerate(computed.outputs)
        ]
        usage = {"prompt_tokens": computed.tokens, "total_tokens": computed.tokens}
        return EmbeddingReply(data=data, model=body.model, model_hash=computed.model_hash, usage=usage)

    @app.post("/rerank", summary="Texts ranked for a question; the header X-Headstart-Model names the model")
    async def rerank(body: RerankRequest, request: Request, response: Response) -> list[Ranked]:
        facts = service.catalog.entry(body.model).facts
        if not body.texts:
            raise Refusal(422, "The request has no texts. Send at least one.")
        if facts["kind"] == "embed":
            computed = await _compute(service, body.model, [body.query, *body.texts], request, response)
            scores = answers.cosines(computed.outputs)
        elif facts["kind"] == "classify" and len(facts["inputs"]) == 2:
            pairs = [[body.query, text] for text in body.texts]
            computed = await _compute(service, body.model, pairs, request, response)
            scores = answers.relevance(computed.slot, computed.rows, computed.outputs)
        else:
            raise Refusal(422, "This task ranks nothing; models of `embed`, and of `classify` on pairs of texts, do.")
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        return [Ranked(index=i, score=scores[i], text=body.texts[i] if body.return_text else None) for i in order]


def _add_search(app: FastAPI, service: Service) -> None:
    """Add the routes of finished indexes."""

    @app.get("/v1/indexes", summary="All indexes")
    async def indexes() -> IndexList:
        return IndexList(
            indexes=[
                IndexFacts(
                    name=index.name, index_hash=f"sha256:{index.hash}", model_hash=f"sha256:{index.model}",
                    passages=index.passages,
                )
                for index in service.indexes.entries.values()
            ]
        )  # fmt: skip

    @app.post("/search", summary="The passages of an index that are nearest to a question")
    async def search(body: SearchRequest, request: Request, response: Response) -> SearchReply:
        index = service.indexes.entry(body.index)
        notes = request.scope.setdefault(NOTES, {})
        notes["task"] = index.name
        checked = answers.require_inputs({"kind": "embed"}, [body.query], 1, service.settings.max_characters)
        found = await service.search(index, checked[0], min(body.k, index.passages), request.receive)
        model = f"sha256:{index.model}"
        notes |= {"model": model, "rows": 1}
        response.headers[_HASH] = model
        return SearchReply(
            index=index.name, index_hash=f"sha256:{index.hash}", model_hash=model,
            passages=[Passage(**passage) for passage in found],
        )  # fmt: skip


async def _compute(service: Service, name: str, inputs: Any, request: Request, response: Response) -> Computed:
    """Check and compute the inputs of a request; note what the access log says about it."""
    entry = service.catalog.entry(name)
    notes = request.scope.setdefault(NOTES, {})
    notes["task"] = name
    settings = service.settings
    checked = answers.require_inputs(entry.facts, inputs, settings.max_inputs, settings.max_characters)
    computed = await service.compute(name, checked, request.receive)
    notes |= {"model": computed.model_hash, "rows": len(computed.rows), "tokens": computed.tokens}
    response.headers[_HASH] = computed.model_hash
    return computed


def _vector(vector: Any, encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
    return [float(value) for value in vector]
