"""Text out of a model: continuations from decoders, filled blanks from encoders and encoder-decoders.

A blank in a prompt is written `___`. What a model does with it follows from how it was pre-trained: an encoder ranks
candidates for a [MASK], a model of span corruption writes what belongs to each sentinel, one of denoising writes the
whole text anew. Works on any Hugging Face folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from pydantic import Field
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from headstart.core import artifact, config, registry
from headstart.core.config import Section
from headstart.core.errors import ArtifactError, RecipeError
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.tasks.source import family_of, require_checkpoint

BLANK = "___"
_CLASSES = {
    "encoder": "AutoModelForMaskedLM",
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}


_GENERATOR = "generator"
"""The subfolder in which ELECTRA's generator lies beside the discriminator."""


class GenerateSettings(Section):
    """How text is drawn; names are those of transformers' GenerationConfig. Greedy unless told otherwise."""

    max_new_tokens: int = Field(40, ge=1, description="longest continuation")
    num_beams: int = Field(1, ge=1, description="beams of a search for the likeliest text; 1: none")
    temperature: float | None = Field(None, gt=0, description="draw at random; below 1 the likely becomes likelier")
    top_k: int | None = Field(None, ge=1, description="draw among the k likeliest tokens; for blanks: candidates shown")
    top_p: float | None = Field(None, gt=0, le=1, description="draw among the likeliest tokens of this joint share")
    num_return_sequences: int = Field(1, ge=1, description="texts for each prompt; more than one needs chance or beams")
    seed: int = Field(0, description="the same seed draws the same texts")

    def keywords(self) -> dict[str, Any]:
        """Return the arguments of transformers' generate."""
        sampled = {name: value for name in ("temperature", "top_k", "top_p") if (value := getattr(self, name))}
        if self.num_return_sequences > (self.num_beams if not sampled else self.num_return_sequences):
            raise RecipeError(
                f"num_return_sequences is {self.num_return_sequences} with {self.num_beams} beam(s) and no chance",
                allowed="Greedy search finds one text, a beam search one for each beam",
                do="Set temperature, top_k or top_p, or raise num_beams",
            )
        # transformers draws among 50 tokens where top_k is not said; nobody who sets top_p alone asks for that.
        chance = {"do_sample": True, "top_k": 0, **sampled} if sampled else {"do_sample": False}
        shape = {name: getattr(self, name) for name in ("max_new_tokens", "num_beams", "num_return_sequences")}
        return shape | chance


def run(model: Path, prompts: Sequence[str], settings: GenerateSettings) -> list[dict[str, Any]]:
    """Return for each prompt `texts`, or for an encoder `blanks`: the candidates of each with their probability."""
    folder = require_checkpoint(model)
    layout = transformers.AutoConfig.from_pretrained(str(folder))
    family = family_of(layout)
    if family not in _CLASSES:
        raise ArtifactError(
            f"{folder} holds a model of the family {family!r}", allowed=f"generate takes: {', '.join(_CLASSES)}"
        )
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder))
    writer = _Writer(_loaded(folder, layout, _CLASSES[family]), tokenizer, settings, _past(folder))
    method = {"encoder": writer.rank, "decoder": writer.continue_, "encoder-decoder": writer.rewrite}[family]
    found = []
    for prompt in prompts:
        torch.manual_seed(settings.seed)
        with torch.no_grad():
            found.append({"prompt": prompt, **method(prompt)})
    return found


def _loaded(folder: Path, layout: PreTrainedConfig, auto_class: str) -> PreTrainedModel:
    """Load the network with the head that tells tokens; beside a discriminator its generator has one."""
    home = folder / _GENERATOR if (folder / _GENERATOR / "config.json").is_file() else folder
    loader = getattr(transformers, auto_class)
    network, info = loader.from_pretrained(str(home), dtype=torch.float32, output_loading_info=True)
    if info["missing_keys"]:
        raise ArtifactError(
            f"{folder} holds a {(layout.architectures or [layout.model_type])[0]}, which has no head that tells tokens",
            allowed=f"generate takes what {auto_class} loads whole",
            do="Give a checkpoint of pre-training by tokens, not one of another objective or of fine-tuning",
        )
    return network.eval()  # type: ignore[no-any-return]


def render(found: Sequence[dict[str, Any]]) -> str:
    """Say what was generated in lines."""
    lines: list[str] = []
    for one in found:
        lines += one.get("texts", [])
        for number, candidates in enumerate(one.get("blanks", []), start=1):
            shown = ", ".join(f"{candidate['text']} {candidate['probability']:.1%}" for candidate in candidates)
            lines.append(f"{one['prompt']}  blank {number}: {shown}")
    return "\n".join(lines)


class _Writer:
    """One model with its tokenizer and settings, in the three ways of writing."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: GenerateSettings, past: _Past
    ) -> None:
        self.model, self.tokenizer, self.settings, self.past = model, tokenizer, settings, past
        self.end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        sentinel = re.compile(r"<extra_id_(\d+)>")
        named = {match[0]: int(match[1]) for token in tokenizer.get_vocab() if (match := sentinel.fullmatch(token))}
        self.sentinels = [tokenizer.get_vocab()[token] for token in sorted(named, key=lambda token: named[token])]

    def rank(self, prompt: str) -> dict[str, Any]:
        """Rank candidates for each blank of a prompt, by an encoder."""
        ids = self.tokenizer(prompt.replace(BLANK, str(self.tokenizer.mask_token)), return_tensors="pt")["input_ids"]
        places = torch.nonzero(ids[0] == self.tokenizer.mask_token_id).flatten()
        if not len(places):
            raise RecipeError(
                f"the prompt {prompt!r} has no blank", allowed="An encoder fills blanks", do=f"Write one as {BLANK}"
            )
        shares = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, places].softmax(-1)
        best = shares.topk(min(self.settings.top_k or 5, shares.shape[-1]))
        return {
            "blanks": [
                [{"text": self._text([token]), "probability": share} for token, share in zip(*pair, strict=True)]
                for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        }

    def continue_(self, prompt: str) -> dict[str, Any]:
        """Write on from a prompt, by a decoder."""
        ids = self.tokenizer(prompt)["input_ids"]
        if ids and ids[-1] in (self.tokenizer.sep_token_id, self.end):
            ids = ids[:-1]
        if not ids:
            raise RecipeError(
                "the prompt is empty, and the tokenizer puts nothing before a text", allowed="A decoder writes on"
            )
        return {"texts": [self._text(text) for text in self._generate(ids)]}

    def rewrite(self, prompt: str) -> dict[str, Any]:
        """Fill the blanks of a prompt, or write on from it, by an encoder-decoder."""
        if self.sentinels and self.past.fills_blanks:
            pieces = (prompt if BLANK in prompt else f"{prompt} {BLANK}").split(BLANK)
            if len(pieces) - 1 > len(self.sentinels):
                raise RecipeError(f"{len(pieces) - 1} blanks, and the tokenizer has {len(self.sentinels)} sentinels")
            encoded = [self._bare(piece) for piece in pieces]
            joined = [t for number, piece in enumerate(encoded) for t in (*self.sentinels[number - 1 : number], *piece)]
            written = [self._filled(encoded, text) for text in self._generate(self._framed(joined))]
        else:
            text = prompt.replace(BLANK, str(self.tokenizer.mask_token))
            written = self._generate(self._framed(self._bare(text)))
            if not self.past.rewrites:
                written = [[*self._bare(prompt), *text] for text in written]
        return {"texts": [self._text(text) for text in written]}

    def _generate(self, ids: list[int]) -> list[list[int]]:
        allowed = {self.end, *(self.sentinels if self.past.fills_blanks else ())}
        outputs = self.model.generate(  # type: ignore[operator]  # a mixin's method, which the stubs take for a tensor
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            suppress_tokens=sorted(set(self.tokenizer.all_special_ids) - allowed) or None,
            eos_token_id=self.end,
            pad_token_id=self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.end,
            **self.settings.keywords(),
        )
        return [list(output) for output in outputs.tolist()]

    def _bare(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _framed(self, ids: list[int]) -> list[int]:
        """Put around the encoder's input what stood there in pre-training."""
        first = self.tokenizer("a")["input_ids"][:1]
        does_open = first == [self.tokenizer.cls_token_id] if self.past.opens is None else self.past.opens
        opens = [self.tokenizer.cls_token_id] if does_open else []
        mode = [self.tokenizer.get_vocab()[self.past.mode]] if self.past.mode else []
        return [*opens, *mode, *ids, self.end]

    def _filled(self, pieces: Sequence[Sequence[int]], written: Sequence[int]) -> list[int]:
        """Put what stands behind each sentinel of the output into its blank."""
        number_of = {token: number for number, token in enumerate(self.sentinels)}
        fills: dict[int, list[int]] = {}
        current = -1
        for token in written:
            if token == self.end:
                break
            if token in number_of:
                current = number_of[token]
            elif token not in self.tokenizer.all_special_ids:
                fills.setdefault(current, []).append(token)
        return [
            token
            for number, piece in enumerate(pieces)
            for token in (*(fills.get(number - 1, []) if number else []), *piece)
        ]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()


class _Past(Section):
    """How a model was pre-trained, as far as its input must look alike."""

    opens: bool | None = None
    """[CLS] stands first; None: as the tokenizer has it."""
    mode: str | None = None
    fills_blanks: bool = True
    rewrites: bool = True


def _past(folder: Path) -> _Past:
    """Read it from Headstart's own manifest; another model is taken to be what its tokenizer shows."""
    if not artifact.is_complete(folder):
        return _Past()
    manifest = artifact.verify(folder)
    if manifest["kind"] != "checkpoint of pretrain":
        return _Past()
    recipe = config.fill_saved(PretrainRecipe, manifest["recipe"], str(folder))
    objective = registry.build("objectives", recipe.objective)
    sections = [section.model_dump() for section in getattr(recipe.objective, "objectives", [recipe.objective])]
    names = [section["name"] for section in sections]
    spans = next((section for section in sections if section["name"] == "span_corruption"), sections[0])
    return _Past(
        opens=objective.row_shape(64).opens,
        mode=spans.get("mode"),
        fills_blanks="span_corruption" in names,
        rewrites="prefix_lm" not in names,
    )
