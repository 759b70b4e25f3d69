"""vLLM: a folder that `vllm serve` opens."""

from __future__ import annotations

from pathlib import Path

from headstart.core import registry
from headstart.core.errors import ArtifactError
from headstart.stages.export.formats.merged import Merged
from headstart.stages.export.source import Source


class Vllm(Merged):
    """A folder that `vllm serve` opens: whole weights of one of transformers' networks."""

    def write(self, source: Source, work: Path) -> list[Path]:
        """Save the network, if vLLM can know it."""
        folders = super().write(source, work)
        kind = source.network().config.model_type
        if kind in registry.NETWORKS:
            raise ArtifactError(
                f"{source.folder} is a network of Headstart's own ({kind})",
                allowed="vLLM runs networks of transformers",
                do="Use `--to onnx`",
            )
        return folders

    def usage(self, source: Source) -> str:
        """Return a request to the server."""
        return (
            "# vllm serve path/to/this/folder --port 8000\n"
            "import json\nfrom urllib.request import Request, urlopen\n\n"
            f"{_request(source.task.auto_class(source.spec.family))}"
            'request = Request(f"http://127.0.0.1:8000{route}", json.dumps(body).encode(),\n'
            '                  {"Content-Type": "application/json"})\n'
            "json.load(urlopen(request))\n"
        )


def _request(head: str) -> str:
    """Return the route and the body of a request for a head."""
    model = '"model": "path/to/this/folder"'
    if head == "AutoModelForSequenceClassification":
        return f'route, body = "/classify", {{{model}, "input": ["a text"]}}\n'
    if head == "AutoModel":
        return f'route, body = "/v1/embeddings", {{{model}, "input": ["a text"]}}\n'
    if head in ("AutoModelForTokenClassification", "AutoModelForQuestionAnswering"):
        return f'route, body = "/pooling", {{{model}, "input": ["a text"]}}\n'
    return f'route, body = "/v1/completions", {{{model}, "prompt": "a text", "max_tokens": 64}}\n'
