"""The names that recipes can use: tables of strings, plus entry points of plugins.

A name maps to "module:Class" as text, so that looking up a name imports nothing and `headstart list` starts without
torch. A plugin adds names through the entry-point group `headstart.<group>`.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from headstart.core import renames
from headstart.core.errors import RecipeError

TABLES: dict[str, dict[str, str]] = {
    "objectives": {
        "masked_lm": "headstart.objectives.masked_lm:MaskedLM",
        "causal_lm": "headstart.objectives.causal_lm:CausalLM",
        "span_corruption": "headstart.objectives.span_corruption:SpanCorruption",
        "prefix_lm": "headstart.objectives.prefix_lm:PrefixLM",
        "denoising": "headstart.objectives.denoising:Denoising",
        "masked_seq2seq": "headstart.objectives.masked_seq2seq:MaskedSeq2Seq",
        "translation_lm": "headstart.objectives.translation_lm:TranslationLM",
        "distillation": "headstart.objectives.distillation:Distillation",
        "replaced_token": "headstart.objectives.replaced_token:ReplacedToken",
        "span_boundary": "headstart.objectives.span_boundary:SpanBoundary",
        "next_sentence": "headstart.objectives.next_sentence:NextSentence",
        "sentence_order": "headstart.objectives.sentence_order:SentenceOrder",
        "tsdae": "headstart.objectives.tsdae:TSDAE",
        "mixture": "headstart.objectives.mixture:Mixture",
        "permuted_lm": "headstart.objectives.permuted_lm:PermutedLM",
        "bilm": "headstart.objectives.bilm:BidirectionalLM",
    },
    "backbones": {
        "encoder": "headstart.backbones.encoder:Encoder",
        "decoder": "headstart.backbones.decoder:Decoder",
        "encoder-decoder": "headstart.backbones.encoder_decoder:EncoderDecoder",
        "xlnet": "headstart.backbones.xlnet:XLNet",
        "bilm": "headstart.backbones.lstm:BiLM",
        "checkpoint": "headstart.backbones.checkpoint:Checkpoint",
    },
    "tasks": {
        "classify": "headstart.tasks.classify:Classify",
        "word_in_context": "headstart.tasks.word_in_context:WordInContext",
        "multi_label": "headstart.tasks.multi_label:MultiLabel",
        "tag": "headstart.tasks.tag:Tag",
        "span_qa": "headstart.tasks.span_qa:SpanQA",
        "multiple_choice": "headstart.tasks.multiple_choice:MultipleChoice",
        "seq2seq": "headstart.tasks.seq2seq:Seq2Seq",
        "text_to_text": "headstart.tasks.text_to_text:TextToText",
        "embed": "headstart.tasks.embed:Embed",
        "language_model": "headstart.tasks.language_model:LanguageModel",
        "prompt": "headstart.tasks.prompt:Prompt",
        "prompt_choice": "headstart.tasks.prompt_choice:PromptChoice",
        "prompt_text": "headstart.tasks.prompt_text:PromptText",
    },
    "adaptations": {
        "full": "headstart.adaptation.full:Full",
        "scratch": "headstart.adaptation.scratch:Scratch",
        "features": "headstart.adaptation.features:FeatureExtraction",
        "embeddings_only": "headstart.adaptation.embeddings_only:EmbeddingsOnly",
        "top_layers": "headstart.adaptation.top_layers:TopLayers",
        "linear_probe": "headstart.adaptation.linear_probe:LinearProbe",
        "contrast": "headstart.adaptation.contrast:Contrast",
        "new_layers": "headstart.adaptation.new_layers:NewLayers",
        "gradual_unfreezing": "headstart.adaptation.gradual_unfreezing:GradualUnfreezing",
        "layerwise_decay": "headstart.adaptation.layerwise_decay:LayerwiseDecay",
        "l2_start": "headstart.adaptation.l2_start:L2Start",
        "rehearsal": "headstart.adaptation.rehearsal:Rehearsal",
        "lora": "headstart.adaptation.lora:Lora",
        "ia3": "headstart.adaptation.ia3:IA3",
        "prefix": "headstart.adaptation.prefix:PrefixTuning",
        "prompt": "headstart.adaptation.prompt:PromptTuning",
        "bitfit": "headstart.adaptation.bitfit:BitFit",
        "qlora": "headstart.adaptation.qlora:QLora",
        "adapters": "headstart.adaptation.adapters:Adapters",
        "distillation": "headstart.adaptation.distillation:TeacherDistillation",
        "zero_shot": "headstart.adaptation.zero_shot:ZeroShot",
    },
    "metrics": {
        "accuracy": "headstart.evaluation.labels:accuracy",
        "f1": "headstart.evaluation.labels:f1",
        "macro_f1": "headstart.evaluation.labels:macro_f1",
        "matthews": "headstart.evaluation.labels:matthews",
        "multi_label_macro_f1": "headstart.evaluation.label_sets:multi_label_macro_f1",
        "multi_label_micro_f1": "headstart.evaluation.label_sets:multi_label_micro_f1",
        "subset_accuracy": "headstart.evaluation.label_sets:subset_accuracy",
        "pearson": "headstart.evaluation.correlations:pearson",
        "spearman": "headstart.evaluation.correlations:spearman",
        "token_accuracy": "headstart.evaluation.tagging:token_accuracy",
        "seqeval_f1": "headstart.evaluation.tagging:seqeval_f1",
        "squad_f1": "headstart.evaluation.answers:squad_f1",
        "squad_exact_match": "headstart.evaluation.answers:squad_exact_match",
        "bleu": "headstart.evaluation.texts:bleu",
        "rouge1": "headstart.evaluation.texts:rouge1",
        "rouge2": "headstart.evaluation.texts:rouge2",
        "rougeL": "headstart.evaluation.texts:rougeL",
        "ndcg_at_10": "headstart.evaluation.ranking:ndcg_at_10",
        "mrr_at_10": "headstart.evaluation.ranking:mrr_at_10",
        "perplexity": "headstart.evaluation.likelihood:perplexity",
        "bits_per_byte": "headstart.evaluation.likelihood:bits_per_byte",
    },
    "baselines": {
        "majority": "headstart.evaluation.baselines:majority",
        "svm": "headstart.evaluation.svm:svm",
        "static": "headstart.evaluation.static:static",
        "glove": "headstart.evaluation.glove:glove",
        "glove_cosine": "headstart.evaluation.glove_cosine:glove_cosine",
        "overlap": "headstart.evaluation.overlap:overlap",
        "lead": "headstart.evaluation.lead:lead",
    },
    "exports": {
        "merged": "headstart.stages.export.formats.merged:Merged",
        "onnx": "headstart.stages.export.formats.onnx:Onnx",
        "int8": "headstart.stages.export.formats.int8:Int8",
        "openvino": "headstart.stages.export.formats.openvino:OpenVino",
        "static": "headstart.stages.export.formats.static:Static",
        "hub": "headstart.stages.export.formats.hub:Hub",
        "tei": "headstart.stages.export.formats.tei:Tei",
        "vllm": "headstart.stages.export.formats.vllm:Vllm",
    },
    "probes": {
        "minimal_pairs": "headstart.stages.probe.probes.minimal_pairs:MinimalPairs",
        "cloze": "headstart.stages.probe.probes.cloze:Cloze",
        "attention": "headstart.stages.probe.probes.attention:Attention",
        "attribution": "headstart.stages.probe.probes.attribution:Attribution",
        "bias": "headstart.stages.probe.probes.bias:Bias",
        "forgetting": "headstart.stages.probe.probes.forgetting:Forgetting",
        "neighbors": "headstart.stages.probe.probes.neighbors:Neighbors",
        "layers": "headstart.stages.probe.probes.layers:Layers",
    },
}

SELECTOR = {"objectives": "name", "backbones": "family", "tasks": "kind", "adaptations": "name"}
"""The key of a recipe section that names its entry: `objective: {name: masked_lm}`."""

NETWORKS = {
    "headstart_bilm": "headstart.backbones.bilm",
    "headstart_on_top": "headstart.adaptation.on_top_network",
    "headstart_pooled": "headstart.adaptation.pooled_network",
}
"""Headstart's own networks: `model_type` in config.json → the module whose import registers it with transformers."""

ADAPTERS = {"HEADSTART_BOTTLENECK": "headstart.adaptation.bottleneck"}
"""Headstart's own adapters: `peft_type` in adapter_config.json → the module whose import registers it with peft."""


@dataclass(frozen=True)
class Entry:
    """One line of `headstart list`, read from the source without importing it."""

    name: str
    target: str
    help: str
    paper: str


def names(group: str) -> list[str]:
    """Return the names of a group: built-in ones, then those of plugins in alphabetical order."""
    return list(_table(group))


def target(group: str, name: str) -> str:
    """Return "module:attribute" for a name, or raise an error that suggests the most similar name."""
    table = _table(group)
    if name not in table:
        raise RecipeError(
            f"{group} has no {name!r}{suggest(name, table)}",
            allowed=f"Known: {', '.join(table)}",
            do=f"`headstart list {group}` describes them; plugins add names through the entry point headstart.{group}",
        )
    return table[name]


def resolve(group: str, name: str) -> Any:
    """Import and return the class or function with a name."""
    module_name, _, attribute = target(group, name).partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"{name!r} of {group} is {module_name}:{attribute}, which cannot be imported ({error})",
            do="Fix the registry line or the plugin's entry point",
        ) from error


def name_of(group: str, section: Any) -> str:
    """Return the name of the entry that a validated section of a recipe selects."""
    name: str = getattr(section, SELECTOR[group])
    return name


def build(group: str, config: Any) -> Any:
    """Construct the entry that a validated section of a recipe selects."""
    return resolve(group, name_of(group, config))(config)


def import_network(folder: Path) -> None:
    """Import the module of a folder's network if it is one of Headstart's own, so that transformers can load it."""
    _import_named(folder / "config.json", "model_type", NETWORKS)


def import_adapter(folder: Path) -> None:
    """Import the module of a folder's adapter if its method is one of Headstart's own, so that peft can load it."""
    _import_named(folder / "adapter_config.json", "peft_type", ADAPTERS)


def _import_named(path: Path, key: str, modules: dict[str, str]) -> None:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return  # Loading the folder reports what is wrong with it.
    kind = settings.get(key) if isinstance(settings, dict) else None
    module_name = modules.get(kind) if isinstance(kind, str) else None
    if module_name is not None:
        importlib.import_module(module_name)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return "; it was renamed to X." or "; did you mean X?", or an empty string if no known name is similar."""
    known = list(known)
    new = renames.new_name(word, known)
    if new is not None:
        return f"; it was renamed to {new!r}."
    similar = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def describe(group: str) -> list[Entry]:
    """Return the first docstring line and the `paper` of every entry of a group, read from the source."""
    return [_describe(group, name) for name in names(group)]


def _describe(group: str, name: str) -> Entry:
    where = target(group, name)
    module_name, _, attribute = where.partition(":")
    node = next(
        (
            node
            for node in _source(module_name).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute
        ),
        None,
    )
    if node is None:
        return Entry(name, where, "", "")
    first_line = (ast.get_docstring(node) or "").partition("\n")[0]
    return Entry(name, where, first_line, _paper(node))


def _paper(node: ast.ClassDef | ast.FunctionDef) -> str:
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="paper")], value=ast.Constant(value=str(text))):
                return text
            case ast.AnnAssign(target=ast.Name(id="paper"), value=ast.Constant(value=str(text))):
                return text
    for line in (ast.get_docstring(node) or "").splitlines():
        if line.strip().startswith("Paper:"):
            return line.partition("Paper:")[2].strip()
    return ""


@lru_cache(maxsize=256)
def _source(module_name: str) -> ast.Module:
    try:
        spec = importlib.util.find_spec(module_name)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        return ast.Module(body=[], type_ignores=[])
    with open(spec.origin, encoding="utf-8") as file:
        return ast.parse(file.read())


def _points(group: str) -> list[EntryPoint]:
    return _points_on(tuple(sys.path), group)


@lru_cache(maxsize=64)
def _points_on(search_path: tuple[str, ...], group: str) -> list[EntryPoint]:
    """Select the entry points of a group once per search path: it takes 0.5 ms, and a saved recipe needs it often."""
    return sorted(_installed(search_path).select(group=f"headstart.{group}"), key=lambda point: point.name)


@lru_cache(maxsize=8)
def _installed(_: tuple[str, ...]) -> Any:
    """Read all entry points once per search path: it takes 15 ms, and every lookup of a name needs them."""
    return entry_points()


def _table(group: str) -> dict[str, str]:
    if group not in TABLES:
        raise RecipeError(f"there is no group {group!r}{suggest(group, TABLES)}", allowed=f"Known: {', '.join(TABLES)}")
    points = _points(group)
    plugins = {point.name: point.value for point in points}
    duplicate = next((point for point in points if point.value != plugins[point.name]), None)
    if duplicate is not None:
        raise RecipeError(
            f"two plugins add {duplicate.name!r} to {group}: {duplicate.value} and {plugins[duplicate.name]}",
            do="Uninstall one of them or rename its entry point",
        )
    clash = sorted(set(plugins) & set(TABLES[group]))
    if clash:
        raise RecipeError(
            f"a plugin adds {clash[0]!r} to {group}, a name that Headstart has already",
            do="Uninstall the plugin or rename its entry point",
        )
    return TABLES[group] | plugins
