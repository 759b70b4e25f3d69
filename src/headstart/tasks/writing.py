"""Shared parts of the tasks that generate text, with an encoder-decoder or a decoder.

An encoder-decoder reads the source and generates the target. A decoder continues the source with a space and the
target; its loss covers the target only, and sources are padded on the left for generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Batch, Feature, InputSpec
from headstart.core.lazy import F, transformers
from headstart.tasks.base import BaseTask, Padding, stack
from headstart.tasks.source import unwrap_peft

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "use_cache")
"""Fields of a generation config that describe the network, not the decoding."""


class WritingSettings(Section):
    """Target length and decoding; the names are those of transformers' GenerationConfig."""

    kind: str = ""
    max_target: int = Field(64, ge=2, description="maximum length of a target in tokens, in training and in generation")
    num_beams: int = Field(1, ge=1, description="number of beams for beam search; 1: greedy decoding")
    length_penalty: float = Field(1.0, description="for beam search: above 0 favors long sequences, below 0 short ones")
    no_repeat_ngram_size: int = Field(0, ge=0, description="n-grams of this size occur only once; 0: no limit")

    def keywords(self) -> dict[str, Any]:
        """Return the decoding settings as keywords of transformers' GenerationConfig."""
        search = {"do_sample": False, "num_beams": self.num_beams, "no_repeat_ngram_size": self.no_repeat_ngram_size}
        return search | ({"length_penalty": self.length_penalty} if self.num_beams > 1 else {})


class WritingTask(BaseTask):
    """Base class of tasks that generate text; subclasses define `encode`, `decode` and their columns."""

    paddings: ClassVar[Mapping[str, Padding]] = {
        "input_ids": Padding(mask="attention_mask"),
        "labels": Padding(-100),
        "end": Padding(0),
        "max_new_tokens": Padding(0),
    }

    def auto_class(self, family: str) -> str:
        """Return the language model class of the family."""
        return "AutoModelForCausalLM" if family == "decoder" else "AutoModelForSeq2SeqLM"

    def prepare_head(self, model: PreTrainedModel) -> None:
        """Set the generation config of the model to this task's; it replaces the checkpoint's."""
        network: Any = unwrap_peft(model)
        kept = {name: getattr(network.generation_config, name) for name in _KEPT}
        network.generation_config = transformers.GenerationConfig(
            **self.config.keywords(), **kept, max_new_tokens=self.config.max_target
        )

    def max_new_tokens(self, spec: InputSpec) -> int:
        """Return the maximum number of target tokens; in a decoder, source and target share max_length."""
        limit = spec.max_length // 2 if spec.family == "decoder" else self.config.max_target
        return min(self.config.max_target, limit)

    def features_of(
        self, sources: Sequence[str], targets: Sequence[str] | None, spec: InputSpec, is_framed: bool = False
    ) -> list[Feature]:
        """Tokenize sources, with targets for training and without for generation.

        Sources that are framed contain their special tokens, and lose their start if they are too long.
        """
        tokenizer, end = spec.tokenizer, end_of(spec.tokenizer)
        is_decoder = spec.family == "decoder"
        max_new = self.max_new_tokens(spec)
        max_source = spec.max_length - max_new if is_decoder else spec.max_length
        if is_framed:
            whole_ids = tokenizer(list(sources), add_special_tokens=False, verbose=False)["input_ids"]
            all_ids, cut = [ids[-max_source:] for ids in whole_ids], [len(ids) > max_source for ids in whole_ids]
        else:
            encoded = tokenizer(list(sources), truncation=True, max_length=max_source, return_attention_mask=False)
            all_ids = encoded["input_ids"]
            # Slow tokenizers do not report truncation.
            cut = [bool(e.overflowing) for e in encoded.encodings] if tokenizer.is_fast else [False] * len(all_ids)
        if is_decoder:
            # The model generates the end-of-text token, so the source must not end with it.
            all_ids = [ids[:-1] if ids and ids[-1] == end else ids for ids in all_ids]
            first = end if tokenizer.bos_token_id is None else tokenizer.bos_token_id
            all_ids = [ids or [first] for ids in all_ids]
        features: list[Feature] = [
            {"input_ids": ids, "end": end, "max_new_tokens": max_new, "cut": is_cut}
            for ids, is_cut in zip(all_ids, cut, strict=True)
        ]
        for feature, target in zip(features, targets or (), strict=targets is not None):
            whole = self._target(target, spec, is_framed)
            ids = whole[:max_new]
            feature["cut_target"] = len(whole) > max_new
            before = len(feature["input_ids"]) if is_decoder else 0
            feature["labels"] = [-100] * before + ids
            if is_decoder:
                feature["input_ids"] = feature["input_ids"] + ids
        return features

    def collate(self, features: Sequence[Feature], spec: InputSpec) -> Batch:
        """Pad and stack; a decoder's sources are padded on the left for generation."""
        batch = dict(super().collate(features, spec))
        if spec.family == "decoder" and "labels" not in batch:
            ids = [feature["input_ids"] for feature in features]
            batch["input_ids"] = stack(ids, spec.pad, "left")
            batch["attention_mask"] = stack([[1] * len(row) for row in ids], 0, "left")
        return batch

    def notes(self, features: Sequence[Feature]) -> list[str]:
        """Return notes with the number of truncated sources and of truncated targets."""
        messages = {
            "cut": "sources are truncated to training.max_length",
            "cut_target": "targets are truncated to task.max_target",
        }
        counts = {key: sum(bool(feature.get(key)) for feature in features) for key in messages}
        return [f"{count:,} of {len(features):,} {messages[key]}." for key, count in counts.items() if count]

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy, summed over the target tokens."""
        labels, inputs = batch["labels"], {name: batch[name] for name in ("input_ids", "attention_mask")}
        if model.config.is_encoder_decoder:
            network: Any = model
            inputs["decoder_input_ids"] = network.prepare_decoder_input_ids_from_labels(labels=labels)
        # peft's virtual tokens come before those of the batch.
        logits = model(**inputs).logits[:, -labels.shape[1] :].float()
        if not model.config.is_encoder_decoder:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens read, by encoder and decoder together."""
        targets, read = batch.get("labels"), batch["input_ids"].numel()
        # A decoder's inputs include the targets, and its labels have the same shape.
        return read if targets is None or targets.shape == batch["input_ids"].shape else read + targets.numel()

    def predict(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """Generate, and return the new ids up to the end-of-text token."""
        network: Any = model
        # A reopened adapter has the checkpoint's generation config.
        self.prepare_head(model)
        end = int(batch["end"][0])
        generated = network.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], eos_token_id=end, pad_token_id=end,
            max_new_tokens=int(batch["max_new_tokens"].max()), max_length=None,
        )  # fmt: skip
        new = generated[:, 1 if model.config.is_encoder_decoder else batch["input_ids"].shape[1] :].tolist()
        return [ids[: ids.index(end)] if end in ids else ids for ids in new]

    def _target(self, text: str, spec: InputSpec, is_framed: bool) -> list[int]:
        """Return the ids of a target, with the end-of-text token; a framed source ends with all that is before it."""
        tokenizer, end = spec.tokenizer, end_of(spec.tokenizer)
        if spec.family == "decoder":
            return [*tokenizer(text if is_framed else " " + text, add_special_tokens=False)["input_ids"], end]
        ids: list[int] = tokenizer(text_target=text)["input_ids"]
        if not spec.target_cls and ids[:1] == [tokenizer.cls_token_id]:
            ids = ids[1:]
        return ids if ids and ids[-1] == end else [*ids, end]


def end_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the end-of-text token, or of [SEP] if the tokenizer has none."""
    end: int = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    return end


def text_of(ids: Sequence[int], spec: InputSpec) -> str:
    """Decode generated ids to text, without special tokens."""
    return str(spec.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()
