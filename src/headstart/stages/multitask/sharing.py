"""Which parameters the networks of several tasks share: those of the body, or all of them if there are no heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel

from headstart.core.contracts import Task
from headstart.core.errors import RecipeError
from headstart.tasks.source import unwrap_peft


def have_one_head(tasks: Sequence[Task], family: str) -> bool:
    """True if the tasks are of one class and use the checkpoint's own head, such as text-to-text tasks.

    A network without a head has none to share: each task of sentence embeddings has a loss and a pooling of its own.
    """
    first = tasks[0]
    return first.auto_class(family) != "AutoModel" and all(
        type(task) is type(first) and not task.head_settings() and task.auto_class(family) == first.auto_class(family)
        for task in tasks
    )


def share(models: Mapping[str, PreTrainedModel], whole: bool) -> None:
    """Let the networks share the parameters of their bodies, or with `whole` all parameters, by name.

    The shared tensors are those of the first network that has the name. Each network stays a whole one, with all its
    parameters, so that it is run and saved as if it were alone.

    Raises:
        RecipeError: the networks share no parameter that is trained.
    """
    first: dict[str, torch.nn.Parameter] = {}
    shared: set[int] = set()
    for model in models.values():
        part = model if whole else unwrap_peft(model).base_model
        for name, parameter in list(part.named_parameters(remove_duplicate=False)):
            known = first.setdefault(name, parameter)
            if known is not parameter and known.shape == parameter.shape:
                owner, _, key = name.rpartition(".")
                setattr(part.get_submodule(owner), key, known)
                shared.add(id(known))
        # An output layer outside the body may be tied to the embeddings, which are other tensors now.
        unwrap_peft(model).tie_weights()
    if not any(parameter.requires_grad for parameter in first.values() if id(parameter) in shared):
        raise RecipeError(
            "the adaptation trains no parameter that the tasks share",
            allowed="Tasks that are trained together need a body that is trained, or adapters inside it",
            do="Choose another adaptation, such as full or lora, or fine-tune each task alone",
        )
