"""int8: an ONNX graph with weights of eight bits, for CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headstart.core.log import logger
from headstart.stages.export.formats.onnx import Onnx
from headstart.stages.export.source import Source
from headstart.stages.export.tracing import quiet, save

_CALIBRATION_ROWS = 128


class Int8(Onnx):
    """An ONNX graph with int8 weights: dynamic and static quantization are tried, and the faster one is kept."""

    def write(self, source: Source, work: Path) -> list[Path]:
        """Quantize the graph in two ways: with ranges measured at run time, and with ranges of validation rows."""
        from transformers.exporters import ExportedModel

        exported, inputs = self.graph(source), source.traced_inputs()
        component = exported.components["model"]
        folders = []
        for name, quantizer in _quantizers(source).items():
            with quiet():
                program = quantizer.quantize(component.program, dict(inputs), exported.export_format)
            parts = {"model": type(component)(program, component.metadata)}
            quantized = ExportedModel(parts, exported.export_format, exported.config)
            folders.append(save(quantized, work / f"{self.settings.to} {name}", source))
        return folders


def _quantizers(source: Source) -> dict[str, Any]:
    from onnxruntime.quantization import QuantType
    from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer, OnnxRuntimeStaticConfig

    dynamic = OnnxRuntimeDynamicConfig(per_channel=True, weight_type=QuantType.QInt8)
    quantizers = {"dynamic": OnnxRuntimeQuantizer(dynamic)}
    rows = source.calibration_inputs(_CALIBRATION_ROWS)
    if rows:
        # Matrix products alone: other operations are cheap, and eight bits cost them accuracy.
        static = OnnxRuntimeStaticConfig(
            per_channel=True, op_types_to_quantize=["MatMul", "Gemm"], activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )  # fmt: skip
        quantizers["static"] = OnnxRuntimeQuantizer(static, calibration_dataset=rows)
    else:
        logger.warning("static quantization is left out: it needs the validation rows of the run, which cannot be read")
    return quantizers
