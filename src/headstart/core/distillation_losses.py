"""Losses between a student and its teacher, for pre-training and fine-tuning.

They are in `core` because an objective and an adaptation both use them and neither may import the other. Attention is
compared before the softmax, which transformers does not return: an attention function of its own does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from headstart.core.errors import RecipeError
from headstart.core.lazy import F, torch, transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "headstart_scores"
"""The name of the attention function in transformers' table."""


def soft_target_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the KL divergence of softened predictions, times the squared temperature: logits (…, classes) → (…).

    The factor keeps the size of the gradient independent of the temperature. Paper: Hinton et al. 2015, section 2.
    """
    target = (teacher.float() / temperature).log_softmax(-1)
    predicted = (student.float() / temperature).log_softmax(-1)
    return temperature**2 * (target.exp() * (target - predicted)).sum(-1)


def soft_label_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the KL divergence of softened probabilities, each of its own label: logits (…, labels) → (…), a mean.

    It is `soft_target_loss` for labels that do not exclude each other.
    """
    student, teacher = student.float() / temperature, teacher.float() / temperature
    pairs = ((F.logsigmoid(sign * teacher), F.logsigmoid(sign * student)) for sign in (1, -1))
    divergence = sum(target.exp() * (target - predicted) for target, predicted in pairs)
    return temperature**2 * torch.as_tensor(divergence).mean(-1)


def cosine_distance(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Return one minus the cosine of hidden states, (…, width) → (…). Paper: Sanh et al. 2019, DistilBERT."""
    student, teacher = student.float(), teacher.float()
    norms = (student**2).sum(-1).sqrt() * (teacher**2).sum(-1).sqrt()
    return 1 - (student * teacher).sum(-1) / norms.clamp_min(1e-8)


def squared_distance(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference, (…, width) → (…). Paper: Jiao et al. 2020, TinyBERT."""
    difference: torch.Tensor = (student.float() - teacher.float()) ** 2
    return difference.mean(-1)


def layer_map(student_layers: int, teacher_layers: int, layers: Sequence[int] | None = None) -> list[int]:
    """Return, for each layer of the student, the layer of the teacher that it imitates, counted from 1.

    The default spaces them evenly: 4 layers learn from 3, 6, 9 and 12 of 12, as in TinyBERT.
    """
    if layers is None:
        if student_layers > teacher_layers:
            raise RecipeError(
                f"the student has {student_layers} layers and its teacher {teacher_layers}",
                allowed="Without `layers`, the student must not have more layers than its teacher",
                do="Set `layers`: for each layer of the student, the teacher's layer to learn from",
            )
        return [round(number * teacher_layers / student_layers) for number in range(1, student_layers + 1)]
    if len(layers) != student_layers or not all(1 <= layer <= teacher_layers for layer in layers):
        raise RecipeError(
            f"layers is {list(layers)}",
            allowed=f"It must have {student_layers} entries, one per layer of the student, each from 1 to "
            f"{teacher_layers}, the layers of the teacher",
        )
    return list(layers)


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
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # several heads share keys and values
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    masked = scores if attention_mask is None else scores + attention_mask
    weights = F.dropout(masked.softmax(-1, dtype=torch.float32).to(query.dtype), dropout, module.training)
    if attention_mask is not None:
        scores = scores.masked_fill(attention_mask < -1, 0.0)
    return (weights @ value).transpose(1, 2).contiguous(), scores
