"""A plain Hugging Face folder: whole weights, with the adapter merged into them."""

from __future__ import annotations

from pathlib import Path

from headstart.checkpoint.silence import silenced
from headstart.stages.export.format import FOLDER, ExportFormat, Opened
from headstart.stages.export.source import Source
from headstart.stages.finetune import finished
from headstart.stages.runs.card import loaded_by
from headstart.training import precision
from headstart.training.compilation import choose_attention


class Merged(ExportFormat):
    """A plain Hugging Face folder: whole weights, with the adapter merged into them."""

    def write(self, source: Source, work: Path) -> list[Path]:
        """Save the network and the tokenizer."""
        folder = work / self.settings.to
        folder.mkdir()
        network = source.network()
        with silenced():
            source.task.save(network, source.spec, folder)
        source.save_tokenizer(folder)
        return [folder]

    def open(self, folder: Path, source: Source, threads: int) -> Opened:
        """Load the folder with transformers."""
        network = finished.load(folder)[0].to(precision.default_device())  # type: ignore[arg-type]
        choose_attention(network)
        return Opened(network, source.task, source.spec, source.precision)

    def usage(self, source: Source) -> str:
        """Return lines for transformers, or for sentence-transformers."""
        if source.task.usage is not None:
            return source.task.usage
        if source.task.pipeline is not None:
            return (
                "from transformers import pipeline\n\n"
                f'run = pipeline("{source.task.pipeline}", model="{FOLDER}")\nrun("a text")\n'
            )
        auto_class, _ = loaded_by(source.facts.architecture)
        return (
            f"from transformers import {auto_class}, AutoTokenizer\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{FOLDER}")\n'
            f'model = {auto_class}.from_pretrained("{FOLDER}")\n'
        )
