"""Mixtures: several objectives on one network, each row under one of them."""

from __future__ import annotations

import copy
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headstart.core import registry
from headstart.core.config import Section, resolve_sections, schema_of_several
from headstart.core.contracts import ModelMaker, Objective
from headstart.core.data import Batch, Rows, RowShape, Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.randomness import generator
from headstart.objectives.attention import additive, sight
from headstart.objectives.base import BaseObjective, ObjectiveCollator


def _complete_schema(schema: dict[str, Any]) -> None:
    schema["items"] = schema_of_several("objectives", without=("mixture",))


class Mixture(BaseObjective):
    """Train one network by several objectives, each row by one of them, drawn by weight.

    Which one is a function of the seed and the row's epoch and index. The loss is the mean over all predictions of a
    batch, as in T5 and UL2: an objective with more predictions in a row counts for more than its share of the rows.
    Rows are as long as the longest that a member asks for, and each reads as much of the beginning as it wants.

    A batch holds every member's tensors for every row under the member's number, as in `0/input_ids`, with zeros where
    the row is another's, and `member`, the number whose turn it is; the model sees a row once. Members share one
    network and the frame of rows, so that what trains something beside the network cannot be one.
    """

    paper: ClassVar[str] = "Tay et al. 2023, UL2; multitask masked LM: Dong et al. 2019, UniLM"
    families: ClassVar[tuple[str, ...]] = ("encoder",)
    """Those of the default members; a mixture of others has those that all of them train."""
    same_passes: ClassVar[bool] = False
    """A member without a row in a batch makes no pass."""

    class Config(Section):
        """Which objectives, and how often each."""

        name: Literal["mixture"] = "mixture"
        objectives: list[Any] = Field(
            [{"name": "masked_lm"}, {"name": "masked_lm", "whole_words": True}],
            description="sections like `objective`, each with a weight: how often it is drawn",
            json_schema_extra=_complete_schema,
        )

        @field_validator("objectives", mode="before")
        @classmethod
        def _known(cls, value: Any) -> Any:
            if value == []:
                raise ValueError("a mixture has one objective or more.")
            return (
                resolve_sections("objectives", "objectives", value, ("mixture",)) if isinstance(value, list) else value
            )

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords; raises where members do not fit together."""
        sections = (config or Mixture.Config(**settings)).objectives
        settings_of = [section.model_dump() for section in sections]
        self._ends = np.cumsum([settings.pop("weight") for settings in settings_of])
        self.members = [_built(settings) for settings in settings_of]
        self.labels = [f"{settings['name']}-{place}" for place, settings in enumerate(settings_of)]
        self._reads_whole_rows = False
        self._lengths: dict[int, list[int]] = {}
        self.families = _shared_families(self.labels, self.members)  # type: ignore[misc]
        self.row_shape(8)  # raises now, before anything is prepared, where frames differ

    def special_tokens(self) -> Sequence[str]:
        """Name what any of the members needs, once."""
        return list(dict.fromkeys(token for member in self.members for token in member.special_tokens()))

    def row_shape(self, seq_length: int) -> RowShape:
        """Ask for rows as long as the longest that a member asks for; raises where their frames differ.

        They have [SEP] between documents if one member wants it: to the others it is a special token like any.
        """
        shapes = [member.row_shape(seq_length) for member in self.members]
        longest = max(shape.length for shape in shapes)
        either = {key: any(getattr(shape, key) for shape in shapes) for key in ("separates", "sentences")}
        framed = [replace(shape, length=longest, **either) for shape in shapes]
        for label, shape in zip(self.labels, framed, strict=True):
            if shape != framed[0]:
                frame = {key: value for key, value in vars(shape).items() if value != getattr(framed[0], key)}
                raise RecipeError(
                    f"{self.labels[0]} and {label} read rows of different frames: the latter has "
                    + ", ".join(f"{key} {value}" for key, value in frame.items()),
                    allowed="The members of a mixture read the same rows",
                    do="Mix objectives of one kind, such as span_corruption and prefix_lm",
                )
        return framed[0]

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the one network that all members ask for; raises where one wants another, or something beside it."""
        made: dict[str, PreTrainedModel] = {}

        def shared(auto_class: str, part: str = "", scale: float = 1.0, **changes: Any) -> PreTrainedModel:
            if part or changes or (made and auto_class not in made):
                wanted = " ".join([auto_class, part, *changes]).strip()
                raise RecipeError(
                    f"{label} wants {wanted}" + (f", {self.labels[0]} {next(iter(made))}" if made else ""),
                    allowed="The members of a mixture share one network with its head",
                    do="Leave one of them out, or train it alone",
                )
            made[auto_class] = made.get(auto_class) or make(auto_class, scale=scale)
            return made[auto_class]

        for label, member in zip(self.labels, self.members, strict=True):
            if member.assemble(shared) not in made.values():
                raise RecipeError(
                    f"{label} trains more than the network",
                    allowed="The members of a mixture share one network and add nothing to it",
                    do="Leave it out, or train it alone",
                )
        return next(iter(made.values()))

    def corrupt(self, rows: Rows, vocabulary: Vocabulary, seed: int) -> Batch:
        """Let each row's member make its tensors of it; returns `member` and all tensors under its members' numbers."""
        turns = np.asarray([self._turn(sample, seed) for sample in rows.samples], dtype=np.int64)
        batch = {"member": torch.from_numpy(turns)}
        lengths = self._member_lengths(rows.ids.shape[1])
        for place, (member, length) in enumerate(zip(self.members, lengths, strict=True)):
            mine = np.flatnonzero(turns == place)
            # Where no row is this member's, one of the others' says what its tensors look like.
            made = member.corrupt(
                rows.take(mine if len(mine) else np.zeros(1, dtype=np.int64), length), vocabulary, seed
            )
            for name, tensor in made.items():
                batch[f"{place}/{name}"] = spread = tensor.new_zeros((len(turns), *tensor.shape[1:]))
                spread[mine] = tensor[: len(mine)]
        return batch

    def weight(self, batch: Batch) -> float:
        """Return the number of predictions of all members."""
        return float(sum(self.members[place].weight(part) for place, part in self._parts(batch)))

    def tokens(self, batch: Batch) -> int:
        """Return the number of tokens that the model reads."""
        return sum(self.members[place].tokens(part) for place, part in self._parts(batch))

    def loss(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the members' losses, each summed over its rows, in one sum."""
        return torch.stack([self.members[place].loss(model, part) for place, part in self._parts(batch)]).sum()

    def measure(self, model: PreTrainedModel, batch: Batch) -> dict[str, float]:
        """Return the summed loss, and each member's with the weight by which it is to be divided."""
        sums = {f"{label}/{name}": 0.0 for label in self.labels for name in ("loss", "weight")}
        for place, part in self._parts(batch):
            sums[f"{self.labels[place]}/loss"] = self.members[place].measure(model, part)["loss"]
            sums[f"{self.labels[place]}/weight"] = self.members[place].weight(part)
        return {"loss": sum(value for name, value in sums.items() if name.endswith("/loss")), **sums}

    def as_inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the keywords of the one member whose rows these are; the collator asks row by row."""
        (place, part), *others = self._parts(batch)
        if others:
            raise RecipeError("the rows of several objectives cannot be one call of a model", do="Ask row by row")
        inputs = self.members[place].as_inputs(part)
        if "attention_mask" not in inputs and any(name.endswith("/attention") for name in batch):
            # Other members say who sees whom: here all see all.
            inputs["attention_mask"] = additive(sight(batch["member"] * 0, part["input_ids"].shape[1]))
        return inputs

    def collator(self, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> ObjectiveCollator:
        """Return a collator in which each example's member reads all of it."""
        whole = copy.copy(self)
        whole._reads_whole_rows = True
        return BaseObjective.collator(whole, tokenizer, seed)

    def _turn(self, sample: Sample, seed: int) -> int:
        draw = generator(seed, sample.epoch, sample.index, "mixture").random() * self._ends[-1]
        return int(np.searchsorted(self._ends, draw, side="right"))

    def _parts(self, batch: Batch) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        """Yield the number of each member that has rows in the batch, and its tensors for these rows alone."""
        for place in range(len(self.members)):
            mine, prefix = torch.nonzero(batch["member"] == place).flatten(), f"{place}/"
            if len(mine):
                named = ((name, tensor) for name, tensor in batch.items() if name.startswith(prefix))
                yield place, {name.removeprefix(prefix): tensor[mine] for name, tensor in named}

    def _member_lengths(self, width: int) -> list[int]:
        """Return how much of rows of some width each member reads: what it asks for where the longest asks for that."""
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
            return sys.maxsize  # longer than some member can read, for want of sentinels say


def _built(settings: dict[str, Any]) -> Objective:
    """Build a member by its own Config, which workers can be sent, unlike the one with a weight."""
    config = registry.resolve("objectives", settings["name"]).Config.model_validate(settings)
    member: Objective = registry.build("objectives", config)
    return member


def _shared_families(labels: Sequence[str], members: Sequence[Objective]) -> tuple[str, ...]:
    """Return the families that every member trains, in the order of the first; raises where there is none."""
    shared = tuple(family for family in members[0].families if all(family in one.families for one in members))
    if not shared:
        fits = "; ".join(f"{label} {', '.join(one.families)}" for label, one in zip(labels, members, strict=True))
        raise RecipeError(
            "no family is trained by all members of the mixture",
            allowed=f"They train: {fits}",
            do="Mix objectives that have a family in common",
        )
    return shared
