"""ONNX: one graph with its weights, for onnxruntime and other runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from headstart.core.contracts import Task
from headstart.stages.export.format import FOLDER, ExportedNetwork, ExportFormat, Opened
from headstart.stages.export.source import Source
from headstart.stages.export.tracing import save, trace
from headstart.tasks.embed import Embed
from headstart.tasks.multi_label import MultiLabel
from headstart.tasks.tag import Tag

GRAPH = "model.onnx"


class Onnx(ExportFormat):
    """An ONNX graph for any number of rows and tokens, as onnxruntime and other runtimes read it."""

    packages: ClassVar[Sequence[str]] = ("onnx", "onnxscript", "onnxruntime")

    def write(self, source: Source, work: Path) -> list[Path]:
        """Trace the network and save the graph, its config and the tokenizer."""
        return [save(self.graph(source), work / self.settings.to, source)]

    def graph(self, source: Source) -> Any:
        """Return the traced graph."""
        from transformers.exporters import OnnxConfig, OnnxExporter

        return trace(OnnxExporter(), OnnxConfig, source)

    def open(self, folder: Path, source: Source, threads: int) -> Opened:
        """Open the graph with onnxruntime."""
        return Opened(OnnxNetwork(folder / GRAPH, threads), source.task, source.spec)

    def usage(self, source: Source) -> str:
        """Return lines for onnxruntime with the tokenizer."""
        return (
            "import json\n\nimport onnxruntime\nfrom transformers import AutoTokenizer\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{FOLDER}")\n'
            f'graph = onnxruntime.InferenceSession("{FOLDER}/{GRAPH}")\n'
            'batch = tokenizer(["a text", "another"], padding=True, truncation=True, return_tensors="np")\n'
            "names = [value.name for value in graph.get_inputs()]\n"
            "output = graph.run(None, {name: batch[name] for name in names})[0]\n" + reading_of(source.task)
        )


class OnnxNetwork(ExportedNetwork):
    """A graph in onnxruntime, on the CPU."""

    def __init__(self, path: Path, threads: int) -> None:
        """Open a graph with a fixed number of threads, which do not spin between calls."""
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        # Spinning threads would slow down the model that is measured next.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        self.graph = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self.graph.get_inputs()]
        self.outputs = [value.name for value in self.graph.get_outputs()]

    def compute(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Run the graph."""
        values = self.graph.run(self.outputs, {name: inputs[name] for name in self.inputs})
        return dict(zip(self.outputs, values, strict=True))


def reading_of(task: Task) -> str:
    """Return lines of Python that turn the first output of a graph into labels or vectors."""
    if isinstance(task, Embed):
        if task.config.pooling != "mean":
            return ""
        return (
            'mask = batch["attention_mask"][..., None]\n'
            "vectors = (output * mask).sum(1) / mask.sum(1)\n"
        )  # fmt: skip
    if not task.labels:
        return ""
    labels = f'labels = json.load(open("{FOLDER}/config.json"))["id2label"]\n'
    if isinstance(task, Tag):
        return labels + "[[labels[str(i)] for i in tokens.argmax(-1)] for tokens in output]  # one for each token\n"
    if isinstance(task, MultiLabel):
        logit = np.log(task.threshold / (1 - task.threshold))
        return labels + f"[[labels[str(i)] for i in (row >= {logit:.4g}).nonzero()[0]] for row in output]\n"
    return labels + "[labels[str(row.argmax())] for row in output]\n"
