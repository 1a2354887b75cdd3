"""Machines on one machine: network namespaces with an address, a host name and processes of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes import ROOT

INTERFACE = "veth0"
#: Gives a process the host name and the names of all hosts, in namespaces that end with it.
ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


@dataclass
class Host:
    """A host.

    Args:
        name: its name, which the other host resolves.
        namespace: its network namespace.
        names: file with the names and addresses of all hosts.
    """

    name: str
    namespace: str
    names: Path

    def start(self, command: str, folder: Path, output: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a line of a shell in a folder; its output is appended to a file."""
        support = ROOT / "tests" / "support"
        variables = {"PYTHONPATH": f"{ROOT}{os.pathsep}{support}", "GLOO_SOCKET_IFNAME": INTERFACE, "COLUMNS": "200"}
        variables["NAMESPACE"] = self.namespace
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--mount", "sh", "-c", ENTER, "sh"]
        with output.open("ab") as file:
            return subprocess.Popen(
                [*enter, self.name, str(self.names), "sh", "-c", command],
                cwd=folder,
                env={**os.environ, **variables, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """Kill all processes of the host."""
        for pid in _ip("netns", "pids", self.namespace).split():
            os.kill(int(pid), signal.SIGKILL)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Make the hosts ``host0`` and ``host1``, which are joined by a network; skip the test where this is not permitted."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("the commands ip and unshare are not installed")
    names = folder / "hosts"
    names.write_text("127.0.0.1 localhost\n198.51.100.1 host0\n198.51.100.2 host1\n")  # addresses for examples, RFC 5737
    hosts = Host("host0", f"lit{os.getpid()}a", names), Host("host1", f"lit{os.getpid()}b", names)
    try:
        try:
            for host in hosts:
                _ip("netns", "add", host.namespace)
            ends = [("netns", host.namespace) for host in hosts]
            _ip("link", "add", INTERFACE, *ends[0], "type", "veth", "peer", "name", INTERFACE, *ends[1])
            for number, host in enumerate(hosts, 1):
                _ip("-n", host.namespace, "addr", "add", f"198.51.100.{number}/24", "dev", INTERFACE)
                for name in ("lo", INTERFACE):
                    _ip("-n", host.namespace, "link", "set", name, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted: {error.stderr.strip()}")
        yield hosts
    finally:
        for host in hosts:
            if Path("/run/netns", host.namespace).exists():
                host.kill()
                _ip("netns", "delete", host.namespace)
