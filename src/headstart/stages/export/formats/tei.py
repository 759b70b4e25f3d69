"""TEI: a folder for Hugging Face's text-embeddings-inference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headstart.core.errors import ArtifactError
from headstart.stages.export.formats.merged import Merged
from headstart.stages.export.source import Source
from headstart.tasks.classify import Classify
from headstart.tasks.embed import Embed

_MODEL_TYPES = (
    "bert", "camembert", "distilbert", "gte", "modernbert", "mpnet", "qwen2", "qwen3", "roberta", "xlm-roberta",
)  # fmt: skip
"""Networks that text-embeddings-inference runs."""
_POOLING_FIELDS = {
    "cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken",
}  # fmt: skip
"""Modes of pooling, and the ends of the fields that older versions of sentence-transformers had for them."""


class Tei(Merged):
    """A folder for text-embeddings-inference, with the fields of config.json that it still requires."""

    def write(self, source: Source, work: Path) -> list[Path]:
        """Save the network, and add the fields that transformers 5 no longer writes."""
        if not isinstance(source.task, Embed | Classify):
            kind = source.facts.recipe["task"]["kind"]
            raise ArtifactError(
                f"{source.folder} is a model for `{kind}`",
                allowed="text-embeddings-inference serves sentence embeddings (`embed`) and classifiers (`classify`)",
                do="Choose another format",
            )
        folders = super().write(source, work)
        path = folders[0] / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["model_type"] not in _MODEL_TYPES:
            raise ArtifactError(
                f"{source.folder} is a network of the type {config['model_type']!r}",
                allowed=f"text-embeddings-inference runs: {', '.join(_MODEL_TYPES)}",
                do="Use `--to onnx`",
            )
        path.write_text(json.dumps(with_legacy_fields(config), indent=2) + "\n", encoding="utf-8")
        for pooling in folders[0].glob("*_Pooling/config.json"):
            settings = json.loads(pooling.read_text(encoding="utf-8"))
            pooling.write_text(json.dumps(legacy_pooling(settings), indent=2) + "\n", encoding="utf-8")
        return folders

    def usage(self, source: Source) -> str:
        """Return a request to the server."""
        route = "embed" if isinstance(source.task, Embed) else "predict"
        return (
            "# text-embeddings-router --model-id path/to/this/folder --port 8080\n"
            "import json\nfrom urllib.request import Request, urlopen\n\n"
            'body = json.dumps({"inputs": "a text"}).encode()\n'
            f'request = Request("http://127.0.0.1:8080/{route}", body, {{"Content-Type": "application/json"}})\n'
            "json.load(urlopen(request))\n"
        )


def legacy_pooling(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a pooling module with one field per mode, as sentence-transformers wrote it before 6."""
    if "pooling_mode" not in settings:
        return settings
    mode = settings["pooling_mode"]
    modes = [mode] if isinstance(mode, str) else mode
    legacy = {f"pooling_mode_{field}": name in modes for name, field in _POOLING_FIELDS.items()}
    dimension = settings.get("embedding_dimension", settings.get("word_embedding_dimension"))
    return {"word_embedding_dimension": dimension, **legacy, "include_prompt": settings.get("include_prompt", True)}


def with_legacy_fields(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the fields of ModernBERT that transformers 5 replaced by `rope_parameters`."""
    if config["model_type"] != "modernbert":
        return config
    rope = config.get("rope_parameters") or {}
    layers = config.get("layer_types") or []
    full = [i for i, kind in enumerate(layers) if kind == "full_attention"]
    return {
        **config,
        "global_rope_theta": (rope.get("full_attention") or {}).get("rope_theta", 160_000.0),
        "local_rope_theta": (rope.get("sliding_attention") or {}).get("rope_theta", 10_000.0),
        "global_attn_every_n_layers": full[1] - full[0] if len(full) > 1 else max(1, len(layers)),
    }
