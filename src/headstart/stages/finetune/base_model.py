"""The checkpoint that an adapter belongs to: recorded when the adapter is saved, and found when it is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headstart.checkpoint.names import folder_of, is_path, parse
from headstart.core import artifact
from headstart.core.errors import ArtifactError, HeadstartError
from headstart.stages.runs.manifest import ADAPTED
from headstart.tasks.source import unwrap_peft

VARIABLE = "HEADSTART_BASE"
"""The environment variable that names the checkpoint of an adapter."""
NETWORK = "network"
"""The subfolder of an adapter with the config of its network, which has the names of the labels.

In the folder itself, transformers would take a config.json for that of a whole model, whose weights are missing.
"""
_CONFIG = "config.json"


def record_base(model: PreTrainedModel, name: str, checkpoint: Path) -> None:
    """Record the checkpoint of a peft model so that other tools open it: its name and commit, or its absolute path.

    Args:
        model: the peft model; any other one is left as it is.
        name: the checkpoint as the recipe names it.
        checkpoint: its folder.
    """
    configs: dict[str, Any] = getattr(model, "peft_config", {})
    hub = parse(name)
    for config in configs.values():
        config.base_model_name_or_path = str(checkpoint.absolute()) if hub is None else hub.repository
        if hub is not None:
            config.revision = hub.revision


def save_network(model: PreTrainedModel, folder: Path) -> None:
    """Save the config of the network that a peft model wraps, beside the adapter."""
    if hasattr(model, "peft_config"):
        unwrap_peft(model).config.save_pretrained(str(folder / NETWORK))


def find_base(adapter: Path, recorded: str, identity: str | None) -> Path:
    """Return the checkpoint that an adapter was trained on.

    Only a folder whose content has the recorded hash is returned. The folders that are tried are: the one that
    `HEADSTART_BASE` names, alone if it is set; the checkpoint that `adapt_first` chose, in the adapter's folder; the
    path in the recipe, from the current folder, from the adapter's folder and from the folders around it; every
    checkpoint beside the adapter.

    Args:
        adapter: the folder of the adapter.
        recorded: the path of the checkpoint, as the recipe has it.
        identity: the content hash of the checkpoint.
    """
    given = os.environ.get(VARIABLE)
    candidates = [Path(given)] if given else list(_candidates(adapter.absolute(), recorded))
    present = [path for path in dict.fromkeys(candidates) if (path / _CONFIG).is_file()]
    for path in present:
        # A folder beside the adapter may be damaged or unreadable; it is not the one.
        with suppress(HeadstartError, OSError, KeyError, TypeError, ValueError):
            if artifact.identity(path) == identity:
                return path
    do = f"Set the environment variable {VARIABLE} to the folder of that checkpoint, or fine-tune again"
    named = given or recorded
    if Path(named) not in present:
        raise ArtifactError(
            f"the adapter in {adapter} was trained on {recorded!r}, but "
            + (f"{VARIABLE} is {given!r}, and there is no such folder" if given else "there is no such folder"),
            allowed="An adapter needs the weights that it was trained on"
            + ("" if given else "; no checkpoint beside it has their content hash"),
            do=do,
        )
    raise ArtifactError(
        f"{named} is not the checkpoint that the adapter in {adapter} was trained on",
        allowed="An adapter works only with the weights that it was trained on",
        do=do,
    )


def _candidates(adapter: Path, name: str) -> Iterator[Path]:
    recorded = Path(name)
    yield adapter / ADAPTED
    yield recorded
    if not is_path(name):
        with suppress(HeadstartError):
            yield folder_of(name)
    if not recorded.is_absolute():
        yield adapter / recorded
        yield from (parent / recorded for parent in adapter.parents)
    # The checkpoint of the same name comes first: hashing a large one takes seconds.
    beside = [path for path in adapter.parent.glob("*") if path != adapter and path.is_dir()]
    yield from sorted(beside, key=lambda path: (path.name != recorded.name, path.name))
