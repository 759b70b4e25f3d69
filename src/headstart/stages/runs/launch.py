"""Data-parallel training on one machine: processes started, watched and restarted by torch's elastic agent."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from headstart.core import artifact
from headstart.core.processes import cores

LAUNCHED = "HEADSTART_LAUNCHED"
"""Set for the processes started here. Asked to stop, they exit with code 0: any other code would restart them."""
RESUMABLE = 75
"""Exit code of a run that was interrupted and that the same command resumes (EX_TEMPFAIL of sysexits.h)."""
_SHUTDOWN_SECONDS = 300
"""How long processes may take to save a checkpoint after they are asked to stop."""


def run(arguments: Sequence[str], output: Path, processes: int, restarts: int = 0) -> int:
    """Run `headstart` with the given arguments in several processes and return the exit code.

    If one process dies, the others are stopped and all restart from the last checkpoint, at most `restarts` times.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[LAUNCHED] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    # On gloo, restarts through the agent's own store hung in about half of the attempts (cf. pytorch#135712).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_SECONDS))
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        signals_to_handle="SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
    )
    try:
        elastic_launch(settings, sys.executable)("-u", "-m", "headstart", *arguments)
    except SignalException:
        return RESUMABLE
    except ChildFailedError as failed:
        code = failed.get_first_failure()[1].exitcode
        return code if code > 0 else 1
    return 0 if artifact.is_complete(output) else RESUMABLE
