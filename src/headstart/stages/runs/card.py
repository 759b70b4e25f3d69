"""The model card of an artifact: what it is, what it was trained on, its scores and its cost."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import transformers
import yaml
from transformers import PreTrainedModel

from headstart.checkpoint.names import parse
from headstart.core import artifact, registry
from headstart.core.pages.markdown import code, escape, markdown_table
from headstart.core.recipes.variables import written
from headstart.evaluation.cost import PriceTag
from headstart.stages.runs.manifest import (
    ADAPTED,
    BuiltCorpusData,
    FinetuneManifest,
    Machine,
    MultitaskManifest,
    PretrainData,
    PretrainManifest,
)

ManifestT = TypeVar("ManifestT", PretrainManifest, FinetuneManifest)
_FOLDER = "path/to/this/folder"


def pretrained(manifest: PretrainManifest) -> str:
    """Return the card of a pre-trained checkpoint."""
    manifest = _written(manifest)
    objective = manifest.recipe["objective"]["name"]
    title, origin = _origin(manifest.recipe["backbone"])
    auto_class, pipeline = loaded_by(manifest.architecture)
    needs = _import_line(manifest.architecture)
    loads = "transformers, if Headstart is installed" if needs else "plain transformers"
    progress = manifest.progress
    usage = (
        f"{needs}from transformers import {auto_class}, AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{_FOLDER}")\n'
        f'model = {auto_class}.from_pretrained("{_FOLDER}")\n'
    )
    return "\n\n".join([
        _front(["headstart", objective], pipeline),
        f"# {title} pre-trained by {objective}",
        f"{origin}. It has {manifest.parameters:,} parameters and was pre-trained with Headstart on "
        f"{progress.tokens:,} tokens ({progress.epochs:.2f} epochs). It loads with {loads}.",
        _fenced(usage, "python"),
        "## Scores\n\n" + markdown_table(["measure", "value"], _pretrain_scores(manifest)),
        "## Data\n\n" + _data(manifest.data, progress.epochs_of),
        "## Cost\n\n" + _cost(manifest.cost),
        *_machines(manifest.machines),
        _recipe(manifest.recipe),
        _versions(),
    ]) + "\n"  # fmt: skip


def finetuned(manifest: FinetuneManifest, front: str | None = None, more: Sequence[str] = ()) -> str:
    """Return the card of a fine-tuned model: its scores beside those of the baselines.

    Args:
        manifest: the facts.
        front: other metadata than the usual ones, between two lines of dashes.
        more: sections after the scores.
    """
    manifest = _written(manifest)
    recipe, data = manifest.recipe, manifest.data
    adaptation = recipe["adaptation"]["name"]
    return "\n\n".join([
        front or _front(["headstart", adaptation], manifest.pipeline),
        f"# {recipe['task']['kind']} by {adaptation} from {code(recipe['model'])}",
        _training(manifest),
        _fenced(_usage(manifest), "python"),
        *filter(None, [_plain_usage(manifest)]),
        f"## Scores on the test set ({data.test_rows:,} rows)\n\n" + manifest.table,
        *more,
        "## Data\n\n" + markdown_table(
            ["split", "rows", "source"], [[split, f"{rows:,}", code(source)] for split, rows, source in data.splits()]
        ),
        *data.truncation(),
        *(overlap.sentence() for overlap in data.overlap),
        "## Cost\n\n" + _cost(manifest.cost),
        *([f"Adapting first: {manifest.adapted.cost.sentence()}."] if manifest.adapted else []),
        *_machines(manifest.machines),
        _recipe(recipe),
        _versions(),
    ]) + "\n"  # fmt: skip


def _written(manifest: ManifestT) -> ManifestT:
    """Return the manifest as it is written: variables of the recipe are not expanded."""
    return type(manifest).model_validate(written(manifest.to_dict()))


_HEADS = {
    "ForMaskedLM": ("AutoModelForMaskedLM", "fill-mask"),
    "ForCausalLM": ("AutoModelForCausalLM", "text-generation"),
    "LMHeadModel": ("AutoModelForCausalLM", "text-generation"),
    "ForConditionalGeneration": ("AutoModelForSeq2SeqLM", None),
    "ForTokenClassification": ("AutoModelForTokenClassification", None),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", None),
    "ForQuestionAnswering": ("AutoModelForQuestionAnswering", None),
    "ForMultipleChoice": ("AutoModelForMultipleChoice", None),
    "ForPreTraining": ("AutoModelForPreTraining", None),
}


_PIPELINES = {
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}
_TRUNCATION = {"text-classification": ", truncation=True"}
"""Arguments of a pipeline without which a text beyond the tokenizer's maximum length is an error."""


def loaded_by(architecture: str) -> tuple[str, str | None]:
    """Return the auto class that loads an architecture with its head, and the pipeline that runs it."""
    return next((loader for ending, loader in _HEADS.items() if architecture.endswith(ending)), ("AutoModel", None))


def input_names(model: PreTrainedModel) -> list[str]:
    """Return the names of the model's inputs, so that the saved tokenizer returns exactly these."""
    parameters = inspect.signature(model.forward).parameters
    return ["input_ids", *(name for name in ("token_type_ids", "attention_mask") if name in parameters)]


def _fenced(text: str, language: str) -> str:
    """Return a Markdown code block; a text with fences of its own gets a longer one."""
    longest = max((len(fence) for fence in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}{fence}"


def _origin(backbone: Mapping[str, Any]) -> tuple[str, str]:
    """Return the title of a network, and where it comes from."""
    if backbone.get("path"):
        return escape(PurePath(backbone["path"]).name), f"This network was continued from {code(backbone['path'])}"
    name = f"{backbone.get('kind', backbone['family'])}-{backbone.get('size', '')}".rstrip("-")
    return name, f"This network is of the family {backbone['family']}"


def _pretrain_scores(manifest: PretrainManifest) -> list[list[str]]:
    scores = manifest.metrics.validation
    rows = [
        ["held-out loss (nats per prediction)", f"{scores.get('loss', float('nan')):.3f}"],
        ["held-out loss of a unigram model", f"{manifest.metrics.unigram_entropy:.3f}"],
    ]
    if "accuracy" in scores:
        rows.append(["held-out accuracy of predictions", f"{scores['accuracy']:.1%}"])
    return rows + [
        [f"held-out loss on {name}", f"{scores[f'loss/{name}']:.3f}"]
        for name in manifest.data.corpora
        if f"loss/{name}" in scores
    ]


def multitask(manifest: MultitaskManifest) -> str:
    """Return the card of a run over several tasks, whose models are in subfolders with their own cards."""
    names = list(manifest.recipe["tasks"])
    shares = ", ".join(f"{name} {share:.1%}" for name, share in manifest.shares.items())
    return "\n\n".join([
        f"# {len(names)} tasks with one body from {code(manifest.recipe['model'])}",
        "Trained together with `headstart multitask`. Each subfolder is the model of one task: "
        f"{', '.join(f'`{name}`' for name in names)}. Fractions of the draws: {shares}.",
        "## Scores on the test sets\n\nMeans over seeds.\n\n" + manifest.table,
        *manifest.overlaps,
        "## Cost\n\n" + _cost(manifest.cost),
        _recipe(manifest.recipe),
        _versions(),
    ]) + "\n"  # fmt: skip


def _training(manifest: FinetuneManifest) -> str:
    """Describe where the weights come from."""
    if not manifest.trainable_parameters:
        return "Nothing was trained. These are the weights of the checkpoint, evaluated with Headstart."
    sentences = [
        f"Fine-tuned with Headstart on {manifest.data.train_rows:,} labeled rows.",
        f"These are the weights of seed {manifest.seed}, which scored best on the validation rows.",
    ]
    if manifest.kept_weights:
        sentences.append(f"Kept weights: {manifest.kept_weights}.")
    if manifest.layer_weights:
        sentences.append(f"Learned layer weights: {manifest.layer_weights}.")
    if manifest.adapted is not None:
        sentences.append(manifest.adapted.sentence())
    if manifest.trained_with:
        sentences.append(manifest.sharing())
    return " ".join([*sentences, *_decision(manifest)])


def _decision(manifest: FinetuneManifest) -> list[str]:
    """Return sentences about what was chosen on the validation rows after training, and the threshold of labels."""
    task = manifest.task
    chosen = task.get("decision", {})
    sentences = []
    if "temperature" in chosen:
        sentences.append(
            f"The output layer contains a temperature of {chosen['temperature']:.3f}, chosen on validation rows, so "
            "probabilities are calibrated in any program."
        )
    threshold = chosen.get("threshold", task.get("threshold"))
    if isinstance(threshold, float):
        what = "A label" if task["kind"] == "multi_label" else f"The label {task['labels'][1]!r}"
        how = ", chosen on the validation rows" if "threshold" in chosen else ""
        sentences.append(
            f"{what} is predicted from a probability of {threshold:.3f}{how}; a plain pipeline does not know this."
        )
    return sentences


def _usage(manifest: FinetuneManifest) -> str:
    """Return the lines of Python that use a fine-tuned model; `headstart.load` opens an adapter on its checkpoint."""
    if manifest.usage is not None:
        return manifest.usage
    if manifest.pipeline is None:
        return f'import headstart\n\nmodel, tokenizer = headstart.load("{_FOLDER}")\n'
    # By default, a pipeline returns the best label alone.
    all_labels = ", top_k=None" if manifest.task.get("kind") == "multi_label" else ""
    options = _TRUNCATION.get(manifest.pipeline, "") + all_labels
    return (
        f"{_import_line(manifest.architecture)}from transformers import pipeline\n\n"
        f'run = pipeline("{manifest.pipeline}", model="{_FOLDER}"{options})\n'
    )


def _plain_usage(manifest: FinetuneManifest) -> str:
    """Return the lines of Python that run an adapter with peft and transformers; empty if there are none."""
    auto_class, _ = loaded_by(manifest.architecture)
    if not manifest.is_adapter or manifest.usage is not None or auto_class not in _PIPELINES:
        return ""
    method = manifest.recipe["adaptation"]["name"]
    # Headstart's bottleneck adapters and its own networks exist only where it is installed.
    if method == "adapters" or _import_line(manifest.architecture):
        return ""
    # In peft, a classifier with a prompt reads a virtual token instead of [CLS].
    if method == "prompt" and auto_class == "AutoModelForSequenceClassification":
        return ""
    name = _PIPELINES[auto_class]
    hub = parse(manifest.recipe["model"])
    base, revision = (manifest.recipe["model"], "") if hub is None else (hub.repository, f", revision={hub.revision!r}")
    if manifest.adapted is not None and manifest.adapted.step:
        base, revision = f"{_FOLDER}/{ADAPTED}", ""
    code = (
        "from peft import PeftModel\n"
        f"from transformers import AutoConfig, {auto_class}, pipeline\n\n"
        f'folder, base = "{_FOLDER}", {base!r}\n'
        f'config = AutoConfig.from_pretrained(f"{{folder}}/network")  # has the names of the labels\n'
        f"model = PeftModel.from_pretrained({auto_class}.from_pretrained(base, config=config{revision}), folder)\n"
        f'run = pipeline("{name}", model=model, tokenizer=folder{_TRUNCATION.get(name, "")})\n'
    )
    return "Without Headstart, with the checkpoint that it was trained on:\n\n" + _fenced(code, "python")


def _import_line(architecture: str) -> str:
    """Return the import that registers one of Headstart's networks with transformers; empty for transformers' own."""
    if hasattr(transformers, architecture):
        return ""
    module = next(name for name in registry.NETWORKS.values() if hasattr(importlib.import_module(name), architecture))
    return f"import {module}  # registers this network with transformers\n"


def _front(tags: Sequence[str], pipeline: str | None) -> str:
    front: dict[str, Any] = {"library_name": "transformers", "tags": list(tags)}
    if pipeline:
        front["pipeline_tag"] = pipeline
    return "---\n" + yaml.safe_dump(front, sort_keys=False) + "---"


def _data(data: PretrainData, epochs: Mapping[str, float]) -> str:
    splits = {"train": data.train, "validation": data.validation}
    rows = [[name, f"{c.documents:,}", f"{c.sentences:,}", f"{c.tokens:,}"] for name, c in splits.items()]
    files = ", ".join(code(source.name) for source in data.sources)
    built = [data.built, *(corpus.built for corpus in data.corpora.values())]
    origin = [f"Files: {files}", *(_built_corpus(corpus) for corpus in built if corpus is not None)]
    if data.stream is not None:
        read, parts = data.stream.parts_read, data.stream.parts
        origin.append(f"The text was read during training: {read:,} of {parts:,} parts, counted as train.")
    text = "\n\n".join([*origin, markdown_table(["split", "documents", "sentences", "tokens"], rows)])
    if not data.corpora:
        return text
    corpora = [
        [name, f"{corpus.share:.1%}", f"{corpus.train.tokens:,}", f"{epochs[name]:.2f}"]
        for name, corpus in data.corpora.items()
    ]
    return f"{text}\n\n" + markdown_table(["corpus", "share of the rows read", "training tokens", "epochs"], corpora)


def _built_corpus(corpus: BuiltCorpusData) -> str:
    """Name a finished corpus, its content hash and its datasheet."""
    datasheet = str(PurePath(corpus.folder) / "DATASHEET.md")
    return (
        f"Corpus: {escape(corpus.title)}, built by `headstart corpus build` in {code(corpus.folder)} (content hash "
        f"{code(corpus.corpus[:16])}). Its datasheet is {code(datasheet)} (SHA-256 {code(corpus.datasheet[:16])})."
    )


def _cost(cost: PriceTag) -> str:
    assumptions = "; ".join(f"{key}: {value}" for key, value in cost.assumptions.items())
    return escape(f"{cost.sentence()}.") + "\n\n" + escape(f"Assumptions: {assumptions}.")


def _machines(machines: Sequence[Machine]) -> list[str]:
    """Return a section with the machines that the run was trained on; none for a run of an earlier version."""
    if not machines:
        return []
    header = ["processor", "cores", "threads", "memory", "device", "number format", "attention"]
    rows = [
        [m.cpu, str(m.cores), str(m.threads), f"{m.memory_gb:g} GB", m.device, m.precision, m.attention]
        for m in machines
    ]
    return ["## Machine\n\n" + markdown_table(header, rows)]


def _recipe(recipe: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True)
    return "## Recipe\n\nEvery default is written out.\n\n" + _fenced(text, "yaml")


def _versions() -> str:
    return "Made with " + ", ".join(f"{name} {number}" for name, number in artifact.versions().items()) + "."
