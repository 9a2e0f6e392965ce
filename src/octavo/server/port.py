"""The listening socket: bound before anything else is done, so that a port in use is known at once.

Owns: binding, and what is said of a port that is taken.
Does not know: HTTP. It imports nothing, because it comes first.
"""

from __future__ import annotations

import contextlib
import errno
import socket


class PortInUse(OSError):
    """The address is taken. `free` is the next free port above, if one was found near."""

    def __init__(self, host: str, port: int, free: int | None) -> None:
        hint = f"; the next free one is {free}" if free is not None else ""
        super().__init__(f"port {port} on {host} is in use{hint}")
        self.host = host
        self.port = port
        self.free = free


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; 0 takes any free port. Raises PortInUse, and OSError for other reasons."""
    try:
        return _bind(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    raise PortInUse(host, port, _next_free(host, port))


def _bind(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def _next_free(host: str, port: int) -> int | None:
    for candidate in range(port + 1, min(port + 100, 65536)):
        with contextlib.suppress(OSError):
            _bind(host, candidate).close()
            return candidate
    return None


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
