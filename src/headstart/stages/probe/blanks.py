"""Blanks in texts (`___`), and what a network predicts for them after each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headstart.objectives.chunked import head_logits
from headstart.stages.generate import BLANK
from headstart.stages.probe.likelihood import MAX_LOGITS, start_of, token_batches
from headstart.stages.probe.network import ProbedNetwork
from headstart.tasks.framing import frame

_FINAL_NORMS = ("final_norm", "ln_f", "final_layer_norm", "final_layernorm", "norm", "norm_f", "layer_norm")
"""What networks with pre-normalization call the norm between their last layer and the head."""


@dataclass(frozen=True)
class Blank:
    """The input of a network, and the position whose prediction fills the blank."""

    ids: list[int]
    position: int
    answer: int | None = None
    """The token of the right answer."""


def find_blanks(network: ProbedNetwork, text: str) -> list[Blank]:
    """Return the blanks of a text: all of them for an encoder, for a decoder the first one, after the text before it.

    A blank beyond the longest input of the network is left out.
    """
    prefix, suffix = frame(network.tokenizer)
    if network.family == "decoder":
        start = start_of(network)
        ids = network.encode(text.partition(BLANK)[0].rstrip())
        ids = [*start, *ids[max(0, len(ids) + len(start) - network.max_length) :]]
        return [Blank(ids, len(ids) - 1)]
    ids = [*prefix, *network.encode(text.replace(BLANK, str(network.tokenizer.mask_token))), *suffix]
    if len(ids) > network.max_length:
        return []
    return [Blank(ids, i) for i, token in enumerate(ids) if token == network.tokenizer.mask_token_id]


def answered_blank(network: ProbedNetwork, text: str, answer: str) -> Blank | None:
    """Return the blank of a text with the token of its answer, or None if the answer is not one token."""
    blanks = find_blanks(network, text)
    if len(blanks) != 1 or text.count(BLANK) != 1:
        return None
    blank = blanks[0]
    if network.family == "decoder":
        full = [*start_of(network), *network.encode(text.partition(BLANK)[0] + answer)]
        is_one = len(full) == len(blank.ids) + 1 and full[:-1] == blank.ids
        return Blank(blank.ids, blank.position, full[-1]) if is_one else None
    prefix, suffix = frame(network.tokenizer)
    full = [*prefix, *network.encode(text.replace(BLANK, answer)), *suffix]
    others = [token for i, token in enumerate(full) if i != blank.position]
    same = others == [token for i, token in enumerate(blank.ids) if i != blank.position]
    if len(full) != len(blank.ids) or not same or full[blank.position] == network.tokenizer.unk_token_id:
        return None
    return Blank(blank.ids, blank.position, full[blank.position])


def predictions_by_layer(
    network: ProbedNetwork, blanks: Sequence[Blank]
) -> Iterator[tuple[list[int], int, torch.Tensor]]:
    """Yield log-probabilities (rows, vocabulary) after each layer, with the indices of the blanks and the layer.

    Algorithm:
        The logit lens: the states after a layer go through the network's final norm, if it has one, and its head.
        Layer 0 is the embeddings. After the last layer, these are the predictions of the network itself.

    Paper: nostalgebraist 2020, the logit lens
    """
    model: Any = network.model
    body = getattr(model.base_model, "decoder", model.base_model)
    norm = next((getattr(body, name) for name in _FINAL_NORMS if hasattr(body, name)), None)
    lengths = [len(blank.ids) for blank in blanks]
    for indices in token_batches(range(len(blanks)), lengths, MAX_LOGITS // model.config.vocab_size):
        batch = network.batch([blanks[i].ids for i in indices])
        rows = torch.arange(len(indices), device=network.device)
        positions = torch.tensor([blanks[i].position for i in indices], device=network.device)
        with torch.inference_mode():
            output = model.base_model(**batch, output_hidden_states=True)
            states = [state[rows, positions] for state in output.hidden_states[:-1]]  # each (rows, hidden)
            states = [*(state if norm is None else norm(state) for state in states), output[0][rows, positions]]
            for layer, state in enumerate(states):
                yield indices, layer, head_logits(model, state[:, None])[:, 0].float().log_softmax(-1)


def token_text(network: ProbedNetwork, token: int) -> str:
    """Return a token as text, without the mark of a space before it; white space by its name."""
    text = str(network.tokenizer.decode([token]))
    if text and text.isspace():
        return "(line break)" if "\n" in text else "(space)"
    return text.strip() or str(network.tokenizer.convert_ids_to_tokens(token))
