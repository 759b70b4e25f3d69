"""Export a fine-tuned model to another format, and keep the export only if it predicts as well as the model.

The exported files are opened again and run on the model's test set beside the model in torch. A loss beyond the
tolerance raises an error, and nothing is written.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from headstart.checkpoint.names import output_beside, run_folder_of
from headstart.core import artifact, registry
from headstart.core.errors import ArtifactError
from headstart.core.log import logger
from headstart.core.recipes.variables import written
from headstart.evaluation.cost import Meter
from headstart.stages.export.comparison import Comparison, Runner, choose, compare
from headstart.stages.export.format import ExportFormat
from headstart.stages.export.settings import ExportSettings
from headstart.stages.export.source import Source
from headstart.stages.runs import manifest
from headstart.stages.runs.folder import require_free
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.stages.runs.result import Table

KIND = "export"
REPORT = "comparison.json"
"""The figures of the comparison. `export.json` is transformers' name for its own description of a graph."""
_VARIANTS = "variants"


def run(model: Path, output: Path | None, settings: ExportSettings, quiet: bool = False) -> Path:
    """Export a model and return the folder of the export.

    Args:
        model: the output folder of `headstart finetune`, or the name of one.
        output: the folder to create; None for one beside the model, such as `runs/reviews-onnx`; in `runs` for a name.
        settings: the format and how it is measured.
        quiet: log no progress.
    """
    folder = run_folder_of(model)
    target = output or output_beside(model, settings.to)
    kind: type[ExportFormat] = registry.resolve("exports", settings.to)
    form = kind(settings)
    require_free(target, KIND, [folder], settings.overwrite)
    facts = manifest.read_any(folder)
    if not isinstance(facts, FinetuneManifest):
        raise ArtifactError(
            f"{model} is a {facts.KIND}",
            allowed="An export needs an output of `headstart finetune`, whose test set it is compared on",
        )
    source = Source(folder, facts, settings.data)
    with Meter(config=source.model.recipe.cost, energy=False) as meter:
        parents = {"model": artifact.identity(folder)}
        with artifact.staged(target, KIND, parents=parents, seed=facts.seed) as staging:
            comparison = _export(form, source, staging.path, settings, quiet)
            staging.facts |= {"export": {"to": settings.to, **comparison.to_dict()}, "cost": meter.tag().to_dict()}
            if facts.data.hashes:
                staging.facts["data"] = {"hashes": facts.data.hashes}
    for sentence in form.after(target):
        logger.info(sentence)
    return target


def summary(folder: Path) -> str:
    """Return the comparison of an export with the model in torch as text."""
    facts = dict(artifact.read_manifest(folder)["export"])
    to = facts.pop("to")
    comparison = Comparison.from_dict(facts)
    header, rows = comparison.cells()
    return "\n".join([
        repr(Table(dict(zip(header, row, strict=True)) for row in rows)),
        f"{comparison.best.loss_sentence(comparison.metric)} ({comparison.rows:,} rows, paired bootstrap; tolerance "
        f"{comparison.tolerance:g})",
        f"{to}: {folder}",
    ])  # fmt: skip


def _export(form: ExportFormat, source: Source, folder: Path, settings: ExportSettings, quiet: bool) -> Comparison:
    """Write the export into a folder, compare it with torch and return the figures."""
    threads = settings.threads or torch.get_num_threads()
    work = folder / _VARIANTS
    work.mkdir()
    rows = source.rows
    if not quiet:
        logger.info(f"export: converting to {settings.to}")
    variants = form.write(source, work)
    if not quiet:
        logger.info(f"export: comparing with torch on {len(rows):,} rows")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        exports = [_runner(form, variant, source, threads) for variant in variants]
        comparison = compare(
            rows, source.features, _reference(source), exports, threads, settings.repetitions, settings.tolerance
        )
    finally:
        torch.set_num_threads(before)
    kept = choose(comparison, [runner.name for runner in exports])
    # As it is written: the variables of the recipe are not expanded.
    comparison = Comparison.from_dict(written({**comparison.to_dict(), "kept": kept}))
    chosen = next(runner for runner in exports if runner.name == kept)
    assert chosen.folder is not None
    for path in chosen.folder.iterdir():
        path.rename(folder / path.name)
    shutil.rmtree(work)
    report = json.dumps({"to": settings.to, **comparison.to_dict()}, indent=2, ensure_ascii=False)
    (folder / REPORT).write_text(report + "\n", encoding="utf-8")
    (folder / "README.md").write_text(form.card(source, comparison), encoding="utf-8")
    return comparison


def _reference(source: Source) -> list[Runner]:
    """Return the model in torch in the number format of the run, and in fp32 if that is another one."""
    formats = dict.fromkeys([source.precision, "fp32"])
    size = source.weight_bytes()
    return [
        Runner(f"torch {name}", source.model.model, source.task, source.spec, size, precision=name) for name in formats
    ]


def _runner(form: ExportFormat, folder: Path, source: Source, threads: int) -> Runner:
    opened = form.open(folder, source, threads)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and is_weights(path))
    return Runner(folder.name, opened.network, opened.task, opened.spec, size, opened.precision, folder)


def is_weights(path: Path) -> bool:
    """True for the files of a network: weights and graphs, not tokenizers and configs."""
    return path.suffix in (".safetensors", ".onnx", ".data", ".bin", ".xml")


def table(folder: Path) -> list[dict[str, Any]]:
    """Return the figures of an export, one row for each model."""
    facts = artifact.read_manifest(folder)["export"]
    return [
        {
            "model": model["name"], facts["metric"]: model["score"], "loss": model["loss"], "p_value": model["p_value"],
            "changed": model["changed"], "bytes": model["bytes"],
            **{f"ms_{rows}_rows": value for rows, value in model["latency_ms"].items()},
        }
        for model in facts["models"]
    ]  # fmt: skip
