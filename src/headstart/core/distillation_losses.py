"""How far a student is from its teacher: arithmetic on tensors that pre-training and fine-tuning share.

It stands here because an objective and an adaptation both need it and neither may import the other. Torch is named
for type checkers only: a tensor brings its own methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headstart.core.errors import RecipeError

if TYPE_CHECKING:
    import torch


def soft_target_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the divergence of softened predictions, times the squared temperature, over the last dimension.

    The square keeps the gradient's size as the temperature changes. Paper: Hinton et al. 2015, section 2.
    """
    goal = (teacher.float() / temperature).log_softmax(-1)
    found = (student.float() / temperature).log_softmax(-1)
    return temperature**2 * (goal.exp() * (goal - found)).sum(-1)


def cosine_distance(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Return one minus the cosine of states, over the last dimension. Paper: Sanh et al. 2019, DistilBERT."""
    student, teacher = student.float(), teacher.float()
    lengths = (student**2).sum(-1).sqrt() * (teacher**2).sum(-1).sqrt()
    return 1 - (student * teacher).sum(-1) / lengths.clamp_min(1e-8)


def squared_distance(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference over the last dimension. Paper: Jiao et al. 2020, TinyBERT."""
    difference: torch.Tensor = (student.float() - teacher.float()) ** 2
    return difference.mean(-1)


def layer_map(student_layers: int, teacher_layers: int, chosen: Sequence[int] | None = None) -> list[int]:
    """Return for each of the student's layers the teacher's that it imitates, counted from 1.

    Unless chosen, evenly: 4 layers learn from 3, 6, 9 and 12 of 12, as TinyBERT does.
    """
    if chosen is None:
        if student_layers > teacher_layers:
            raise RecipeError(
                f"the student has {student_layers} layers, its teacher {teacher_layers}",
                allowed="Without a map the student has no more than its teacher",
                do="Set `layers`: for each of the student's layers, the teacher's to learn from",
            )
        return [round(number * teacher_layers / student_layers) for number in range(1, student_layers + 1)]
    if len(chosen) != student_layers or not all(1 <= layer <= teacher_layers for layer in chosen):
        raise RecipeError(
            f"layers is {list(chosen)}",
            allowed=f"It names one of the teacher's layers, 1 to {teacher_layers}, for each of the student's "
            f"{student_layers}",
        )
    return list(chosen)
