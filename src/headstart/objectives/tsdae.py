"""Denoising sentences through one vector: delete most words, and reconstruct the sentence from its pooled vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from headstart.core.config import Section
from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch, Bools, Ints, Rows, RowShape, Vocabulary
from headstart.core.lazy import torch
from headstart.core.randomness import generator
from headstart.objectives.attention import causal_states
from headstart.objectives.chunked import TextObjective

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headstart.objectives.tsdae_network import TiedAutoEncoder


class TSDAE(TextObjective):
    """Reconstruct a sentence, most of whose words were deleted, from the sentence vector alone (TSDAE).

    The encoder reads what is left of the sentence, and its states are pooled into one vector. The decoder predicts each
    token of the original sentence from the tokens before it and that vector, so the vector must contain what the
    deleted words meant. The decoder is the same network with causal attention: all weights are shared, and only its
    cross-attention is added. It is meant for sentence vectors of a domain without labels, mostly from a checkpoint.

    Words are deleted independently of each other, and at least one is kept, as in sentence-transformers. [CLS], [SEP]
    and unknown tokens are kept; padding and unknown tokens are not predicted. A row is one sentence, so `seq_length`
    should be near the length of long sentences: the rest of a row is padding.

    The cross-attention is not part of the plain artifact. It is saved in the subfolder `cross_attention/` for continued
    pre-training.
    """

    paper: ClassVar[str] = "Wang et al. 2021, TSDAE"
    families: ClassVar[tuple[str, ...]] = ("encoder",)
    recomputable: ClassVar[bool] = False

    class Config(Section):
        """The fraction of words to delete, and the sentence vector."""

        name: Literal["tsdae"] = "tsdae"
        rate: float = Field(0.6, gt=0, lt=1, description="fraction of a sentence's words to delete; TSDAE used 0.6")
        pooling: Literal["mean", "cls"] = Field(
            "mean",
            description="the sentence vector: the mean over the states, as `embed`, `linear_probe` and `index` use it; "
            "or the state of [CLS], as in the paper",
        )
        chunk: int = Field(512, ge=1, description="number of positions whose logits are in memory at a time")

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments."""
        self.config = config or TSDAE.Config(**settings)

    def row_shape(self, seq_length: int) -> RowShape:
        """Return one sentence as `[CLS] … [SEP]`, padded."""
        return RowShape(seq_length, one_sentence=True)

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return a masked-LM network with the cross-attention, loaded from the network's folder or new.

        The config of the network names the pooling that is trained, so fine-tuning starts from it.
        """
        from headstart.objectives.tsdae_network import TiedAutoEncoder, load_or_create_cross_attention

        network = make(self.auto_class)
        if hasattr(network.config, "classifier_pooling"):
            network.config.classifier_pooling = self.config.pooling
        return TiedAutoEncoder(self, network, load_or_create_cross_attention(network))

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the network as the main part and the cross-attention in its subfolder."""
        from headstart.objectives.tsdae_network import TiedAutoEncoder

        assert isinstance(module, TiedAutoEncoder)
        return {"": module.network, "cross_attention": module.cross_attention}

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Delete words; returns input_ids and attention_mask of the encoder, decoder_input_ids, labels and weights.

        The decoder's input is the original row without its last token, and the labels are the row without its first.
        """
        inputs, attention = np.full_like(rows.ids, vocabulary.pad), np.zeros_like(rows.ids)  # (rows, length)
        for row, sample in enumerate(rows.samples):
            rng = generator(seed, sample.epoch, sample.index, "tsdae")
            kept = rows.ids[row, self._kept(rows.ids[row], vocabulary, rng)]
            inputs[row, : len(kept)], attention[row, : len(kept)] = kept, 1
        labels = rows.ids[:, 1:].copy()
        predicted = ~vocabulary.special[labels] | (labels == vocabulary.sep)
        arrays = {
            "input_ids": inputs,
            "attention_mask": attention,
            "decoder_input_ids": rows.ids[:, :-1].copy(),
            "labels": labels,
            "weights": predicted.astype(np.float32),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def encode(self, module: TiedAutoEncoder, batch: Batch) -> torch.Tensor:
        """Return the sentence vectors of the damaged sentences, shape (rows, hidden)."""
        mask = batch["attention_mask"]
        states = module.network.base_model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
        if self.config.pooling == "cls":
            vectors: torch.Tensor = states[torch.arange(len(mask)), mask.argmax(1)]  # left padding shifts [CLS]
            return vectors
        weights = mask.unsqueeze(-1).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)

    def decode(self, module: TiedAutoEncoder, vectors: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the decoder's last states (rows, length, hidden) for sentence vectors and the tokens read so far."""
        from headstart.objectives.tsdae_network import attending_to

        with attending_to(module, vectors):
            return causal_states(module.network, ids)

    def predictions(self, model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run encoder and decoder and return the predicting states with their labels and weights."""
        states = self.decode(model, self.encode(model, batch), batch["decoder_input_ids"])
        return states, batch["labels"], batch["weights"]

    def network_of(self, model: Any) -> PreTrainedModel:
        """Return the network of the module, whose masked-LM head predicts the tokens."""
        network: PreTrainedModel = model.network
        return network

    def _kept(self, ids: Ints, vocabulary: Vocabulary, rng: np.random.Generator) -> Bools:
        """Return which tokens of a row remain: special ones except padding, and the words that are not deleted."""
        special = vocabulary.special[ids]
        word = np.cumsum(vocabulary.word_starts(ids) | special)
        words = np.unique(word[~special])
        survives = rng.random(len(words)) >= self.config.rate
        if len(words) and not survives.any():
            survives[rng.integers(len(words))] = True
        kept: Bools = (special & (ids != vocabulary.pad)) | np.isin(word, words[survives])
        return kept
