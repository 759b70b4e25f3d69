"""Machines on one machine: network namespaces with addresses, host names and links whose rate is set.

Each node is a namespace of Linux with one interface, `eth0`. A bridge in a namespace of its own connects them, so that
they reach each other and nothing else, and nothing else reaches them. Needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) and
iproute2.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_MS_REC_PRIVATE, _MS_BIND = 0x44000, 0x1000
"""Constants of <linux/sched.h> and <sys/mount.h>."""
_BURST = "128kb"
"""Bytes that may be sent at once. Must hold a packet of the interface, which has up to 64 KB."""
_ENTER = 'mount --bind "$1" /etc/hosts && echo "$2" > /proc/sys/kernel/hostname && shift 2 && exec "$@"'


@dataclass(frozen=True)
class Node:
    """A namespace with an address and a host name."""

    namespace: str
    name: str
    address: str
    port: str
    """The end of its link at the bridge."""
    bridge: str
    hosts: Path

    def enter(self) -> None:
        """Move this process to the node, with its network and host name; a forked child does it before it connects."""
        libc = ctypes.CDLL(None, use_errno=True)

        def call(name: str, *given: object) -> None:
            if getattr(libc, name)(*given):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"{name} for {self.namespace}")

        with open(f"/run/netns/{self.namespace}", encoding="utf-8") as file:
            call("setns", file.fileno(), _CLONE_NEWNET)
        call("unshare", _CLONE_NEWNS | _CLONE_NEWUTS)
        call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None)
        call("mount", os.fsencode(self.hosts), b"/etc/hosts", None, ctypes.c_ulong(_MS_BIND), None)
        call("sethostname", self.name.encode(), len(self.name))

    def command(self, *words: str) -> list[str]:
        """Return the command that runs `words` on the node, with its host name; the process keeps its number."""
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--uts", "--mount"]
        enter += ["sh", "-c", _ENTER, "sh"]
        return [*enter, str(self.hosts), self.name, *words]

    def limit(self, mbit: float | None) -> None:
        """Limit what the node sends to a rate in Mbit/s; None removes the limit."""
        if mbit is None:
            _run("tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", "root", "pfifo")
            return
        rate = ("rate", f"{mbit:g}mbit", "burst", _BURST, "latency", "100ms")
        _run("tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate)

    def connect(self, up: bool = True) -> None:
        """Set the node's link up or down at the bridge; packets are lost without a message, as with a pulled cable."""
        _run("ip", "-n", self.bridge, "link", "set", self.port, "up" if up else "down")

    def sent(self) -> int:
        """Return the bytes that the node has sent to others, with headers."""
        (link,) = json.loads(_run("ip", "-n", self.namespace, "-s", "-j", "link", "show", "eth0"))
        return int(link["stats64"]["tx"]["bytes"])


class Nodes:
    """Nodes that are connected while the context lasts."""

    def __init__(self, count: int) -> None:
        """Name the nodes after this process, so that several sets can exist."""
        self._folder = Path(tempfile.mkdtemp(prefix="headstart-nodes-"))
        prefix = f"hs{os.getpid()}-{self._folder.name[-4:]}"
        self._bridge = f"{prefix}-bridge"
        self.nodes = [
            Node(f"{prefix}-{i}", f"node{i}", f"10.99.{i // 250}.{i % 250 + 1}", f"port{i}", self._bridge,
                 self._folder / "hosts")
            for i in range(count)
        ]  # fmt: skip

    def __enter__(self) -> Self:
        """Make the namespaces and connect them."""
        lines = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in self.nodes)]
        (self._folder / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            _run("ip", "netns", "add", self._bridge)
            _run("ip", "-n", self._bridge, "link", "add", "bridge0", "type", "bridge")
            _run("ip", "-n", self._bridge, "link", "set", "bridge0", "up")
            for node in self.nodes:
                _run("ip", "netns", "add", node.namespace)
                peer = ("peer", "name", node.port, "netns", self._bridge)
                _run("ip", "-n", node.namespace, "link", "add", "eth0", "type", "veth", *peer)
                _run("ip", "-n", self._bridge, "link", "set", node.port, "master", "bridge0", "up")
                _run("ip", "-n", node.namespace, "addr", "add", f"{node.address}/16", "dev", "eth0")
                for link in ("lo", "eth0"):
                    _run("ip", "-n", node.namespace, "link", "set", link, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the namespaces; a namespace ends with its last process."""
        for name in (self._bridge, *(node.namespace for node in self.nodes)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


@cache
def missing() -> str:
    """Return why nodes cannot be made on this machine; empty if they can."""
    for program in ("ip", "tc", "nsenter", "unshare"):
        if shutil.which(program) is None:
            return f"`{program}` is not installed (Debian: iproute2 and util-linux)"
    try:
        with Nodes(1) as made:
            (node,) = made.nodes
            node.limit(100)
            _run(*node.command("true"))
    except (subprocess.CalledProcessError, OSError) as error:
        text = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"network namespaces cannot be made here (root is needed): {text}"
    return ""


def _run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout
