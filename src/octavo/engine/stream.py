"""What a caller holds of a running request.

Owns: iterating over outputs, and ending the request when the caller loses interest.
Does not know: how outputs arrive (client) or are merged (live).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from octavo.core.request import Output
from octavo.engine.live import LiveRequest

AbortHook = Callable[[LiveRequest, int | None], None]


class RequestStream:
    """Async iterator of `Output`s, all choices interleaved, each choice in order.

    What a slow reader has not taken is merged per choice. The first iteration raises
    `core.request.Refused` where the engine does not take the request; later failures come as
    outputs with finish_reason "error". Closing the stream, or dropping it, aborts the request.
    """

    def __init__(self, live: LiveRequest, abort: AbortHook) -> None:
        self._live = live
        self._abort = abort
        self._loop = asyncio.get_running_loop()

    @property
    def request_id(self) -> str:
        return self._live.request_id

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Output:
        output = await self._live.next()
        if output is None:
            raise StopAsyncIteration
        return output

    async def abort(self, choice: int | None = None) -> None:
        """Ends one choice, or all of them. Nothing more is delivered for what was aborted."""
        self._abort(self._live, choice)

    async def aclose(self) -> None:
        self._abort(self._live, None)

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # The collector may run on any thread, and after the loop has closed.
        if not self._live.finished and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abort, self._live, None)
