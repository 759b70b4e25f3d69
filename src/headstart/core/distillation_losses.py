"""Losses between a student and its teacher, for pre-training and fine-tuning.

They are in `core` because an objective and an adaptation both use them and neither may import the other. Torch is
imported for type checkers only: the functions use methods of the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headstart.core.errors import RecipeError

if TYPE_CHECKING:
    import torch


def soft_target_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the KL divergence of softened predictions, times the squared temperature: logits (…, classes) → (…).

    The factor keeps the size of the gradient independent of the temperature. Paper: Hinton et al. 2015, section 2.
    """
    target = (teacher.float() / temperature).log_softmax(-1)
    predicted = (student.float() / temperature).log_softmax(-1)
    return temperature**2 * (target.exp() * (target - predicted)).sum(-1)


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
