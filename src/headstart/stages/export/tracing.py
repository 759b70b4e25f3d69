"""Tracing of a network into one graph, by transformers' exporters."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.export import Dim
from transformers import PreTrainedModel

from headstart.checkpoint.input_length import max_positions
from headstart.checkpoint.silence import silenced
from headstart.core.errors import ArtifactError, first_line
from headstart.stages.export.source import Inputs, Source


def trace(exporter: Any, config_class: Any, source: Source) -> Any:
    """Return the exported graph of a model's network, for any number of rows and tokens.

    Args:
        exporter: an exporter of transformers.
        config_class: the class of its config.
        source: the model.
    """
    inputs, network = source.traced_inputs(), source.network(is_whole=False)
    network = network.cpu().eval()
    failure: Exception | None = None
    with quiet():
        for shapes in (_shapes(inputs, network), None):
            config = config_class(dynamic=True) if shapes is None else config_class(dynamic_shapes=shapes)
            try:
                return exporter.export(network, dict(inputs), config)
            # torch and the converters raise whatever an unsupported operation leads to.
            except Exception as error:
                failure = error
    assert failure is not None
    raise ArtifactError(
        f"the network {type(network).__name__} cannot be converted ({first_line(failure)})",
        do="Use `--to merged`",
    ) from failure


def save(exported: Any, folder: Path, source: Source) -> Path:
    """Save a graph with its config and the tokenizer."""
    with quiet():
        exported.save_pretrained(folder)
    source.save_tokenizer(folder)
    return folder


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the reports of the converters off the screen."""
    disabled, handler = logging.root.manager.disable, logging.NullHandler()
    logging.disable(logging.WARNING)
    # onnxruntime logs through the root logger, which would install a handler that prints every message of Headstart.
    logging.root.addHandler(handler)
    try:
        with silenced(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.removeHandler(handler)
        logging.disable(disabled)


def _shapes(inputs: Inputs, network: PreTrainedModel) -> dict[str, Any] | None:
    """Return one symbol for the rows of all inputs and one for their tokens; None leaves all dimensions to torch.

    Left to torch, the rows of the attention mask get a symbol of their own.
    """
    if any(tensor.ndim != 2 for tensor in inputs.values()):
        return None
    rows = Dim("batch")
    tokens = Dim("sequence", max=max_positions(network.config) or 2**20)
    return {name: {0: rows, 1: tokens} for name in inputs}
