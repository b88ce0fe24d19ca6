"""What another user of the host sees of some processes: files, sockets, ports, command lines."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clusters import descendants
from tests.safety.others import as_other

__all__ = ["Seen", "command_line", "connect", "listening", "look", "order", "readable"]

LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F")
"""127.0.0.1 as the kernel shows it, as such and in the form of IPv6."""


def readable(paths: list[str]) -> list[str]:
    found = []
    for path in paths:
        with contextlib.suppress(OSError), Path(path).open("rb") as file:
            file.read(1)
            found.append(path)
    return found


def connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(path)
        except PermissionError:
            return "refused"
        return "connected"


def order(port: int) -> str:
    """What a port says to a call of py4j's; `p0` is the first function that is called back."""
    with socket.socket() as client:
        client.settimeout(1.0)
        try:
            client.connect(("127.0.0.1", port))
            client.sendall(b"c\np0\ncall\ne\n")
            return client.recv(1000).decode("latin-1")
        except TimeoutError:
            return "silence"
        except OSError:
            return ""


def listening(processes: list[int]) -> list[int]:
    """The TCP ports, of whatever address, that these processes listen on."""
    inodes = set()
    for process in processes:
        for handle in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.update(re.findall(r"socket:\[(\d+)\]", str(handle.readlink())))
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields: list[Any] = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                assert address in LOOPBACK, f"port {int(port, 16)} listens on {address}, not on the loopback address"
                ports.append(int(port, 16))
    return sorted(ports)


def command_line(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@dataclass
class Seen:
    """What user 65534 could do.

    Attributes:
        readable, writable: files, and folders that can be listed or written to.
        connected: sockets by path that took a connection.
        abstract: sockets that have no path, so that nothing guards them.
        ports: what each TCP port on which they listen says to an order without a secret.
        udp: UDP ports.
        environments: processes whose environment can be read.
        command_lines: of all of them.
    """

    readable: list[str] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)
    abstract: list[str] = field(default_factory=list)
    ports: dict[int, str] = field(default_factory=dict)
    udp: list[str] = field(default_factory=list)
    environments: list[int] = field(default_factory=list)
    command_lines: str = ""


def look(process: int, places: list[Path]) -> Seen:
    """Look at a process and its descendants, at these folders, at files that they hold open, and at temporary folders.

    Of a shared temporary folder, only what is held open by these processes or named like Tupletree is looked at.
    """
    processes = [process, *descendants(process)]
    inodes = _inodes(processes)
    found = {path for place in places for path in (place, *place.rglob("*"))}
    found |= {path for path in _held(processes) if path.exists() and not str(path).startswith(("/proc", "/dev/null"))}
    for shared in (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp")):
        found |= {one for path in shared.glob("*tupletree*") for one in (path, *path.rglob("*"))}
    held = {path for path in found if str(path).startswith(tuple(map(str, (*places, "/tmp", "/dev/shm", "/var/tmp"))))}
    paths = sorted(map(str, held))
    files = [path for path in paths if Path(path).is_file()]
    sockets, abstract = _unix_sockets(inodes)
    ports = listening(processes)
    return Seen(
        readable=as_other(lambda: readable(files)),
        writable=as_other(lambda: [path for path in paths if _is_writable(path)]),
        connected=as_other(lambda: [path for path in sockets if connect(path) == "connected"]),
        abstract=abstract,
        ports=dict(zip(ports, as_other(lambda: [order(port) for port in ports]), strict=True)),
        udp=[line for name in ("udp", "udp6") for line in _rows(name) if line.split()[9] in inodes],
        environments=as_other(lambda: [one for one in processes if _can_read(f"/proc/{one}/environ")]),
        command_lines="\n".join(map(command_line, processes)),
    )


def _is_writable(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.access(path, os.W_OK) and not (Path(path).stat().st_mode & stat.S_ISVTX)
    return False


def _can_read(path: str) -> bool:
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        return bool(file.read(1))
    return False


def _held(processes: list[int]) -> set[Path]:
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = handle.readlink()
                    if target.is_absolute():
                        found.add(target)
    return found


def _inodes(processes: list[int]) -> set[str]:
    found: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.update(re.findall(r"socket:\[(\d+)\]", str(handle.readlink())))
    return found


def _rows(table: str) -> list[str]:
    path = Path(f"/proc/net/{table}")
    return path.read_text().splitlines()[1:] if path.exists() else []


def _unix_sockets(inodes: set[str]) -> tuple[list[str], list[str]]:
    """(paths, names without a path) of sockets that these processes listen on."""
    fields: list[list[str]] = [line.split() for line in _rows("unix")]
    names = [row[7] for row in fields if len(row) > 7 and row[6] in inodes]
    return [name for name in names if name.startswith("/")], [name for name in names if name.startswith("@")]
