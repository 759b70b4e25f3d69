"""Mixtures: several objectives train one network, each row with one of them."""

from __future__ import annotations

import copy
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from headstart.core import registry
from headstart.core.config import Section, resolve_sections
from headstart.core.contracts import ModelMaker, Objective
from headstart.core.data import Batch, Rows, RowShape, Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.lazy import torch
from headstart.core.randomness import generator
from headstart.core.recipes.schema import weighted_section_schema
from headstart.objectives.attention import additive_mask, attention_mask
from headstart.objectives.base import BaseObjective, ObjectiveCollator

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def _complete_schema(schema: dict[str, Any]) -> None:
    schema["items"] = weighted_section_schema("objectives", exclude=("mixture",))


class Mixture(BaseObjective):
    """Train one network with several objectives; each row uses one of them, drawn by weight (UL2).

    The draw depends only on the seed and the row's epoch and index. The loss is the mean over all predictions of a
    batch, as in T5 and UL2, so an objective with more predictions per row has more influence than its fraction of the
    rows. Rows have the length of the longest member's rows; each member reads the beginning that it needs.

    A batch contains `member`, the index of each row's member, and every member's tensors for every row under that
    index, as in `0/input_ids`, with zeros for the rows of other members. The model reads each row once. Members share
    one network and the special tokens of rows, so an objective that trains additional networks cannot be a member.
    """

    paper: ClassVar[str] = "Tay et al. 2023, UL2; multitask masked LM: Dong et al. 2019, UniLM"
    families: ClassVar[tuple[str, ...]] = ("encoder",)
    """The families of the default members; an instance has the families that all of its members train."""
    same_passes: ClassVar[bool] = False
    """A member without rows in a batch makes no forward pass."""

    class Config(Section):
        """The objectives and their weights."""

        name: Literal["mixture"] = "mixture"
        objectives: list[Any] = Field(
            [{"name": "masked_lm"}, {"name": "masked_lm", "whole_words": True}],
            description="sections like `objective`, each with a `weight`: its relative frequency",
            json_schema_extra=_complete_schema,
        )

        @field_validator("objectives", mode="before")
        @classmethod
        def _known(cls, value: Any) -> Any:
            if value == []:
                raise ValueError("a mixture needs at least one objective.")
            return (
                resolve_sections("objectives", "objectives", value, ("mixture",)) if isinstance(value, list) else value
            )

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments; raises if the members are incompatible."""
        sections = (config or Mixture.Config(**settings)).objectives
        settings_of = [section.model_dump() for section in sections]
        self._cumulative_weights = np.cumsum([settings.pop("weight") for settings in settings_of])
        self.members = [_build_member(settings) for settings in settings_of]
        self.labels = [f"{settings['name']}-{index}" for index, settings in enumerate(settings_of)]
        self._reads_whole_rows = False
        self._lengths: dict[int, list[int]] = {}
        self.families = _shared_families(self.labels, self.members)  # type: ignore[misc]
        self.row_shape(8)  # raises if the members' rows differ, before any text is prepared

    def special_tokens(self) -> Sequence[str]:
        """Return the special tokens of all members without duplicates."""
        return list(dict.fromkeys(token for member in self.members for token in member.special_tokens()))

    def row_shape(self, seq_length: int) -> RowShape:
        """Return the shape of the longest member's rows; raises if members differ in [CLS], [SEP] or segments.

        Rows have [SEP] between documents if any member needs it; the others treat it like any special token.
        """
        shapes = [member.row_shape(seq_length) for member in self.members]
        longest = max(shape.length for shape in shapes)
        merged = ("separate_documents", "sentence_starts")
        either = {key: any(getattr(shape, key) for shape in shapes) for key in merged}
        framed = [replace(shape, length=longest, **either) for shape in shapes]
        for label, shape in zip(self.labels, framed, strict=True):
            if shape != framed[0]:
                frame = {key: value for key, value in vars(shape).items() if value != getattr(framed[0], key)}
                raise RecipeError(
                    f"{self.labels[0]} and {label} need rows of different shapes: the latter has "
                    + ", ".join(f"{key} {value}" for key, value in frame.items()),
                    allowed="The members of a mixture read the same rows",
                    do="Combine similar objectives, such as span_corruption and prefix_lm",
                )
        return framed[0]

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the network that all members share; raises if one needs another or an additional network."""
        networks: dict[str, PreTrainedModel] = {}

        def shared(auto_class: str, part: str = "", scale: float = 1.0, **changes: Any) -> PreTrainedModel:
            if part or changes or (networks and auto_class not in networks):
                needed = " ".join([auto_class, part, *changes]).strip()
                raise RecipeError(
                    f"{label} needs {needed}" + (f", {self.labels[0]} {next(iter(networks))}" if networks else ""),
                    allowed="The members of a mixture share one network with its head",
                    do="Remove one of them, or train it alone",
                )
            networks[auto_class] = networks.get(auto_class) or make(auto_class, scale=scale)
            return networks[auto_class]

        for label, member in zip(self.labels, self.members, strict=True):
            if member.assemble(shared) not in networks.values():
                raise RecipeError(
                    f"{label} trains additional weights",
                    allowed="The members of a mixture share one network and add no weights to it",
                    do="Remove it, or train it alone",
                )
        return next(iter(networks.values()))

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Corrupt each row with its member; returns `member` and the tensors of all members, with their index first."""
        drawn = np.asarray([self._draw_member(sample, seed) for sample in rows.samples], dtype=np.int64)  # (rows,)
        batch = {"member": torch.from_numpy(drawn)}
        lengths = self._member_lengths(rows.ids.shape[1])
        for index, (member, length) in enumerate(zip(self.members, lengths, strict=True)):
            selected = np.flatnonzero(drawn == index)
            # A member without rows corrupts another member's row, to get the shapes of its tensors.
            tensors = member.corrupt(
                rows.take(selected if len(selected) else np.zeros(1, dtype=np.int64), length), vocabulary, seed
            )
            for name, tensor in tensors.items():
                batch[f"{index}/{name}"] = padded = tensor.new_zeros((len(drawn), *tensor.shape[1:]))
                padded[selected] = tensor[: len(selected)]
        return batch

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions of all members."""
        return float(sum(self.members[index].weight(part) for index, part in self._parts(batch)))

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads."""
        return sum(self.members[index].tokens(part) for index, part in self._parts(batch))

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the sum of the members' losses, each summed over its rows."""
        return torch.stack([self.members[index].loss(model, part) for index, part in self._parts(batch)]).sum()

    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return the summed loss, and for each member its summed loss and the weight to divide it by."""
        sums = {f"{label}/{name}": 0.0 for label in self.labels for name in ("loss", "weight")}
        for index, part in self._parts(batch):
            sums[f"{self.labels[index]}/loss"] = self.members[index].measure(model, part)["loss"]
            sums[f"{self.labels[index]}/weight"] = self.members[index].weight(part)
        return {"loss": sum(value for name, value in sums.items() if name.endswith("/loss")), **sums}

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the model arguments of a batch whose rows belong to one member; the collator passes single rows."""
        (index, part), *others = self._parts(batch)
        if others:
            raise RecipeError(
                "the batch contains rows of several objectives, which one call of a model cannot read",
                do="Pass one row at a time",
            )
        inputs = self.members[index].as_inputs(part)
        if "attention_mask" not in inputs and any(name.endswith("/attention") for name in batch):
            # Other members have a four-dimensional mask, so this one gets a bidirectional mask of that shape.
            inputs["attention_mask"] = additive_mask(attention_mask(batch["member"] * 0, part["input_ids"].shape[1]))
        return inputs

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> ObjectiveCollator:
        """Return a collator in which the member of each example reads the whole example."""
        whole = copy.copy(self)
        whole._reads_whole_rows = True
        return BaseObjective.collator(whole, tokenizer, seed)

    def _draw_member(self, sample: Sample, seed: int) -> int:
        draw = generator(seed, sample.epoch, sample.index, "mixture").random() * self._cumulative_weights[-1]
        return int(np.searchsorted(self._cumulative_weights, draw, side="right"))

    def _parts(self, batch: Batch) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        """Yield the index of each member that has rows in the batch, with its tensors for these rows."""
        for index in range(len(self.members)):
            selected, prefix = torch.nonzero(batch["member"] == index).flatten(), f"{index}/"
            if len(selected):
                named = ((name, tensor) for name, tensor in batch.items() if name.startswith(prefix))
                yield index, {name.removeprefix(prefix): tensor[selected] for name, tensor in named}

    def _member_lengths(self, width: int) -> list[int]:
        """Return the number of tokens that each member reads of rows with `width` tokens.

        It is the member's row length at the smallest `seq_length` for which the longest member reads `width` tokens.
        """
        if self._reads_whole_rows:
            return [width] * len(self.members)
        if width not in self._lengths:
            seq_length = 1 + bisect_left(range(1, width + 1), width, key=self._longest)
            self._lengths[width] = [min(width, member.row_shape(seq_length).length) for member in self.members]
        return self._lengths[width]

    def _longest(self, seq_length: int) -> int:
        try:
            return self.row_shape(seq_length).length
        except RecipeError:
            return sys.maxsize  # too long for a member, which has too few sentinels for instance


def _build_member(settings: dict[str, Any]) -> Objective:
    """Build a member from its own Config, which can be pickled, unlike the generated Config with a weight."""
    config = registry.resolve("objectives", settings["name"]).Config.model_validate(settings)
    member: Objective = registry.build("objectives", config)
    return member


def _shared_families(labels: Sequence[str], members: Sequence[Objective]) -> tuple[str, ...]:
    """Return the families that every member trains, in the order of the first member; raises if there is none."""
    shared = tuple(family for family in members[0].families if all(family in member.families for member in members))
    if not shared:
        families = "; ".join(f"{label} {', '.join(m.families)}" for label, m in zip(labels, members, strict=True))
        raise RecipeError(
            "the members of the mixture have no family in common",
            allowed=f"They train: {families}",
            do="Combine objectives that train the same family",
        )
    return shared
