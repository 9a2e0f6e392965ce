"""Frames over a socketpair: a blocking end for the engine, an asyncio end for the client.

Owns: framing (four bytes of length, big-endian, then the payload) and its bounds.
Does not know: what is in a frame (messages) or who is at the other end (process, client).

A stream socket gives EOF the moment the peer dies, whatever it died of: that is the signal that
both sides rely on. An engine without work sleeps in the kernel, inside `receive`.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import cast

MAX_FRAME = 256 * 1024 * 1024
"""Bytes. The largest honest frame is a step's prompt logprobs, some tens of megabytes."""

_HEADER = 4
_READ = 256 * 1024


class ChannelClosed(Exception):
    """The peer has gone."""


class FrameError(Exception):
    """A frame is longer than the bound: a damaged stream, or a message that must not be sent."""


class FrameReader:
    """Cuts a byte stream into frames, however the bytes are split."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the frames that `data` completes. Raises FrameError as soon as a header says
        more than the bound: nothing of such a frame is kept."""
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        at = 0
        while len(buffer) - at >= _HEADER:
            size = int.from_bytes(buffer[at : at + _HEADER], "big")
            if size > self._max_frame:
                buffer.clear()
                raise FrameError(f"a frame of {size} bytes; the limit is {self._max_frame}")
            end = at + _HEADER + size
            if len(buffer) < end:
                break
            frames.append(bytes(buffer[at + _HEADER : end]))
            at = end
        del buffer[:at]
        return frames


def pack_frame(payload: bytes, max_frame: int = MAX_FRAME) -> bytes:
    """The payload with its header. Raises FrameError beyond the bound."""
    if len(payload) > max_frame:
        raise FrameError(f"a message of {len(payload)} bytes; the limit is {max_frame}")
    return len(payload).to_bytes(_HEADER, "big") + payload


class BlockingChannel:
    """The engine's end."""

    def __init__(self, sock: socket.socket, max_frame: int = MAX_FRAME) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._max_frame = max_frame
        self._reader = FrameReader(max_frame)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def receive(self, timeout: float | None) -> list[bytes]:
        """All frames that have arrived; waits up to `timeout` seconds (None: for ever) for the
        first bytes. Empty when there were none. Raises ChannelClosed when the peer has gone."""
        frames: list[bytes] = []
        wait = None if timeout is None else timeout * 1000
        while self._poll.poll(wait):
            try:
                data = self._socket.recv(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionError as error:
                raise ChannelClosed(str(error)) from error
            if not data:
                if frames:
                    break  # what came before EOF is handled first; the next call meets it again
                raise ChannelClosed("the client has gone")
            frames += self._reader.feed(data)
            wait = None if timeout is None and not frames else 0
        return frames

    def send(self, payload: bytes) -> None:
        """Blocks while the client is behind. Raises ChannelClosed when it has gone."""
        try:
            self._socket.sendall(pack_frame(payload, self._max_frame))
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def close(self) -> None:
        self._socket.close()


class AsyncChannel(asyncio.Protocol):
    """The client's end: calls `on_frame` for each frame and `on_close` once, on the loop."""

    def __init__(
        self,
        on_frame: Callable[[bytes], None],
        on_close: Callable[[], None],
        max_frame: int = MAX_FRAME,
    ) -> None:
        self._on_frame = on_frame
        self._on_close = on_close
        self._max_frame = max_frame
        self._reader = FrameReader(max_frame)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(
        cls,
        sock: socket.socket,
        on_frame: Callable[[bytes], None],
        on_close: Callable[[], None],
        max_frame: int = MAX_FRAME,
    ) -> AsyncChannel:
        """Takes the socket over."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        channel = cls(on_frame, on_close, max_frame)
        await loop.create_unix_connection(lambda: channel, sock=sock)
        return channel

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, payload: bytes) -> None:
        """Never blocks; a peer that has gone swallows it (`on_close` follows). Raises FrameError
        beyond the bound."""
        frame = pack_frame(payload, self._max_frame)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def close(self) -> None:
        """Sends what is buffered, then EOF."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Drops what is buffered."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._reader.feed(data)
        except FrameError:
            # The stream is damaged beyond repair: as good as a dead peer.
            self.abort()
            return
        for frame in frames:
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_close()
