"""What tasks share whose answer is written token by token, by an encoder-decoder or a decoder.

An encoder-decoder reads the source and writes the target. A decoder reads the source and goes on with the target after
a space; its loss is on the target alone, and what it is to continue is padded on the left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from headstart.core.config import Section
from headstart.core.data import Batch, Feature, InputSpec
from headstart.tasks.base import BaseTask, Padding, stack
from headstart.tasks.source import unwrap_peft

_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "use_cache")
"""What a generation config says of its network, and not of what is to be written."""


class WritingSettings(Section):
    """How long a target is, and how one is searched for; names are those of transformers' GenerationConfig."""

    kind: str = ""
    max_target: int = Field(64, ge=2, description="tokens of the longest target: cut in training, the end of writing")
    num_beams: int = Field(1, ge=1, description="beams of the search for the likeliest text; 1: greedy")
    length_penalty: float = Field(1.0, description="with beams: above 0 favours long texts, below 0 short ones")
    no_repeat_ngram_size: int = Field(0, ge=0, description="no run of so many tokens is written twice; 0: any may be")

    def keywords(self) -> dict[str, Any]:
        """Return how it is searched, for transformers' GenerationConfig."""
        search = {"do_sample": False, "num_beams": self.num_beams, "no_repeat_ngram_size": self.no_repeat_ngram_size}
        return search | ({"length_penalty": self.length_penalty} if self.num_beams > 1 else {})


class WritingTask(BaseTask):
    """The answers of a task that writes texts; a subclass says which, by `encode`, `decode` and its columns."""

    paddings: ClassVar[Mapping[str, Padding]] = {
        "input_ids": Padding(mask="attention_mask"),
        "labels": Padding(-100),
        "end": Padding(0),
        "room": Padding(0),
    }

    def auto_class(self, family: str) -> str:
        """Name the language models of the two families."""
        return "AutoModelForCausalLM" if family == "decoder" else "AutoModelForSeq2SeqLM"

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Let the saved model write as this task does; what a checkpoint was once told of writing does not count."""
        network: Any = unwrap_peft(model)
        kept = {name: getattr(network.generation_config, name) for name in _KEPT}
        network.generation_config = GenerationConfig(
            **self.config.keywords(), **kept, max_new_tokens=self.config.max_target
        )

    def room(self, reading: InputSpec) -> int:
        """Return how many tokens a target may have; in a decoder it shares max_length with the source."""
        most = reading.max_length // 2 if reading.family == "decoder" else self.config.max_target
        return min(self.config.max_target, most)

    def written(self, sources: Sequence[str], targets: Sequence[str] | None, reading: InputSpec) -> list[Feature]:
        """Return the features of some texts: with targets to train on, without them to be answered."""
        tokenizer, end = reading.tokenizer, end_of(reading.tokenizer)
        decodes = reading.family == "decoder"
        room = self.room(reading)
        most = reading.max_length - room if decodes else reading.max_length
        encoded = tokenizer(list(sources), truncation=True, max_length=most, return_attention_mask=False)
        read = encoded["input_ids"]
        # A slow tokenizer does not tell what it left out.
        cut = [bool(e.overflowing) for e in encoded.encodings] if tokenizer.is_fast else [False] * len(read)
        if decodes:
            # The end of the text is what the model is to write.
            read = [ids[:-1] if ids and ids[-1] == end else ids for ids in read]
            first = end if tokenizer.bos_token_id is None else tokenizer.bos_token_id
            read = [ids or [first] for ids in read]
        features: list[Feature] = [
            {"input_ids": ids, "end": end, "room": room, "cut": lacks} for ids, lacks in zip(read, cut, strict=True)
        ]
        for feature, target in zip(features, targets or (), strict=targets is not None):
            whole = self._target(target, reading)
            ids = whole[:room]
            feature["cut_target"] = len(whole) > room
            before = len(feature["input_ids"]) if decodes else 0
            feature["labels"] = [-100] * before + ids
            if decodes:
                feature["input_ids"] = feature["input_ids"] + ids
        return features

    def collate(self, features: Sequence[Feature], reading: InputSpec) -> Batch:
        """Pad and stack; what a decoder is to continue must stand at the right, next to what it writes."""
        batch = dict(super().collate(features, reading))
        if reading.family == "decoder" and "labels" not in batch:
            ids = [feature["input_ids"] for feature in features]
            batch["input_ids"] = stack(ids, reading.pad, "left")
            batch["attention_mask"] = stack([[1] * len(row) for row in ids], 0, "left")
        return batch

    def notes(self, features: Sequence[Feature]) -> list[str]:
        """Say how many sources the model does not read to their end, and how many targets it does not learn to."""
        told = {"cut": "sources are cut at training.max_length", "cut_target": "targets are cut at task.max_target"}
        counts = {key: sum(bool(feature.get(key)) for feature in features) for key in told}
        return [f"{count:,} of {len(features):,} {told[key]}." for key, count in counts.items() if count]

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return cross-entropy, summed over the targets' tokens."""
        labels, inputs = batch["labels"], {name: batch[name] for name in ("input_ids", "attention_mask")}
        if model.config.is_encoder_decoder:
            network: Any = model
            inputs["decoder_input_ids"] = network.prepare_decoder_input_ids_from_labels(labels=labels)
        # Virtual tokens of peft's stand before those of the batch.
        logits = model(**inputs).logits[:, -labels.shape[1] :].float()
        if not model.config.is_encoder_decoder:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that are read, by an encoder-decoder's two sides together."""
        targets, read = batch.get("labels"), batch["input_ids"].numel()
        # A decoder's targets lie among its inputs, and its labels have their shape.
        return read if targets is None or targets.shape == batch["input_ids"].shape else read + targets.numel()

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Let the model write, and return the ids up to the end of the text."""
        network: Any = model
        # An adapter is opened on a checkpoint with a config of its own.
        self.prepare_head(model)
        end = int(batch["end"][0])
        found = network.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], eos_token_id=end, pad_token_id=end,
            max_new_tokens=int(batch["room"].max()), max_length=None,
        )  # fmt: skip
        new = found[:, 1 if model.config.is_encoder_decoder else batch["input_ids"].shape[1] :].tolist()
        return [ids[: ids.index(end)] if end in ids else ids for ids in new]

    def _target(self, text: str, reading: InputSpec) -> list[int]:
        tokenizer, end = reading.tokenizer, end_of(reading.tokenizer)
        if reading.family == "decoder":
            return [*tokenizer(" " + text, add_special_tokens=False)["input_ids"], end]
        ids: list[int] = tokenizer(text_target=text)["input_ids"]
        return ids if ids and ids[-1] == end else [*ids, end]


def end_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the token that ends a text: [SEP] where a tokenizer names no other."""
    found: int = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    return found


def text_of(ids: Sequence[int], reading: InputSpec) -> str:
    """Return written ids as text."""
    return str(reading.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()
