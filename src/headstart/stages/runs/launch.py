"""Data-parallel training: the processes of this machine, started, watched and restarted by torch's elastic agent."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from headstart.core import artifact
from headstart.core.processes import LOOPBACK, cores, die_with_parent
from headstart.training.interruption import ELASTIC

LAUNCHED = "HEADSTART_LAUNCHED"
"""Set for the processes started here, to the id of this process. Asked to stop, they exit with code 0: any other code
would restart them."""
RESUMABLE = 75
"""Exit code of a run that was interrupted and that the same command resumes (EX_TEMPFAIL of sysexits.h)."""
_RENDEZVOUS = "headstart-one-machine"
_SHUTDOWN_SECONDS = 300
"""How long processes may take to save a checkpoint after they are asked to stop."""


def follow_launcher() -> None:
    """End this process with its launcher, if `run` started it: a killed launcher leaves no process behind."""
    if (launcher := os.environ.get(LAUNCHED, "")).isdecimal():
        die_with_parent(int(launcher))


def run(
    arguments: Sequence[str],
    output: Path,
    processes: int,
    restarts: int = 0,
    nodes: tuple[int, int] = (1, 1),
    rendezvous: str = "",
) -> int:
    """Run `headstart` with the given arguments in several processes and return the exit code.

    If one process dies, the others are stopped and all restart from the last checkpoint, at most `restarts` times. With
    several nodes, each of them runs this function, and they meet at the address `rendezvous`, HOST:PORT of one. `nodes`
    is their least and largest number. Between the two, the run continues without a node that is lost (a restart), and
    with one that joins (after a checkpoint; not counted as a restart).
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[LAUNCHED] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_SECONDS))
    least, most = nodes
    if most > 1:
        # torch 2.13 keeps one store for all starts, with the addresses of the first: a restart would try processes
        # that are gone. Without sharing, rank 0 of each start makes a new one.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if least < most:
        os.environ[ELASTIC] = "1"
    settings = LaunchConfig(
        min_nodes=least,
        max_nodes=most,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex if most == 1 else rendezvous,
        rdzv_backend=_register_rendezvous() if most == 1 else "c10d",
        rdzv_endpoint=rendezvous,
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


@cache
def _register_rendezvous() -> str:
    """Register the rendezvous of a single machine with torch's elastic agent, and return its name.

    torch's own rendezvous listens on all network interfaces. One agent on one machine has nobody to meet: it needs a
    store in its memory and, for each start of its processes, a free port on the loopback interface.
    """
    from torch.distributed import HashStore
    from torch.distributed.elastic import rendezvous
    from torch.distributed.elastic.rendezvous.api import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
    )

    class OneMachine(RendezvousHandler):
        def __init__(self, run_id: str) -> None:
            self.run_id, self.store, self.closed = run_id, HashStore(), False

        def get_backend(self) -> str:
            return _RENDEZVOUS

        def next_rendezvous(self) -> RendezvousInfo:
            with socket.create_server((LOOPBACK, 0)) as probe:
                port = probe.getsockname()[1]
            return RendezvousInfo(self.store, 0, 1, RendezvousStoreInfo(LOOPBACK, port))

        def is_closed(self) -> bool:
            return self.closed

        def set_closed(self) -> None:
            self.closed = True

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return self.run_id

        def shutdown(self) -> bool:
            self.closed = True
            return True

    def create(parameters: RendezvousParameters) -> RendezvousHandler:
        return OneMachine(parameters.run_id)

    rendezvous.rendezvous_handler_registry.register(_RENDEZVOUS, create)
    return _RENDEZVOUS
