"""Generate text: decoders continue a prompt, encoders and encoder-decoders fill its blanks.

A blank in a prompt is written `___`. How it is filled depends on pre-training: an encoder ranks candidates for a
[MASK], a model trained by span corruption writes the text of each sentinel, and a model trained by denoising rewrites
the whole text. Works on any Hugging Face folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from headstart.checkpoint.load import load_config, load_model, load_tokenizer
from headstart.core import artifact, registry
from headstart.core.config import Section
from headstart.core.errors import ArtifactError, HeadstartError, RecipeError, first_line
from headstart.stages.pretrain.reopen import recorded_recipe
from headstart.tasks.framing import sentinels
from headstart.tasks.source import family_of, require_checkpoint
from headstart.training import precision

BLANK = "___"
_CLASSES = {
    "encoder": "AutoModelForMaskedLM",
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
_GENERATOR = "generator"
"""The subfolder of an ELECTRA checkpoint that holds the generator."""


class GenerateSettings(Section):
    """How text is generated. Names and meanings are those of transformers' GenerationConfig; the default is greedy."""

    max_new_tokens: int = Field(40, ge=1, description="maximum number of new tokens")
    num_beams: int = Field(1, ge=1, description="beams of beam search; 1: no beam search")
    temperature: float | None = Field(None, gt=0, description="sample; below 1 likely tokens become more likely")
    top_k: int | None = Field(
        None, ge=1, description="sample from the k likeliest tokens; for blanks: candidates shown"
    )
    top_p: float | None = Field(None, gt=0, le=1, description="sample from the likeliest tokens of this probability")
    num_return_sequences: int = Field(1, ge=1, description="texts per prompt; more than one needs sampling or beams")
    seed: int = Field(0, description="the same seed gives the same texts")

    def keywords(self) -> dict[str, Any]:
        """Return the arguments of transformers' `generate`."""
        sampling = {name: value for name in ("temperature", "top_k", "top_p") if (value := getattr(self, name))}
        if not sampling and self.num_return_sequences > self.num_beams:
            raise RecipeError(
                f"num_return_sequences is {self.num_return_sequences} with {self.num_beams} beam(s) and no sampling",
                allowed="Greedy search returns one text, beam search at most one per beam",
                do="Set temperature, top_k or top_p, or raise num_beams",
            )
        # transformers samples from 50 tokens by default; a user who sets top_p alone does not expect that.
        search = {"do_sample": True, "top_k": 0, **sampling} if sampling else {"do_sample": False}
        return {
            "max_new_tokens": self.max_new_tokens,
            "num_beams": self.num_beams,
            "num_return_sequences": self.num_return_sequences,
            **search,
        }


def run(model: Path, prompts: Sequence[str], settings: GenerateSettings) -> list[dict[str, Any]]:
    """Return `texts` for each prompt, or for an encoder `blanks`: the candidates for each with their probability."""
    folder = require_checkpoint(model)
    layout = load_config(folder)
    family = family_of(layout)
    if family not in _CLASSES:
        raise ArtifactError(f"{folder} is a model of the family {family!r}", allowed=f"Allowed: {', '.join(_CLASSES)}")
    tokenizer = load_tokenizer(folder)
    writer = _Writer(_load(folder, layout, _CLASSES[family]), tokenizer, settings, _input_format(folder))
    method = {"encoder": writer.rank, "decoder": writer.continue_, "encoder-decoder": writer.rewrite}[family]
    answers = []
    for prompt in prompts:
        torch.manual_seed(settings.seed)
        with torch.no_grad(), _explained(folder):
            answers.append({"prompt": prompt, **method(prompt)})
    return answers


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Explain an error of transformers' generation: the folder's generation_config.json can cause any."""
    try:
        yield
    except HeadstartError:
        raise
    except Exception as error:
        raise ArtifactError(
            f"the model in {folder} cannot generate ({first_line(error) or type(error).__name__})",
            allowed="generation_config.json, tokenizer and weights must fit each other",
            do="Remove generation_config.json, or use another checkpoint",
        ) from error


def _load(folder: Path, layout: PreTrainedConfig, auto_class: str) -> PreTrainedModel:
    """Load the network with its language-model head: the generator, if the folder has one beside a discriminator."""
    network_dir = folder / _GENERATOR if (folder / _GENERATOR / "config.json").is_file() else folder
    network, info = load_model(auto_class, network_dir, dtype=torch.float32, output_loading_info=True)
    if info["missing_keys"]:
        raise ArtifactError(
            f"{folder} is a {(layout.architectures or [layout.model_type])[0]}, which has no language-model head",
            allowed=f"generate needs all weights of {auto_class}",
            do="Choose a checkpoint that was pre-trained to predict tokens, not a fine-tuned one",
        )
    return network.to(precision.default_device()).eval()  # type: ignore[no-any-return]


def render(answers: Sequence[dict[str, Any]]) -> str:
    """Return the generated texts, or the candidates for each blank, one per line."""
    lines: list[str] = []
    for answer in answers:
        lines += answer.get("texts", [])
        for number, candidates in enumerate(answer.get("blanks", []), start=1):
            ranking = ", ".join(f"{candidate['text']} {candidate['probability']:.1%}" for candidate in candidates)
            lines.append(f"{answer['prompt']}  blank {number}: {ranking}")
    return "\n".join(lines)


class _Writer:
    """Generates with one model, in the way of its family."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: GenerateSettings,
        input_format: _InputFormat,
    ) -> None:
        self.model, self.tokenizer, self.settings, self.format = model, tokenizer, settings, input_format
        self.end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        self.sentinels = sentinels(tokenizer)

    def rank(self, prompt: str) -> dict[str, Any]:
        """Rank candidates for each blank of a prompt with an encoder."""
        ids = self._tensor(self.tokenizer(prompt.replace(BLANK, str(self.tokenizer.mask_token)))["input_ids"])
        masked = torch.nonzero(ids[0] == self.tokenizer.mask_token_id).flatten()
        if not len(masked):
            raise RecipeError(
                f"the prompt {prompt!r} has no blank", allowed="An encoder fills blanks", do=f"Write a blank as {BLANK}"
            )
        logits = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        probabilities = logits[0, masked].softmax(-1)  # (blanks, vocabulary)
        best = probabilities.topk(min(self.settings.top_k or 5, probabilities.shape[-1]))
        return {
            "blanks": [
                [{"text": self._text([token]), "probability": value} for token, value in zip(*pair, strict=True)]
                for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        }

    def continue_(self, prompt: str) -> dict[str, Any]:
        """Continue a prompt with a decoder."""
        ids = self.tokenizer(prompt)["input_ids"]
        if ids and ids[-1] in (self.tokenizer.sep_token_id, self.end):
            ids = ids[:-1]
        if not ids:
            raise RecipeError(
                "the prompt is empty, and the tokenizer adds no token before a text",
                allowed="A decoder continues a text of at least one token",
            )
        return {"texts": [self._text(text) for text in self._generate(ids)]}

    def rewrite(self, prompt: str) -> dict[str, Any]:
        """Fill the blanks of a prompt, or continue it, with an encoder-decoder."""
        if self.sentinels and self.format.fills_blanks:
            pieces = (prompt if BLANK in prompt else f"{prompt} {BLANK}").split(BLANK)
            if len(pieces) - 1 > len(self.sentinels):
                raise RecipeError(
                    f"the prompt has {len(pieces) - 1} blanks, but the tokenizer has {len(self.sentinels)} sentinels",
                    do="Use fewer blanks",
                )
            encoded = [self._encode(piece) for piece in pieces]
            joined = [t for i, piece in enumerate(encoded) for t in (*self.sentinels[max(i - 1, 0) : i], *piece)]
            written = [self._fill(encoded, output) for output in self._generate(self._with_special_tokens(joined))]
        else:
            text = prompt.replace(BLANK, str(self.tokenizer.mask_token))
            written = self._generate(self._with_special_tokens(self._encode(text)))
            if not self.format.rewrites:
                written = [[*self._encode(prompt), *output] for output in written]
        return {"texts": [self._text(ids) for ids in written]}

    def _generate(self, ids: list[int]) -> list[list[int]]:
        allowed = {self.end, *(self.sentinels if self.format.fills_blanks else ())}
        inputs = self._tensor(ids)
        outputs = self.model.generate(  # type: ignore[operator]  # a mixin's method, which the stubs take for a tensor
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            suppress_tokens=sorted(set(self.tokenizer.all_special_ids) - allowed) or None,
            eos_token_id=self.end,
            pad_token_id=self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.end,
            **self.settings.keywords(),
        )
        return [list(output) for output in outputs.tolist()]

    def _tensor(self, ids: list[int]) -> torch.Tensor:
        return torch.tensor([ids], device=self.model.device)  # (1, tokens)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _with_special_tokens(self, ids: list[int]) -> list[int]:
        """Add the special tokens that the encoder's input had in pre-training."""
        first = self.tokenizer("a")["input_ids"][:1]
        has_cls = first == [self.tokenizer.cls_token_id] if self.format.add_cls is None else self.format.add_cls
        cls = [self.tokenizer.cls_token_id] if has_cls else []
        mode = [self.tokenizer.get_vocab()[self.format.mode]] if self.format.mode else []
        return [*cls, *mode, *ids, self.end]

    def _fill(self, pieces: Sequence[Sequence[int]], written: Sequence[int]) -> list[int]:
        """Put the output after each sentinel into the blank of that sentinel."""
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


class _InputFormat(Section):
    """The form of an encoder-decoder's input in pre-training."""

    add_cls: bool | None = None
    """The input starts with [CLS]; None: if the tokenizer adds it."""
    mode: str | None = None
    """A token that names the kind of corruption, as in UL2."""
    fills_blanks: bool = True
    """The model writes the text of each sentinel."""
    rewrites: bool = True
    """The output includes the input's text."""


def _input_format(folder: Path) -> _InputFormat:
    """Read the input format from a Headstart checkpoint; for another model the tokenizer decides."""
    if not artifact.is_complete(folder):
        return _InputFormat()
    artifact.verify(folder)
    recipe = recorded_recipe(folder)
    if recipe is None:
        return _InputFormat()
    objective = registry.build("objectives", recipe.objective)
    sections = [section.model_dump() for section in getattr(recipe.objective, "objectives", [recipe.objective])]
    names = [section["name"] for section in sections]
    spans = next((section for section in sections if section["name"] == "span_corruption"), sections[0])
    return _InputFormat(
        add_cls=objective.row_shape(64).add_cls,
        mode=spans.get("mode"),
        fills_blanks="span_corruption" in names,
        rewrites="prefix_lm" not in names,
    )
