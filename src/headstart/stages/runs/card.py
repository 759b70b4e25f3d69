"""The model card beside every artifact: what it is, what it was made from, how good it is, what it cost."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import transformers
import yaml
from transformers import PreTrainedModel

from headstart.core import registry
from headstart.evaluation.cost import PriceTag


def input_names(model: PreTrainedModel) -> list[str]:
    """Name the inputs that the model takes, so that the saved tokenizer gives just those."""
    takes = inspect.signature(model.forward).parameters
    return ["input_ids", *(name for name in ("token_type_ids", "attention_mask") if name in takes)]


def pretrained(facts: Mapping[str, Any]) -> str:
    """Write the card of a pre-trained checkpoint."""
    recipe, data, metrics = facts["recipe"], facts["data"], facts["metrics"]
    backbone, objective = recipe["backbone"], recipe["objective"]
    validation = metrics["validation"]
    rows = [["held-out loss (nats per prediction)", f"{validation.get('loss', float('nan')):.3f}"]]
    rows.append(["the same for a unigram model", f"{metrics['unigram_entropy']:.3f}"])
    if "accuracy" in validation:
        rows.append(["held-out accuracy of predictions", f"{validation['accuracy']:.1%}"])
    rows += [
        [f"held-out loss on {name}", f"{validation[f'loss/{name}']:.3f}"]
        for name in data.get("corpora", {})
        if f"loss/{name}" in validation
    ]
    (auto_class, pipeline), needs = loaded_by(facts["architecture"]), _needs(facts["architecture"])
    name = f"{backbone.get('kind', backbone['family'])}-{backbone.get('size', '')}".rstrip("-")
    origin = f"Family {backbone['family']}"
    if backbone.get("path"):
        name, origin = PurePath(backbone["path"]).name, f"Trained on from `{backbone['path']}`"
    return "\n\n".join([
        _front(["headstart", objective["name"]], pipeline),
        f"# {name} pre-trained by {objective['name']}",
        f"{origin}, {facts['parameters']:,} parameters, pre-trained with Headstart on "
        f"{facts['progress']['tokens']:,} tokens ({facts['progress']['epochs']:.2f} epochs). "
        f"It loads in {'transformers where Headstart is installed' if needs else 'plain transformers'}.",
        f"```python\n{needs}from transformers import {auto_class}, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")\n'
        f'model = {auto_class}.from_pretrained("path/to/this/folder")\n```',
        "## Measured\n\n" + table(["measure", "value"], rows),
        "## Data\n\n" + _data(data, facts["progress"].get("epochs_of", {})),
        "## Cost\n\n" + _cost(facts["cost"]),
        _recipe(recipe),
        _versions(facts),
    ]) + "\n"  # fmt: skip


def finetuned(facts: Mapping[str, Any]) -> str:
    """Write the card of a fine-tuned model: its scores in the company of baselines."""
    recipe = facts["recipe"]
    return "\n\n".join([
        _front(["headstart", recipe["adaptation"]["name"]], facts["pipeline"]),
        f"# {recipe['task']['kind']} by {recipe['adaptation']['name']} from {recipe['model']}",
        _made(facts),
        f"```python\n{_usage(facts)}```",
        f"## Scores on the test set ({facts['data']['test_rows']:,} rows)\n\n" + facts["table"],
        "## Data\n\n" + table(["split", "rows", "source"], [
            [split, f"{facts['data'][f'{split}_rows']:,}", f"`{facts['data'][f'{split}_source']}`"]
            for split in ("train", "validation", "test")
        ]),
        "## Cost\n\n" + _cost(facts["cost"]),
        _recipe(recipe),
        _versions(facts),
    ]) + "\n"  # fmt: skip


def _made(facts: Mapping[str, Any]) -> str:
    """Say how the weights came about; what trains nothing leaves them as they were."""
    if not facts["trainable_parameters"]:
        return "Nothing was trained: these are the weights of the checkpoint, judged by Headstart as they are."
    return (
        f"Fine-tuned with Headstart on {facts['data']['train_rows']:,} labelled rows; the weights here are those of "
        f"seed {facts['seed']}, the best of the seeds on validation."
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join('---' for _ in header)}|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


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


def loaded_by(architecture: str) -> tuple[str, str | None]:
    """Return the auto class that loads an architecture with its head, and the pipeline that runs it."""
    return next((found for ending, found in _HEADS.items() if architecture.endswith(ending)), ("AutoModel", None))


def _usage(facts: Mapping[str, Any]) -> str:
    """Return the lines that load a fine-tuned model; an adapter goes on the checkpoint that it was trained on."""
    if facts["usage"] is not None:
        return str(facts["usage"])
    if facts["pipeline"] is None:
        return 'import headstart\n\nmodel, tokenizer = headstart.load("path/to/this/folder")\n'
    return (
        f"{_needs(facts['architecture'])}from transformers import pipeline\n\n"
        f'run = pipeline("{facts["pipeline"]}", model="path/to/this/folder")\n'
    )


def _needs(architecture: str) -> str:
    """Return the line of code without which transformers does not know a network of our own; empty for its own."""
    if hasattr(transformers, architecture):
        return ""
    module = next(name for name in registry.NETWORKS.values() if hasattr(importlib.import_module(name), architecture))
    return f"import {module}  # tells transformers of this network\n"


def _front(tags: Sequence[str], pipeline: str | None) -> str:
    front: dict[str, Any] = {"library_name": "transformers", "tags": list(tags)}
    if pipeline:
        front["pipeline_tag"] = pipeline
    return "---\n" + yaml.safe_dump(front, sort_keys=False) + "---"


def _data(data: Mapping[str, Any], epochs: Mapping[str, float]) -> str:
    rows = [
        [split, f"{data[split]['documents']:,}", f"{data[split]['sentences']:,}", f"{data[split]['tokens']:,}"]
        for split in ("train", "validation")
    ]
    names = ", ".join(f"`{source['name']}`" for source in data["sources"])
    told = f"Files: {names}\n\n" + table(["split", "documents", "sentences", "tokens"], rows)
    if "corpora" not in data:
        return told
    drawn = [
        [name, f"{one['share']:.1%}", f"{one['train']['tokens']:,}", f"{epochs[name]:.2f}"]
        for name, one in data["corpora"].items()
    ]
    return f"{told}\n\n" + table(["corpus", "share of what was read", "training tokens", "epochs"], drawn)


def _cost(cost: Mapping[str, Any]) -> str:
    tag = PriceTag.from_dict(dict(cost))
    assumptions = "; ".join(f"{key}: {value}" for key, value in tag.assumptions.items())
    return f"{tag.sentence()}.\n\nAssumed: {assumptions}."


def _recipe(recipe: Mapping[str, Any]) -> str:
    return (
        "## Recipe, every default filled in\n\n```yaml\n"
        + yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True)
        + "```"
    )


def _versions(facts: Mapping[str, Any]) -> str:
    from headstart.core.artifact import versions

    return "Made with " + ", ".join(f"{name} {number}" for name, number in versions().items()) + "."
