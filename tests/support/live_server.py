"""A server in a thread of this process, over a real socket: for tests of the HTTP side.

Owns: `LiveServer`, its answers, waiting for a condition.
Does not know: signals and exit codes; tests of those start a process.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from octavo.server.app import build_app
from octavo.server.lifecycle import http_server
from octavo.server.port import bind, url_of
from octavo.server.serving import Serving

T = TypeVar("T")
PATIENCE = 30.0


class LiveServer:
    """`make` builds the Serving on the server's own loop; `app` are options of `build_app`."""

    def __init__(self, make: Callable[[], Serving], **app: Any) -> None:
        self._make = make
        self._app = app
        self._up = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LiveServer:
        self._thread.start()
        assert self._up.wait(PATIENCE), "the server did not start"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not end"

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
            self._up.set()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.serving = self._make()
        self.app = build_app(self.serving, **self._app)
        with bind("127.0.0.1", 0) as listening:
            listening.listen(128)
            self.url = url_of(listening)
            self.port = int(listening.getsockname()[1])
            server = http_server(self.app)
            serve = asyncio.create_task(server.serve([listening]))
            try:
                await self.serving.engine.start()
                if self.app.state.batching is not None:
                    self.app.state.batching.runner.start()
                self._up.set()
                await self._stop.wait()
            finally:
                if self.app.state.batching is not None:
                    self.app.state.batching.runner.stop()
                await self.serving.engine.close()
                if self.app.state.batching is not None:
                    await self.app.state.batching.close()
                server.should_exit = True
                await serve

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float = PATIENCE,
    ) -> Answer:
        """One request on a connection of its own; `body` is bytes, or data sent as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.request("POST", path, body, headers)

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, None, headers)

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    def json(self) -> Any:
        def refuse(text: str) -> float:
            raise ValueError(f"{text} is not JSON")

        return json.loads(self.body, parse_constant=refuse)

    @property
    def error(self) -> dict[str, Any]:
        """The error, after a check of its shape."""
        body = self.json()
        assert set(body) == {"error"}, body
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert isinstance(body["error"]["message"], str) and body["error"]["message"]
        return dict(body["error"])

    def events(self) -> list[Any]:
        """The data of a stream's events, [DONE] as a string."""
        events = []
        for part in self.body.decode().split("\n\n"):
            if part.startswith("data: "):
                data = part[6:]
                events.append(data if data == "[DONE]" else json.loads(data))
            else:
                assert not part or part.startswith(":"), part
        return events


def until(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)
