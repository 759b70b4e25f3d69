"""OpenVINO: a graph for Intel's runtime."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from headstart.stages.export.format import FOLDER, ExportedNetwork, ExportFormat, Opened
from headstart.stages.export.formats.onnx import reading_of
from headstart.stages.export.source import Source
from headstart.stages.export.tracing import save, trace

GRAPH = "openvino_model.xml"


class OpenVino(ExportFormat):
    """An OpenVINO graph for any number of rows and tokens, for Intel's runtime."""

    packages: ClassVar[Sequence[str]] = ("openvino",)

    def write(self, source: Source, work: Path) -> list[Path]:
        """Trace the network and save the graph, its config and the tokenizer."""
        disable_telemetry()
        from transformers.exporters import OpenVINOConfig, OpenVINOExporter

        return [save(trace(OpenVINOExporter(), OpenVINOConfig, source), work / self.settings.to, source)]

    def open(self, folder: Path, source: Source, threads: int) -> Opened:
        """Compile the graph for the CPU."""
        return Opened(OpenVinoNetwork(folder / GRAPH, threads), source.task, source.spec)

    def usage(self, source: Source) -> str:
        """Return lines for OpenVINO with the tokenizer."""
        return (
            "import json\n\nimport openvino\nfrom transformers import AutoTokenizer\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{FOLDER}")\n'
            f'graph = openvino.Core().compile_model("{FOLDER}/{GRAPH}", "CPU")\n'
            'batch = tokenizer(["a text", "another"], padding=True, truncation=True, return_tensors="np")\n'
            "names = [value.get_any_name() for value in graph.inputs]\n"
            "output = graph({name: batch[name] for name in names})[0]\n" + reading_of(source.task)
        )


def disable_telemetry() -> None:
    """Keep OpenVINO's converter from reporting its use over the network, which it does by default.

    It reports through the package openvino_telemetry, and does nothing where that cannot be imported.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


class OpenVinoNetwork(ExportedNetwork):
    """A graph in OpenVINO, on the CPU."""

    def __init__(self, path: Path, threads: int) -> None:
        """Compile a graph for a fixed number of threads."""
        super().__init__()
        disable_telemetry()
        import openvino

        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.graph = openvino.Core().compile_model(str(path), "CPU", settings)
        self.inputs = [value.get_any_name() for value in self.graph.inputs]
        self.outputs = [value.get_any_name() for value in self.graph.outputs]

    def compute(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Run the graph."""
        values = self.graph({name: inputs[name] for name in self.inputs})
        return {name: np.array(values[i]) for i, name in enumerate(self.outputs)}
