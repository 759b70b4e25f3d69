"""What a run on one machine opens to the network: sockets of its whole process tree, as the kernel lists them."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from .ranks import _launch, _ranks, _wait_for_step
from .report import Found
from .subjects import Ground

_LISTEN = "0A"
_RAY = """
import sys
from headstart.core import ray_cluster
ray = ray_cluster.initialize(None, 1)
print(ray.get(ray.remote(lambda: "answer").remote()), ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""
# A client that reads the functions which the cluster runs.
_INTRUDER = """
import sys
from ray._raylet import GcsClient
print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", b"fun"))
"""


def listening(root: int) -> set[tuple[str, int]]:
    """Return the address and the port of every TCP socket on which a process or one of its descendants listens."""
    inodes = set[str]()
    try:
        tree = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    except psutil.NoSuchProcess:
        return set()
    for process in tree:
        for descriptor in Path(f"/proc/{process.pid}/fd").glob("*"):
            try:
                target = os.readlink(descriptor)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    found = set[tuple[str, int]]()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == _LISTEN and rest[5] in inodes:
                found.add(_address(local))
    return found


def _address(field: str) -> tuple[str, int]:
    """Decode an address of /proc/net/tcp{,6}: words of 32 bits in the byte order of the machine, then the port."""
    words, _, port = field.partition(":")
    raw = b"".join(int(words[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(words), 8))
    return str(ipaddress.ip_address(raw)), int(port, 16)


def is_loopback(address: str) -> bool:
    """Return True for an address that only this machine can reach."""
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def processes(ground: Ground, subject: str = "masked_lm") -> Found:
    """Train in two processes, and look at their sockets all the while."""
    found = Found("ports of a run in two processes", "none but on the loopback interface")
    folder = ground.fresh("ports")
    job, log = _launch(ground, subject, folder, restarts=0)
    seen = set[tuple[str, int]]()
    while job.poll() is None:
        seen |= listening(job.pid)
        time.sleep(0.1)
    found.count = len(seen)
    found.failures = [f"listens on {address}:{port}" for address, port in sorted(seen) if not is_loopback(address)]
    if job.returncode or not seen:
        found.failures.append(f"exited with {job.returncode}, {len(seen)} sockets seen: {log.read_text()[-800:]}")
    return found


def local_ray(ground: Ground) -> Found:
    """Start a Ray cluster as a study or a corpus does, look at its sockets, and try to connect without its token."""
    found = Found("ports of a local Ray cluster", "none but on the loopback interface; no client without the token")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    job = subprocess.Popen(
        [sys.executable, "-c", _RAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        answer, _, address = job.stdout.readline().strip().partition(" ")
        seen = listening(job.pid)
        found.count = len(seen)
        found.failures = [f"listens on {host}:{port}" for host, port in sorted(seen) if not is_loopback(host)]
        if answer != "answer" or not seen:
            found.failures.append(f"{answer!r}, {len(seen)} sockets")
        found.failures += _intrude(address, environment | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong" * 8})
        found.failures += _intrude(address, environment | {"RAY_AUTH_MODE": "disabled"})
    finally:
        job.communicate(timeout=60)
    return found


def _intrude(address: str, environment: dict[str, str]) -> list[str]:
    command = [sys.executable, "-c", _INTRUDER, address]
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    if other.returncode and "AuthenticationError" in other.stderr:
        return []
    mode = environment["RAY_AUTH_MODE"]
    return [f"a client with RAY_AUTH_MODE={mode} was not refused: {other.stdout[-200:]}{other.stderr[-300:]}"]


def orphans(ground: Ground, seconds: float = 2.0, subject: str = "masked_lm") -> Found:
    """Kill the launcher while its two processes train; they end with it."""
    found = Found("the launcher killed", f"its processes end within {seconds:.0f} s")
    folder = ground.fresh("orphans")
    job, log = _launch(ground, subject, folder, restarts=0)
    _wait_for_step(job, folder, 2, time.monotonic() + 240)
    ranks = _ranks(job.pid)
    job.send_signal(signal.SIGKILL)
    job.wait()
    start = time.monotonic()
    _, alive = psutil.wait_procs(ranks, timeout=seconds)
    found.count = len(ranks)
    found.failures = [f"process {rank.pid} lives {seconds:.0f} s after its launcher" for rank in alive]
    if not ranks:
        found.failures.append(f"no processes were seen: {log.read_text()[-800:]}")
    found.notes = [f"{time.monotonic() - start:.2f} s"]
    for rank in alive:
        rank.kill()
    return found
