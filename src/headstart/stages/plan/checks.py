"""What a run would refuse is refused by its forecast too."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from headstart.core.contracts import Objective
from headstart.core.errors import ArtifactError
from headstart.core.log import logger
from headstart.corpus.read import mixture
from headstart.corpus.read.mixture import Corpus, CorpusMixture, CorpusPart
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.pretrain.build import require_same_tokens, special_tokens_of, tokenizer_of
from headstart.stages.pretrain.prepare import naming, prepare
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.runs.folder import RunFolder
from headstart.tokens import extension, tokenizer
from headstart.tokens.rows import cut

_SMALL = 3_000_000
"""Bytes of text up to which the text is prepared as the run would prepare it, which takes about two seconds."""
_OPENED_FILES = 20
"""Files of a larger corpus whose first document is read."""


def check_text(recipe: PretrainRecipe, objective: Objective, text_bytes: int) -> None:
    """Raise what a run of the recipe would raise about its tokenizer and its text.

    A small corpus is prepared in a temporary folder. Of a larger one, the first document of some files is read, so an
    error that appears only in the rest of the text is not found.
    """
    settings = tokenizer_of(recipe)
    if settings.path is not None:
        loaded = tokenizer.load(settings.path)
        if settings.extend is not None:
            extension.require_extendable(loaded)
        require_same_tokens(recipe, loaded)
    if text_bytes > _SMALL:
        for name, part in mixture.parts_of(recipe.corpus).items():
            with naming(name):
                _open_files(part)
        return
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(_elsewhere(recipe.corpus), settings, recipe.seed, Path(folder), quiet=True)
        require_same_tokens(recipe, prepared.tokenizer)
        vocabulary = tokenizer.add_special(prepared.tokenizer, special_tokens_of(recipe, objective))
        vocabulary = replace(vocabulary, pieces=prepared.vocabulary.pieces)
        for length in dict.fromkeys(phase.length for phase in recipe.training.phases):
            for corpus in prepared.corpora:
                with naming(corpus.name):
                    cut(corpus.train, vocabulary, objective.row_shape(length), corpus.language)
                    shape = objective.row_shape(recipe.training.phases[0].length)
                    cut(corpus.validation, vocabulary, shape, corpus.language)


def _open_files(part: CorpusPart) -> None:
    if not isinstance(part, CorpusConfig):
        next(mixture.documents(part, Receipt()), None)
        return
    for path in islice(part.paths(), _OPENED_FILES):
        next(mixture.documents(part.model_copy(update={"files": [str(path)]}), Receipt()), None)


def _elsewhere(corpus: Corpus) -> Corpus:
    """Return a corpus without the folder in which a run keeps its shards."""
    assert not isinstance(corpus, list), "validation turns a list into a mixture"
    nowhere = {"prepared": None}
    if isinstance(corpus, CorpusMixture):
        return corpus.model_copy(update={**nowhere, "parts": [p.model_copy(update=nowhere) for p in corpus.parts]})
    return corpus.model_copy(update=nowhere)


def warn_about_output(recipe: PretrainRecipe | FinetuneRecipe, inputs: Mapping[str, str]) -> None:
    """Log what a run would refuse about its output folder, which does not change its cost."""
    try:
        with RunFolder(recipe.output, recipe, inputs, writes=False):
            pass
        _require_folder("output", recipe.output)
        if isinstance(recipe, PretrainRecipe):
            _require_folder("corpus.prepared", mixture.prepared_in(recipe.corpus))
    except ArtifactError as error:
        logger.warning("The run would be refused: %s", error)


def _require_folder(key: str, path: Path | None) -> None:
    """Raise if a path, or what exists of it, is a file."""
    existing = next((p for p in (path.absolute(), *path.absolute().parents) if p.exists()), None) if path else None
    if existing is not None and not existing.is_dir():
        raise ArtifactError(
            f"{key} is {path}, but {existing} is a file",
            allowed="Every part of its path must be a folder",
            do="Choose another path",
        )
