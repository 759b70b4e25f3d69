"""Contrastive fine-tuning: texts with the same label are drawn together, then a logistic regression is fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.adaptation.linear_head import fit_linear_head
from headstart.adaptation.linear_probe import why_not_pooled
from headstart.core.contracts import ModelSource, Task
from headstart.core.data import Batch, LabeledFeatures
from headstart.core.lazy import F, torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Contrast(BaseAdaptation):
    """Contrastive fine-tuning: train the body on pairs of texts, then fit a logistic regression to its vectors.

    All pairs of a batch are compared: the cosine of two texts shall be 1 if they have the same label, else 0. Pairs
    with the same and with different labels have equal weight, as with SetFit's oversampling. The head is fitted after
    training and before every evaluation. Headstart is needed to load the model.
    """

    paper: ClassVar[str] = "Tunstall et al. 2022, SetFit"
    needs_whole_weights: ClassVar[str] = "fits its head to the vectors of all texts in one process"

    class Config(AdaptationSettings):
        """No settings of its own besides the learning rate and the budget."""

        name: Literal["contrast"] = "contrast"

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or Contrast.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Accept tasks that give a text one of several labels."""
        reason = super().supports(task, family) or why_not_pooled(task, family)
        if reason is None and task.head_settings().get("problem_type") != "single_label_classification":
            return "it compares texts with the same label, and the task does not give each text one label"
        return reason

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a linear layer on the mean of its states; the body is trained, the layer fitted."""
        from headstart.adaptation.pooled_network import pooled

        model = pooled(source.pretrained())
        model.classifier.requires_grad_(False)
        return model

    def loss(self, task: Any, model: Any, batch: Batch) -> torch.Tensor:
        """Return the mean squared error of the cosines of all pairs of a batch, times the number of rows."""
        with model.returning_vectors():
            vectors = F.normalize(task.logits(model, batch), dim=-1)
        rows, labels = len(vectors), batch["labels"]
        first, second = torch.triu_indices(rows, rows, offset=1, device=vectors.device)
        cosines = (vectors[first] * vectors[second]).sum(-1)
        is_same = labels[first] == labels[second]
        parts = [((cosines - target) ** 2)[mask] for target, mask in ((1.0, is_same), (0.0, ~is_same))]
        means = [part.mean() for part in parts if part.numel()]
        # A batch of one row has no pairs; its loss must still be part of the graph.
        return rows * torch.stack(means).mean() if means else 0.0 * vectors.sum()

    def solve(self, model: Any, task: Task, rows: LabeledFeatures) -> int:
        """Fit the linear layer to the training rows."""
        return fit_linear_head(model, task, rows)
