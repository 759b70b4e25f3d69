"""Integrated gradients: how much each word of an input moved a prediction, and what happens without those words."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headstart.core.errors import ResourceError
from headstart.core.extras import install_command
from headstart.objectives.chunked import head_logits
from headstart.stages.generate import BLANK
from headstart.stages.probe.attention_maps import tokenize_words
from headstart.stages.probe.network import ProbedNetwork

TOLERANCE = 0.01
"""The error of completeness up to which a sum of attributions is accepted."""
_STEPS = (32, 64, 128, 256, 512)
"""Points on the path; the next number is tried until the sum of the attributions is within the tolerance."""
_LEAST_CHANGE = 0.1
"""The smallest change of the log-odds of which an error is taken as a fraction."""
_BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Prediction:
    """An input, and where its prediction is read."""

    words: list[str]
    ids: list[int]
    tokens: list[list[int]]
    """The positions of each word's tokens; empty for the word that contains the blank."""
    position: int | None
    """The position at which a language model predicts a token; None for a classifier."""


@dataclass(frozen=True)
class Attribution:
    """What the words of an input contribute to the log-odds of its prediction."""

    target: int
    """The predicted label or token."""
    value: float
    """The log-odds of the prediction, or the number that a regression predicts."""
    baseline: float
    """The same for the input whose words are all replaced."""
    words: list[float]
    """The attributions of words, in the same unit."""
    error: float
    """How far the attributions of all tokens are from summing to `value - baseline`, as a fraction of it."""
    steps: int


def load_captum() -> Any:
    """Import captum, or raise an error with the pip command that installs it."""
    try:
        return importlib.import_module("captum.attr")
    except ImportError as error:
        raise ResourceError(
            f"captum is missing ({error})", allowed="It computes integrated gradients", do=install_command("probe")
        ) from error


def prediction_of(network: ProbedNetwork, text: str) -> Prediction | None:
    """Return the input of a text, or None if it is too long, or has no single blank that an encoder could fill.

    A classifier reads the whole text. An encoder with a language-model head fills its blank (`___`). A decoder
    continues the text before the first blank, or the whole text.
    """
    is_classifier, is_decoder = network.outputs is not None, network.family == "decoder"
    words = text.split()
    if not is_classifier and is_decoder:
        words = text.partition(BLANK)[0].split()
    elif not is_classifier:
        words = [word.replace(BLANK, str(network.tokenizer.mask_token)) for word in words]
    sentence = tokenize_words(network, words) if words else None
    if sentence is None or is_classifier:
        return None if sentence is None else Prediction(words, sentence.ids, sentence.words, None)
    if is_decoder:
        return Prediction(words, sentence.ids, sentence.words, len(sentence.ids) - 1)
    blanks = [i for i, token in enumerate(sentence.ids) if token == network.tokenizer.mask_token_id]
    if len(blanks) != 1:
        return None
    tokens = [[] if blanks[0] in positions else positions for positions in sentence.words]
    return Prediction(text.split(), sentence.ids, tokens, blanks[0])


def attribute(network: ProbedNetwork, prediction: Prediction) -> Attribution:
    """Return the attributions of an input's words to its prediction.

    Algorithm:
        Gradients of the log-odds with respect to the embeddings of the tokens are integrated along the line from the
        embeddings of a replaced input to those of the input. In the replaced input, the tokens of all words are the
        mask token, or another neutral one where a tokenizer has no mask; special tokens stay. The attribution of a word
        is the sum over its tokens and dimensions. Attributions sum to the change of the log-odds (completeness), up to
        the error of the integral; points are added until that error is small.

    Paper: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks
    """
    integrated = load_captum().LayerIntegratedGradients
    ids = torch.tensor([prediction.ids], device=network.device)
    replaced = torch.tensor([without_words(network, prediction, range(len(prediction.words)))], device=network.device)
    with torch.no_grad():
        target = int(_logits(network, ids, prediction.position)[0].argmax())
        value, baseline = _log_odds(network, torch.cat([ids, replaced]), prediction.position, target).tolist()
    rows = max(1, _BATCH_TOKENS // len(prediction.ids))
    explainer = integrated(
        lambda rows: _log_odds(network, rows, prediction.position, target), network.model.get_input_embeddings()
    )
    change = value - baseline
    for steps in _STEPS:
        found = explainer.attribute(ids, baselines=replaced, n_steps=steps, internal_batch_size=rows)
        by_token = found[0].detach().double().sum(-1)  # (length,)
        error = abs(float(by_token.sum()) - change) / max(abs(change), _LEAST_CHANGE)
        if error <= TOLERANCE:
            break
    words = [float(by_token[positions].sum()) for positions in prediction.tokens]
    return Attribution(target, value, baseline, words, error, steps)


def without_words(network: ProbedNetwork, prediction: Prediction, words: Sequence[int]) -> list[int]:
    """Return the tokens of an input in which some words are replaced."""
    ids, token = list(prediction.ids), _replacement(network)
    for word in words:
        for position in prediction.tokens[word]:
            ids[position] = token
    return ids


def drops(
    network: ProbedNetwork, prediction: Prediction, target: int, orders: Sequence[Sequence[int]],
    fractions: Sequence[float],
) -> list[list[float]]:  # fmt: skip
    """Return how much the probability of the target falls when the first words of each order are replaced.

    The result has one list for each order, with one value for each fraction of the words. For a regression, it is the
    number that falls.
    """
    rows = [prediction.ids]
    for order in orders:
        rows += [without_words(network, prediction, order[: math.ceil(part * len(order))]) for part in fractions]
    values: list[float] = []
    size = max(1, _BATCH_TOKENS // len(prediction.ids))
    is_number = network.outputs is not None and network.outputs.kind == "number"
    for start in range(0, len(rows), size):
        ids = torch.tensor(rows[start : start + size], device=network.device)
        with torch.inference_mode():
            found = _log_odds(network, ids, prediction.position, target)
            values += (found if is_number else found.sigmoid()).double().tolist()
    count = len(fractions)
    return [[values[0] - values[1 + i * count + k] for k in range(count)] for i in range(len(orders))]


def _replacement(network: ProbedNetwork) -> int:
    """Return the token that replaces words: the mask, the unknown token or an underscore, the first that exists.

    It is not the padding token, by which the classifier of a decoder finds the end of a text.
    """
    tokenizer: Any = network.tokenizer
    candidates = (tokenizer.mask_token_id, tokenizer.unk_token_id)
    usable = (int(token) for token in candidates if token is not None and token != tokenizer.pad_token_id)
    return next(usable, network.encode("_")[0])


def _logits(network: ProbedNetwork, ids: torch.Tensor, position: int | None) -> torch.Tensor:
    """Return the outputs of a classifier, or those of a language model at a position, of shape (rows, outputs)."""
    model: Any = network.model
    mask = torch.ones_like(ids)
    if position is None:
        logits: torch.Tensor = model(input_ids=ids, attention_mask=mask).logits
    else:
        states = model.base_model(input_ids=ids, attention_mask=mask)[0]
        logits = head_logits(model, states[:, position : position + 1])[:, 0]
    return logits.float()


def _log_odds(network: ProbedNetwork, ids: torch.Tensor, position: int | None, target: int) -> torch.Tensor:
    """Return the log-odds of a label or token against all others, of shape (rows,); the output itself of a regression.

    The labels of a classifier with any number of labels are independent, so the log-odds of each is its output.
    """
    logits = _logits(network, ids, position)
    if network.outputs is not None and network.outputs.kind != "label":
        return logits[:, target]
    is_target = torch.arange(logits.shape[1], device=logits.device) == target
    return logits[:, target] - logits.masked_fill(is_target, -math.inf).logsumexp(-1)
