"""A relay between a client and its server, with the faults that networks have."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

__all__ = ["Relay"]

TAKEN_BYTES = 65536


class Relay:
    """Passes on what comes to its port to another one, over connections that can be dropped.

    Args:
        target: a port of this machine, or the path of a socket.
    """

    def __init__(self, target: int | Path) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self.dropped = 0
        self._forgotten: set[socket.socket] = set()
        self._speaks = threading.Event()
        self._speaks.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                here, _ = self._listening.accept()
                there = self._connected()
                with self._lock:
                    self._ends += [here, there]
                for source, target in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=[source, target], daemon=True).start()

    def _connected(self) -> socket.socket:
        if not isinstance(self._target, Path):
            return socket.create_connection(("127.0.0.1", self._target))
        there = socket.socket(socket.AF_UNIX)
        there.connect(str(self._target))
        return there

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was dropped
            while taken := source.recv(TAKEN_BYTES):
                self._speaks.wait()
                if source not in self._forgotten:
                    target.sendall(taken)
        if source in self._forgotten:
            return
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """End all connections, in the middle of whatever they carry."""
        with self._lock:
            ends, self._ends = self._ends, []
        self.dropped += len(ends) // 2
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def forget(self) -> None:
        """Pass on nothing more over the connections that there are, and tell neither end: a firewall with no room."""
        with self._lock:
            self._forgotten |= set(self._ends)
            self._ends = []

    def hush(self) -> None:
        """Take connections and what comes by them, and pass on nothing before `speak`: a server that is suspended."""
        self._speaks.clear()

    def speak(self) -> None:
        """Pass on what has come meanwhile, and what comes."""
        self._speaks.set()

    def close(self) -> None:
        self.speak()
        for end in self._forgotten:
            end.close()
        self._listening.close()
        self.drop()
