"""A Slurm cluster of its own for a test: two nodes, which are network namespaces, with a slurmd each.

The daemons are those of Debian's `slurm-wlm` and `munge`, with their files in a temporary folder. The controller runs
on the first node. Nothing outside of the namespaces can reach the cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import namespaces

_CONF = """
ClusterName=headstart
SlurmctldHost={head}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
KillWait=60
MessageTimeout=60
SlurmdTimeout=0
{lines}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_START_SECONDS = 120


def missing() -> str:
    """Return why there can be no cluster; empty if there can."""
    absent = [name for name in _DAEMONS if shutil.which(name) is None]
    if absent:
        return f"needs {', '.join(absent)} (Debian: slurm-wlm and munge)"
    return namespaces.missing()


class Cluster:
    """Two nodes with Slurm, while the context lasts."""

    def __init__(self, folder: Path, count: int = 2, cores: int = 2) -> None:
        """Name the nodes; nothing runs yet."""
        self.folder, self._nodes, self._cores = folder, namespaces.Nodes(count), cores
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Start munged, the controller and a slurmd for each node, and wait until all nodes are idle."""
        self._nodes.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the daemons, the last one first, and remove the nodes."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._nodes.__exit__()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which the commands of Slurm find the cluster."""
        return os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(
        self, *words: str, environment: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command on the first node, as in a shell of a login node."""
        command = self._nodes.nodes[0].command(*words)
        shell = self.environment | dict(environment or {})
        return subprocess.run(command, env=shell, cwd=folder, capture_output=True, text=True, check=False)

    def start(self, *words: str, environment: Mapping[str, str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start a command on the first node, whose output goes to a file."""
        with log.open("wb") as file:
            return subprocess.Popen(
                self._nodes.nodes[0].command(*words), stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                env=self.environment | dict(environment), cwd=folder,
            )  # fmt: skip

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm shows of a job."""
        shown = self.run("scontrol", "show", "job", number).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def _start(self) -> None:
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        first = self._nodes.nodes[0]
        lines = "\n".join(
            f"NodeName={node.name} NodeAddr={node.address} CPUs={self._cores} State=UNKNOWN"
            for node in self._nodes.nodes
        )  # fmt: skip
        conf = _CONF.format(head=first.name, address=first.address, folder=self.folder, lines=lines)
        (self.folder / "slurm.conf").write_text(conf, encoding="utf-8")
        (self.folder / "state").mkdir()
        munge = ("--foreground", "--force", f"--key-file={key}", f"--socket={self.folder / 'munge.socket'}")
        files = ("pid", "log", "seed")
        self._daemon(["munged", *munge, *(f"--{name}-file={self.folder / f'munge.{name}'}" for name in files)])
        self._wait((self.folder / "munge.socket").exists, "munged")
        self._daemon(first.command("slurmctld", "-D"))
        for node in self._nodes.nodes:
            self._daemon(node.command("slurmd", "-D", "-N", node.name))
        self._wait(lambda: self.run("sinfo", "-h", "-o", "%t").stdout.split() == ["idle"], "all nodes")

    def _daemon(self, words: list[str]) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment)
            )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not condition():
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self._daemons):
                logs = "\n".join(
                    f"{p.name}: {p.read_text(errors='replace')[-1500:]}" for p in sorted(self.folder.glob("*.log"))
                )
                raise RuntimeError(f"{what} did not start\n{logs}\n{self.run('sinfo').stdout}")
            time.sleep(0.2)
