"""A server that answers completions as a script says, rightly or wrongly, over a real socket.

Owns: `ScriptedApi` and the pieces of scripts.
Does not know: who asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

PATIENCE = 30.0


class Act(Enum):
    """What a script does besides sending bytes."""

    CLOSE = "close the connection"
    RESET = "reset the connection"
    STALL = "say nothing more"


@dataclass
class Pause:
    """Wait so long before going on."""

    seconds: float


Script = Callable[[int, dict[str, Any]], Iterable["bytes | Act | Pause"]]
"""(number of the request, its body) -> what to do, in order."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def text(piece: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": piece, "finish_reason": finish}]})


def usage(prompt: int, output: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}})


def status(code: int, message: str) -> bytes:
    body = json.dumps({"error": {"message": message}}).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (code, len(body), body)


def good(number: int, body: dict[str, Any]) -> list[bytes]:
    """As it should be: one chunk a token."""
    count = body["max_tokens"]
    pieces = [text(" t") for _ in range(count - 1)] + [text(" t", "length")]
    prompt = len(str(body.get("prompt", "")).split())
    return [HEAD, *pieces, usage(prompt, count), chunk(DONE), LAST]


@dataclass
class ScriptedApi:
    """`with ScriptedApi(script) as api:`; `bodies` are those asked, in order. `metrics` is what
    /metrics says (None: 404)."""

    script: Script = good
    metrics: Callable[[], str] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most: int = 0
    """The most requests that were under way at once."""

    def __enter__(self) -> ScriptedApi:
        self._up = threading.Event()
        self._under_way = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._up.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._answer(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        await self._stop.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length:")[2].split("\r\n")[0])
            body = await reader.readexactly(length)
            if head.startswith("get"):
                writer.write(self._get(head.split()[1]))
                await writer.drain()
            else:
                await self._run(json.loads(body), writer)
        writer.close()

    def _get(self, path: str) -> bytes:
        if path.endswith("/v1/models"):
            body = b'{"data": [{"id": "scripted"}]}'
        elif path.endswith("/metrics") and self.metrics is not None:
            body = self.metrics().encode()
        else:
            return status(404, "not here")
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)

    async def _run(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.bodies.append(body)
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        try:
            for step in self.script(len(self.bodies) - 1, body):
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                elif step is Act.STALL:
                    await asyncio.sleep(PATIENCE)
                elif step is Act.RESET:
                    linger = struct.pack("ii", 1, 0)
                    peer = writer.get_extra_info("socket")
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    return
                elif step is Act.CLOSE:
                    return
                else:
                    writer.write(step)
                    await writer.drain()
        finally:
            self._under_way -= 1
