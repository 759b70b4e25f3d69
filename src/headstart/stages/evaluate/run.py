"""Score a finished model on other data: a fine-tuned one on labeled rows, a pre-trained one on raw text.

For a fine-tuned model, a page of errors is written on request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headstart.checkpoint.load import load_tokenizer
from headstart.checkpoint.names import name_of, run_folder_of
from headstart.core import artifact, config, registry
from headstart.core.contracts import Objective
from headstart.core.errors import ArtifactError, DataError, ResourceError
from headstart.core.log import logger
from headstart.core.vocabulary import vocabulary_of
from headstart.corpus.read import blocks, mixture, readers
from headstart.corpus.read.readers import CorpusConfig, Receipt
from headstart.evaluation.report import page
from headstart.evaluation.report.against import compare_models
from headstart.evaluation.report.facts import Evaluation, evaluate_rows
from headstart.evaluation.report.predicted import Predicted
from headstart.stages.finetune.finished import Finetuned
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.reopen import assembled
from headstart.stages.runs import manifest
from headstart.stages.runs.manifest import FinetuneManifest, PretrainManifest
from headstart.tasks import labelled, tables
from headstart.tasks.table_files import TableFiles, TableSource, locate
from headstart.tokens import shards
from headstart.tokens.rows import cut
from headstart.training import precision
from headstart.training.compilation import choose_attention


def run(
    model: Path,
    data: TableSource,
    output: Path | None = None,
    by: str | None = None,
    against: Path | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Verify the model's folder, score it on the data and return the scores by name, with 95 % intervals.

    Args:
        model: the output folder of a finished run, or the name of one.
        data: labeled rows for a fine-tuned model (files or a split of a data set), raw text for a pre-trained one.
        output: a folder for the page of errors (HTML, Markdown and JSON); None writes no page.
        by: a column of the data; the page shows the score for each of its values.
        against: another fine-tuned model, to compare with on the same rows; also a name.
        overrides: changes of how the data is read, such as `task.text=review`.
    """
    if output is not None:
        require_output(output)
    folder = run_folder_of(model)
    facts = manifest.read_any(folder)
    if isinstance(facts, FinetuneManifest):
        rows = locate(data)
        seen_as = seen_in_training(facts, rows)
        _warn(rows, seen_as, model)
        warning = "" if seen_as is None else f"The model was trained with these rows ({seen_as}): it may know them."
        return _evaluate_rows(Finetuned(folder, facts, overrides), rows, output, by, against, warning)
    if not isinstance(data, str | Path):
        raise ArtifactError(
            f"{model} is a {facts.KIND}", allowed="It is evaluated on a file of raw text, not on a data set"
        )
    if output is not None or by is not None or against is not None or overrides:
        raise ArtifactError(
            f"{model} is a {facts.KIND}",
            allowed="A page of errors, slices, comparisons and overrides need an output of `headstart finetune`",
            do="Leave out --output, --by, --against and overrides",
        )
    _warn(data, seen_in_pretraining(facts, Path(data)), model)
    # A download or a package is not written into.
    prepared = folder / "prepared" if folder == model else blocks.cache_folder() / "prepared"
    return _evaluate_text(folder, facts, Path(data), prepared)


def _warn(data: object, seen_as: str | None, model: Path) -> None:
    if seen_as is not None:
        logger.warning("%s is %s of %s: these are not scores on new data", data, seen_as, model)


def seen_in_training(facts: FinetuneManifest, data: TableFiles) -> str | None:
    """Return what the rows were in the training of a model, or None if they are others. Only hashes are compared."""
    content = data.sha256()
    split = next((name for name, known in facts.data.hashes.items() if content.startswith(known)), None)
    return f"the {split} file" if split in ("train", "validation") else None


def seen_in_pretraining(facts: PretrainManifest, data: Path) -> str | None:
    """Return what a file was in the pre-training of a model, or None if it is another file."""
    if not data.is_file():
        return None
    sources = [*facts.data.sources, *(file for corpus in facts.data.corpora.values() for file in corpus.sources)]
    known = [(file.model_extra or {}).get("sha256_ends") for file in sources]
    return "a file of the corpus" if readers.describe([data])[0]["sha256_ends"] in known else None


def _evaluate_rows(
    model: Finetuned, data: TableFiles, output: Path | None, by: str | None, against: Path | None, warning: str
) -> dict[str, Any]:  # fmt: skip
    column = None if by is None else (by, read_column(data, by))
    other = None if against is None else _open_other(against)
    predicted = _predict(model, data)
    comparison = None if other is None else compare_models(predicted, _predict(other, data), _shown(other.folder))
    evaluation = evaluate_rows(predicted, _shown(model.folder), str(data), column, comparison, warning)
    result = {"model": _shown(model.folder), "data": str(data), "rows": len(predicted.rows)}
    result |= {name: estimate.value for name, estimate in evaluation.metrics.items()}
    result["intervals"] = {name: [estimate.low, estimate.high] for name, estimate in evaluation.metrics.items()}
    if evaluation.by_column is not None:
        result["by"] = {part.name: {"rows": part.rows, **asdict(part.score)} for part in evaluation.by_column.slices}
    if comparison is not None:
        result["against"] = {key: value for key, value in asdict(comparison).items() if key != "rows"}
    if output is not None:
        result["page"] = str(_write(evaluation, output))
    return result


def _shown(folder: Path) -> str:
    """Return a model as results name it: the repository and the commit of a download, or else the folder."""
    return str(name_of(folder) or folder)


def _write(evaluation: Evaluation, output: Path) -> Path:
    try:
        output.mkdir(parents=True, exist_ok=True)
        return page.write(evaluation, output)
    except OSError as error:
        raise ResourceError(f"the page cannot be written: {error}", do="Set --output to another folder") from error


def _predict(model: Finetuned, data: TableFiles) -> Predicted:
    rows = labelled.read(data, model.task.columns("test"))
    predictions, scores = model.predict_with_scores(rows)
    same_scale = config.to_dict(model.recipe.task)["kind"] != "embed"
    return Predicted(rows, model.task.metrics(), predictions, scores, same_scale=same_scale)


def _open_other(model: Path) -> Finetuned:
    folder = run_folder_of(model)
    facts = manifest.read_any(folder)
    if not isinstance(facts, FinetuneManifest):
        raise ArtifactError(
            f"{model} is a {facts.KIND}", allowed="A comparison needs an output of `headstart finetune`"
        )
    return Finetuned(folder, facts)


def read_column(data: TableSource, name: str) -> list[Any]:
    """Return the values of a column of labeled rows."""
    table, _ = tables.read(data, columns=[name])
    if name not in table.column_names:
        raise DataError(
            f"{data} has no column {name!r}{registry.suggest(name, table.column_names)}",
            allowed=f"Its columns: {', '.join(table.column_names)}",
            do="Set --by",
        )
    if table.column_names.count(name) > 1:
        raise DataError(f"{data} has several columns {name!r}", do="Rename all but one")
    try:
        values: list[Any] = table.column(name).to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(f"{data}, column {name!r} is not UTF-8: {error}", do="Repair or convert the file") from error
    return values


def require_output(folder: Path) -> None:
    """Refuse a folder for the page that is a file, or a finished artifact, whose files must not change."""
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder} is a file", do="Set --output to a folder")
    if artifact.is_complete(folder):
        raise ArtifactError(
            f"{folder} is a finished artifact, and a page in it would break its hashes",
            do="Set --output to another folder",
        )


def _language_of(recipe: PretrainRecipe, data: Path) -> str | None:
    """Return the language that the rows of a text begin with; None if the model was trained without."""
    languages = mixture.languages_of(recipe.corpus)
    if len(languages) > 1:
        logger.warning(
            "the model was trained on text in %s; %s is read as text without a language", ", ".join(languages), data
        )
    return languages[0] if len(languages) == 1 else None


def _evaluate_text(folder: Path, facts: PretrainManifest, data: Path, prepared: Path) -> dict[str, Any]:
    recipe = config.fill_saved(PretrainRecipe, facts.recipe, str(folder))
    objective: Objective = registry.build("objectives", recipe.objective)
    module = assembled(folder, objective).to(precision.default_device())
    for part in objective.parts(module).values():
        choose_attention(part)
    tokenizer = load_tokenizer(folder)
    # The text is read with the settings of the first corpus of raw files.
    parts = mixture.parts_of(recipe.corpus).values()
    raw = next((part.model_dump(include={"text", "documents"}) for part in parts if isinstance(part, CorpusConfig)), {})
    corpus = CorpusConfig.model_validate({**raw, "files": [str(data)]})
    name = f"evaluation-{config.fingerprint([readers.sources(corpus), artifact.identity(folder)])}"
    shard_dir = prepared / name
    receipt = Receipt()
    documents = readers.documents(corpus, receipt)
    artifact.make_once(shard_dir, "shards", lambda staging: shards.write(documents, tokenizer, staging.path))
    receipt.warn("evaluate")
    vocabulary = vocabulary_of(tokenizer)
    shape = objective.row_shape(recipe.training.phases[0].length)
    rows = cut(shards.Shards(shard_dir), vocabulary, shape, _language_of(recipe, data))
    corpora = [CorpusRows("", 1.0, rows)]
    learner = PretrainLearner(module, objective, corpora, corpora, vocabulary, recipe.seed)
    device = precision.default_device()
    # The precision in which the run itself measured, so that its scores are reproduced.
    with precision.autocast(precision.resolve(recipe.training.precision, device), device):
        scores = learner.validate(limit=len(rows))
    return {"model": _shown(folder), "data": str(data), "rows": len(rows), **scores}
