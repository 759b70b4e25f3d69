"""Linear probe: logistic regression on the mean of a frozen body's states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation, labels_texts
from headstart.adaptation.linear_head import fit_linear_head
from headstart.core.contracts import ModelSource, Task
from headstart.core.data import LabeledFeatures

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LinearProbe(BaseAdaptation):
    """Linear probe: freeze the body and fit a logistic regression to the mean of its states, in seconds.

    Numbers are fitted by ridge regression, several labels by one logistic regression each. The validation rows select
    the strength of the regularization; there is no learning rate and no budget. Headstart is needed to load the model.
    """

    paper: ClassVar[str] = "Alain & Bengio 2016; Conneau & Kiela 2018, SentEval"
    needs_whole_weights: ClassVar[str] = "fits its head to the vectors of all texts in one process"

    class Config(AdaptationSettings):
        """No settings of its own."""

        name: Literal["linear_probe"] = "linear_probe"

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or LinearProbe.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Accept tasks that give a text one label, several, or a number."""
        return super().supports(task, family) or why_not_pooled(task, family)

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint, freeze its body, and replace the head by a linear layer on the mean of the states."""
        from headstart.adaptation.pooled_network import pooled

        return pooled(source.pretrained()).requires_grad_(False)

    def solve(self, model: Any, task: Task, rows: LabeledFeatures) -> int:
        """Fit the linear layer to the training rows."""
        return fit_linear_head(model, task, rows)


def why_not_pooled(task: Task, family: str) -> str | None:
    """Return why a task cannot have a linear layer on the mean of the states, as a clause, or None if it can."""
    if not labels_texts(task, family):
        return "the task does not give a whole text a label or a number"
    if family == "encoder-decoder":
        return "an encoder-decoder has no states of the text alone"
    return None
