"""Attention heads switched off one by one: how much the loss of a language model rises without each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from headstart.core.randomness import generator
from headstart.evaluation.intervals import Estimate, bootstrap_ratio
from headstart.objectives.chunked import head_logits
from headstart.objectives.masked_lm import masked_logits
from headstart.stages.probe.attention_maps import Maps, WordTokens
from headstart.stages.probe.likelihood import MAX_LOGITS, start_of, token_batches
from headstart.stages.probe.network import ProbedNetwork
from headstart.stages.probe.probe import sample

_OUTPUT_PROJECTIONS = (
    "attention.output.dense", "attention.attn.o", "attention.out_lin", "attention.dense", "attn.Wo", "attn.c_proj",
    "self_attn.o_proj", "self_attn.out_proj",
)  # fmt: skip
"""What networks of transformers call the projection that reads the outputs of the heads of a layer, side by side."""
_MASK_RATE = 0.15
_FLOPS = 1e12
"""Work for one network: decides how many tokens are read and, for large networks, how many heads are switched off."""
_TOKENS = (256, 8192)
"""The fewest and the most tokens that are read."""


@dataclass(frozen=True)
class HeadCosts:
    """The rise of the loss without each head, by sentence."""

    layers: int
    heads: int
    """Heads of each layer."""
    switched: list[tuple[int, int]]
    """Layer and head of those that were switched off, counted from 0; all of them if the network is small enough."""
    rises: Maps
    """(sentences, switched): the loss without the head minus that with all heads, in nats, summed over predictions."""
    predictions: Maps
    """(sentences,): the number of predicted tokens."""
    loss: float
    """Nats per predicted token with all heads."""

    def cost(self, index: int) -> Estimate:
        """Return the rise of the loss per predicted token, with its bootstrap interval over sentences."""
        return bootstrap_ratio(self.rises[:, index].tolist(), self.predictions.tolist())

    def means(self) -> Maps:
        """Return the rise of the loss per predicted token, shape (switched,)."""
        means: Maps = self.rises.sum(0) / self.predictions.sum()
        return means

    def costliest(self) -> Estimate:
        """Return the cost of the costliest head, which is chosen on other sentences than those it is scored on.

        Each half of the sentences chooses the head for the other half: among many heads, some are costly by chance on
        the sentences that choose them.
        """
        half = np.arange(len(self.rises)) % 2 == 0
        if half.all():
            return Estimate(None)
        rises = np.zeros(len(half))
        for part in (half, ~half):
            rises[~part] = self.rises[~part, int(self.rises[part].sum(0).argmax())]
        return bootstrap_ratio(rises.tolist(), self.predictions.tolist())


@dataclass(frozen=True)
class _Layer:
    """A layer, the projection of its heads, and the number of calls of that projection before this layer's."""

    module: torch.nn.Module
    projection: torch.nn.Module
    turn: int


def reason_against_costs(network: ProbedNetwork) -> str | None:
    """Return why heads cannot be switched off, or None."""
    if not network.has_head:
        return "without a language-model head, there are no predictions of tokens whose loss could rise"
    return None if _layers(network) else f"the attention of {network.model.config.model_type} is not known"


def head_costs(network: ProbedNetwork, sentences: Sequence[WordTokens], seed: int) -> HeadCosts:
    """Return what each head costs; call it only if there is no `reason_against_costs`.

    Algorithm:
        A head is switched off by setting its output to zero before the output projection of its layer. The loss is that
        of predicting every token (decoders) or 15 % of the tokens, masked (encoders), always the same ones. Layers
        before that of the head are not computed again. If the network is large, fewer sentences are read, and if these
        would be too few, a random sample of the heads is switched off.

    Paper: Michel et al. 2019, Are Sixteen Heads Really Better than One?
    """
    layers = _layers(network)
    heads = int(network.model.config.num_attention_heads)
    read, count = _within_budget(network, sentences, layers, heads)
    batches = list(_batches(network, [sentences[i] for i in read], seed))
    chosen = sample(len(layers) * heads, count, seed, "heads switched off")
    switched = [divmod(i, heads) for i in chosen]
    rises = np.zeros((len(read), len(switched)))
    predictions, losses = np.zeros(len(read)), np.zeros(len(read))
    with torch.inference_mode():
        for rows, batch in batches:
            predictions[rows] = batch["weights"].sum(1).cpu().numpy()
            with _recorded(layers) as outputs:
                losses[rows] = _losses(network, batch)
            for column, (layer, head) in enumerate(switched):
                with _replayed(layers, outputs, layer), _switched_off(layers[layer], head, heads):
                    rises[rows, column] = _losses(network, batch) - losses[rows]
    return HeadCosts(len(layers), heads, switched, rises, predictions, float(losses.sum() / predictions.sum()))


def _layers(network: ProbedNetwork) -> list[_Layer]:
    """Return the layers in order; those that share their weights (ALBERT) have the same modules."""
    modules = dict(network.model.base_model.named_modules())
    found = [
        (modules[name.removesuffix(suffix).removesuffix(".")], module)
        for name, module in modules.items()
        for suffix in _OUTPUT_PROJECTIONS
        if name.endswith(f".{suffix}")
    ]
    count = int(network.model.config.num_hidden_layers)
    if not found or count % len(found):
        return []
    repeats = count // len(found)
    return [_Layer(*found[i // repeats], i % repeats) for i in range(count)]


def _within_budget(
    network: ProbedNetwork, sentences: Sequence[WordTokens], layers: Sequence[_Layer], heads: int
) -> tuple[list[int], int]:
    """Return the indices of the sentences to read, evenly spaced, and the number of heads to switch off."""
    body = sum(parameter.numel() for layer in layers for parameter in layer.module.parameters())
    config = network.model.config
    predicted = 1.0 if network.family == "decoder" else _MASK_RATE
    per_token = body + 2 * predicted * config.vocab_size * config.hidden_size  # of the body, half on average
    count = len(layers) * heads
    fewest, most = _TOKENS
    tokens = min(most, max(fewest, _FLOPS / (per_token * count)))
    count = max(1, min(count, int(_FLOPS / (per_token * tokens))))
    mean = sum(len(sentence.ids) for sentence in sentences) / len(sentences)
    wanted = min(len(sentences), max(2, round(tokens / mean)))
    return [i * len(sentences) // wanted for i in range(wanted)], count


def _batches(
    network: ProbedNetwork, sentences: Sequence[WordTokens], seed: int
) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
    """Yield the indices of sentences with their inputs, the predicted positions, their labels and weights."""
    lengths = [len(sentence.ids) for sentence in sentences]
    for rows in token_batches(range(len(sentences)), lengths, max(1, MAX_LOGITS // network.model.config.vocab_size)):
        ids = [sentences[i].ids for i in rows]
        positions = [_predicted(network, sentences[i], seed, i) for i in rows]
        slots = max(map(len, positions))
        batch = network.batch(ids)
        padded = torch.tensor([part + [0] * (slots - len(part)) for part in positions], device=network.device)
        batch |= {
            "positions": padded,
            "labels": batch["input_ids"].gather(1, padded),
            "weights": torch.tensor([[1.0] * len(p) + [0.0] * (slots - len(p)) for p in positions]).to(network.device),
        }
        if network.family == "encoder":
            mask: Any = network.tokenizer.mask_token_id
            for row, part in enumerate(positions):
                batch["input_ids"][row, part] = mask
        yield rows, batch


def _predicted(network: ProbedNetwork, sentence: WordTokens, seed: int, index: int) -> list[int]:
    if network.family == "decoder":
        return list(range(len(start_of(network)), len(sentence.ids)))
    tokens = sorted(position for word in sentence.words for position in word)
    count = max(1, round(_MASK_RATE * len(tokens)))
    picked = generator(seed, 0, index, "heads switched off").choice(len(tokens), count, replace=False)
    return [tokens[i] for i in sorted(picked.tolist())]


def _losses(network: ProbedNetwork, batch: dict[str, torch.Tensor]) -> Maps:
    """Return the loss of each row in nats, summed over its predictions."""
    if network.family == "encoder":
        logits = masked_logits(network.model, batch)
        each = cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten(), reduction="none")
        losses: Maps = (each.view(batch["labels"].shape) * batch["weights"]).double().sum(1).cpu().numpy()
        return losses
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    states = network.model.base_model(**inputs, use_cache=False)[0]
    rows, slots = batch["weights"].nonzero(as_tuple=True)
    # Logits of a large vocabulary are costly, so padding has none.
    logits = head_logits(network.model, states[rows, batch["positions"][rows, slots] - 1][None])[0]
    each = cross_entropy(logits.float(), batch["labels"][rows, slots], reduction="none")
    sums: Maps = torch.zeros(len(states), dtype=torch.float64).index_add(0, rows.cpu(), each.double().cpu()).numpy()
    return sums


@contextmanager
def _recorded(layers: Sequence[_Layer]) -> Iterator[dict[torch.nn.Module, Any]]:
    """Record what each layer returns while the context is open."""
    outputs: dict[torch.nn.Module, Any] = {}

    def record(module: torch.nn.Module, _: Any, output: Any) -> None:
        outputs[module] = output

    handles = [layer.module.register_forward_hook(record) for layer in layers]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _replayed(layers: Sequence[_Layer], outputs: dict[torch.nn.Module, Any], layer: int) -> Iterator[None]:
    """Let the layers before one return what they returned before; layers with shared weights are computed again."""
    earlier = [] if len(outputs) < len(layers) else [each.module for each in layers[:layer]]
    for module in earlier:
        module.forward = lambda *_, __output=outputs[module], **___: __output  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in earlier:
            del module.forward


@contextmanager
def _switched_off(layer: _Layer, head: int, heads: int) -> Iterator[None]:
    """Set the output of a head to zero."""
    calls = 0

    def silence(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        nonlocal calls
        calls += 1
        if calls != layer.turn + 1:
            return None
        states = inputs[0].clone()  # (rows, length, heads × size)
        size = states.shape[-1] // heads
        states[..., head * size : (head + 1) * size] = 0
        return (states, *inputs[1:])

    handle = layer.projection.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        handle.remove()
