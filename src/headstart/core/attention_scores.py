"""The attention scores of a network before the softmax, which transformers does not return.

Distillation compares them in pre-training and in fine-tuning, so this is in `core`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from headstart.core.errors import RecipeError
from headstart.core.lazy import F, torch, transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "headstart_scores"


def require_scores(student: PreTrainedModel, teacher: PreTrainedModel, setting: str) -> None:
    """Raise unless the scores of both networks can be read and compared head by head; `setting` asks for it."""
    for model in (student, teacher):
        kind = model.config.model_type
        # Networks with an attention of their own (DeBERTa's) do not look up the function below.
        if not getattr(model, "_supports_attention_backend", False):
            raise RecipeError(
                f"the attention scores of a {kind!r} network cannot be read",
                allowed=f"`{setting}` needs a network that computes attention through transformers' interface",
                do=f"Set `{setting}` to 0, or choose another layout, such as bert or modernbert",
            )
    heads, teacher_heads = student.config.num_attention_heads, teacher.config.num_attention_heads
    if heads != teacher_heads:
        raise RecipeError(
            f"the student has {heads} attention heads, its teacher {teacher_heads}",
            allowed=f"`{setting}` compares attention head by head, as TinyBERT does",
            do=f"Set `{setting}` to 0, or give the student as many heads as its teacher",
        )


@contextmanager
def attention_scores(*models: PreTrainedModel) -> Iterator[None]:
    """Let networks return, with `output_attentions`, scores of shape (rows, heads, length, length) as `attentions`.

    Scores of masked positions are zero. What the networks compute otherwise is that of eager attention.
    """
    _register()
    before = [model.config._attn_implementation for model in models]
    for model in models:
        model.config._attn_implementation = _NAME
    try:
        yield
    finally:
        for model, name in zip(models, before, strict=True):
            model.config._attn_implementation = name


def score_distance(
    student: torch.Tensor, teacher: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the mean squared difference of scores over heads and positions, (rows, heads, length, length) → (rows,).

    Padding (0 in the mask, of shape (rows, length)) does not count. Paper: Jiao et al. 2020, TinyBERT, equation 7.
    """
    difference: torch.Tensor = ((student.float() - teacher.float()) ** 2).mean(1)  # (rows, length, length)
    if attention_mask is None:
        return difference.flatten(1).mean(1)
    pairs = (attention_mask[:, :, None] * attention_mask[:, None]).float()
    return (difference * pairs).sum((1, 2)) / pairs.sum((1, 2))


@cache
def _register() -> None:
    """Register the function with transformers, once."""
    transformers.AttentionInterface.register(_NAME, _attend)
    transformers.AttentionMaskInterface.register(_NAME, transformers.masking_utils.eager_mask)


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Compute eager attention; returns its output, and the scores in place of the weights."""
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    masked = scores if attention_mask is None else scores + attention_mask
    weights = F.dropout(masked.softmax(-1, dtype=torch.float32).to(query.dtype), dropout, module.training)
    if attention_mask is not None:
        scores = scores.masked_fill(attention_mask < -1, 0.0)
    return (weights @ value).transpose(1, 2).contiguous(), scores
