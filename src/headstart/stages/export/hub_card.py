"""The card of a model on the Hugging Face Hub: metadata that the Hub reads, and what a reader should know.

What the run did not record and the user did not give is called unknown, and is not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from headstart.checkpoint.names import HubName, parse
from headstart.core.pages.markdown import code, escape, markdown_table
from headstart.stages.export.comparison import Comparison
from headstart.stages.export.settings import ExportSettings
from headstart.stages.runs import card
from headstart.stages.runs.manifest import FinetuneManifest

_HUB_TASKS = {
    "classify": "text-classification", "multi_label": "text-classification", "prompt": "text-classification",
    "word_in_context": "text-classification", "tag": "token-classification", "span_qa": "question-answering",
    "embed": "sentence-similarity", "multiple_choice": "multiple-choice", "language_model": "text-generation",
}  # fmt: skip
"""The Hub's name for a kind of task; any other one generates text."""
_HUB_METRICS = {
    "macro_f1": "f1", "micro_f1": "f1", "seqeval_f1": "f1", "squad_f1": "f1", "squad_exact_match": "exact_match",
    "matthews": "matthews_correlation", "spearman": "spearmanr", "pearson": "pearsonr", "token_accuracy": "accuracy",
}  # fmt: skip
"""The Hub's name for a metric, where it is another one."""
_PREDICTS = {"multi_label": "predicts any number of", "tag": "predicts for each word one of"}
_MAX_LABELS = 20


def write(facts: FinetuneManifest, settings: ExportSettings, usage: str, comparison: Comparison) -> str:
    """Return the card in Markdown: metadata, intended use, limits, scores, data, cost and recipe."""
    header, rows = comparison.cells()
    more = [
        "\n".join(f"- {escape(sentence)}" for sentence in facts.verdicts),
        "## Intended use\n\n" + _intended_use(facts),
        "## Limits\n\n" + "\n".join(f"- {sentence}" for sentence in _limits(facts)),
        "## What is unknown\n\n" + "\n".join(f"- {sentence}" for sentence in _unknown(facts, settings)),
        "## Comparison of this folder with the trained model\n\n"
        + markdown_table(header, rows, [False, *[True] * (len(header) - 1)]),
    ]
    shown = facts.model_copy(update={"usage": usage, "is_adapter": False})
    return card.finetuned(shown, front=_front(facts, settings), more=[section for section in more if section])


def model_name(facts: FinetuneManifest, settings: ExportSettings) -> str:
    """Return the name of the model: that of its repository, or one made from task and checkpoint."""
    if settings.repo:
        return settings.repo.rpartition("/")[2]
    hub = parse(facts.recipe["model"])
    base = hub.repository if hub is not None else facts.recipe["model"]
    return f"{PurePath(base).name}-{facts.recipe['task']['kind']}"


def _front(facts: FinetuneManifest, settings: ExportSettings) -> str:
    """Return the metadata as YAML, in the order and with the names of the Hub."""
    from huggingface_hub import EvalResult, ModelCardData

    kind, adaptation = facts.recipe["task"]["kind"], facts.recipe["adaptation"]["name"]
    dataset, base = _dataset(facts), parse(facts.recipe["model"])
    task = facts.pipeline or _HUB_TASKS.get(kind, "text-generation")
    results = [
        EvalResult(
            task_type=task,
            dataset_type="local-files" if dataset is None else dataset.repository,
            dataset_name=_test_name(facts) if dataset is None else dataset.repository,
            dataset_config=facts.recipe["data"].get("config"),
            dataset_split=_test_split(facts) if dataset is not None else None,
            dataset_revision=None if dataset is None else dataset.revision,
            metric_type=_HUB_METRICS.get(name, name),
            metric_name=f"{name.replace('_', ' ')} on {facts.data.test_rows:,} test rows (seed {facts.seed})",
            metric_value=round(value, 6),
        )
        for name, value in _scores(facts).items()
    ]
    data = ModelCardData(
        language=settings.language or None,
        license=settings.license or "unknown",
        library_name="sentence-transformers" if kind == "embed" else "transformers",
        pipeline_tag=task,
        tags=["headstart", adaptation],
        base_model=None if base is None else base.repository,
        datasets=None if dataset is None else [dataset.repository],
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=model_name(facts, settings),
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---"


def _scores(facts: FinetuneManifest) -> dict[str, float]:
    """Return the test scores of the published weights, not the mean over seeds."""
    runs = facts.metrics.get(facts.method, [])
    index = facts.seed - int(facts.recipe.get("seed", 0))
    return runs[index] if 0 <= index < len(runs) else {}


def _dataset(facts: FinetuneManifest) -> HubName | None:
    name = facts.recipe["data"].get("dataset")
    return None if name is None else parse(name, "dataset")


def _test_split(facts: FinetuneManifest) -> str:
    """Return the split of the data set that the test rows come from."""
    data = facts.recipe["data"]
    return str(data["test"] if isinstance(data["test"], str) else data["train"])


def _test_name(facts: FinetuneManifest) -> str:
    """Return the name of the test file, without its folder."""
    return PurePath(facts.data.test_source).name or "unknown"


def _intended_use(facts: FinetuneManifest) -> str:
    task = facts.task
    columns = [str(name) for key in ("text", "texts", "words") for name in _listed(task.get(key))]
    reads = ", ".join(map(code, columns)) or "the columns of the recipe"
    sentences = [f"The model was trained for the task {code(facts.recipe['task']['kind'])}. It reads {reads}"]
    labels = _listed(task.get("labels"))
    if labels:
        shown = ", ".join(code(str(label)) for label in labels[:_MAX_LABELS])
        more = f" and {len(labels) - _MAX_LABELS:,} more" if len(labels) > _MAX_LABELS else ""
        how = _PREDICTS.get(facts.recipe["task"]["kind"], "predicts one of")
        sentences[0] += f" and {how} {len(labels):,} labels: {shown}{more}"
    sentences.append("It is meant for texts like those of its training rows; see the data and the limits below")
    return ". ".join(sentences) + "."


def _limits(facts: FinetuneManifest) -> Iterator[str]:
    data = facts.data
    yield (
        f"It was trained on {data.train_rows:,} rows and tested on {data.test_rows:,}. Scores on texts of another "
        "source, time or style were not measured."
    )
    yield (
        f"A text is read up to {data.max_length:,} tokens; what follows is ignored."
        if data.max_length
        else ("How many tokens of a text are read is in the tokenizer's settings.")
    )
    for sentence in data.truncation():
        yield escape(sentence)
    for overlap in data.overlap:
        yield escape(overlap.sentence())
    if facts.recipe["task"]["kind"] == "classify" and facts.task.get("labels"):
        yield "It always predicts one of its labels, also for a text that none of them fits."


def _unknown(facts: FinetuneManifest, settings: ExportSettings) -> Iterator[str]:
    if not settings.license:
        yield "The license of the model: none was given (`--license`)."
    if not settings.language:
        yield "The language of the texts: none was given (`--language`)."
    source = _dataset(facts)
    where = code(str(source)) if source is not None else "the labeled rows, which are local files"
    yield f"The license of {where}, and who labeled them."
    base = parse(facts.recipe["model"])
    if base is None:
        yield f"Where the checkpoint {code(PurePath(facts.recipe['model']).name)} was published; it was a local folder."
    yield "Whether predictions differ between groups of people: this was not measured."


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]
