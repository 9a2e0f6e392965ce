"""The book of live requests.

Owns: which requests are live; handing them what the engine sends; blaming suspects of a crash;
failing at its deadline what is not complete by then, also while there is no engine.
Does not know: processes, restarts, or the state of the engine: it is given a way to send, which
swallows messages while there is no engine (whatever is live is submitted to the next one anyway).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from octavo.core.request import Refused, Submission
from octavo.engine.channel import FrameError
from octavo.engine.live import LiveRequest
from octavo.engine.messages import Abort, Submit, ToEngine, Tokens
from octavo.engine.step_memory import MAX_REQUEST_ID

log = logging.getLogger("octavo.engine")


class RequestBook:
    """`limit`: requests at most; `max_buffered`: tokens and logprob entries that one request may
    hold for its reader before it is ended with "slow_reader"."""

    def __init__(
        self, model: str, limit: int, max_buffered: int, send: Callable[[ToEngine], None]
    ) -> None:
        self._model = model
        self._limit = limit
        self._max_buffered = max_buffered
        self._send = send
        self._live: dict[str, LiveRequest] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.idle = asyncio.Event()
        """Set while nothing is live."""
        self.idle.set()

    def __len__(self) -> int:
        return len(self._live)

    def add(self, submission: Submission) -> LiveRequest:
        """Takes a request and sends it off. Raises Refused."""
        self._check(submission.request_id)
        live = LiveRequest(submission)
        if not live.finished:
            self._submit(live)
            self._live[submission.request_id] = live
            self.idle.clear()
            if submission.deadline is not None:
                # The engine looks at deadlines between steps; this one also while it cannot.
                left = max(0.0, submission.deadline - time.monotonic())
                loop = asyncio.get_running_loop()
                self._timers[submission.request_id] = loop.call_later(left, self._expire, live)
        return live

    def abort(self, live: LiveRequest, choice: int | None) -> None:
        if live.abort(choice):
            self._send(Abort(self._model, live.request_id, choice))
            self._settle(live)

    def deliver(self, message: Tokens) -> None:
        """One frame of the engine. What it says of requests aborted meanwhile is dropped."""
        for output in message.outputs:
            live = self._live.get(output.request_id)
            if live is None:
                continue
            live.accept(output)
            if live.buffered > self._max_buffered and not live.finished:
                self._send(Abort(self._model, live.request_id))
                live.fail(
                    f"the client does not read: {live.buffered} tokens and logprobs wait for it",
                    "slow_reader",
                )
            self._settle(live)
        for refusal in message.refused:
            live = self._live.get(refusal.request_id)
            if live is not None:
                self._refuse(
                    live,
                    Refused(refusal.message, refusal.code, refusal.param, refusal.retry_after),
                )

    def resubmit(self) -> None:
        """Sends every live request to a new engine, as far as each has come."""
        for live in list(self._live.values()):
            try:
                self._submit(live)
            except Refused as refused:
                self._refuse(live, refused)

    def blame(self, suspects: Iterable[str]) -> None:
        """The engine died while these had rows in its step: fails those whose guilt is proven."""
        for request_id in suspects:
            live = self._live.get(request_id)
            if live is not None and live.crashed():
                log.error("request %s is failed: the engine died of it", request_id)
                live.fail(
                    "the engine process died repeatedly while it computed this request alone",
                    "poison_request",
                )
                self._settle(live)

    def fail_all(self, message: str, code: str) -> None:
        for live in list(self._live.values()):
            live.fail(message, code)
            self._settle(live)

    def _expire(self, live: LiveRequest) -> None:
        if not live.finished:
            self._send(Abort(self._model, live.request_id))
            live.expire()
        self._settle(live)

    def _check(self, request_id: str) -> None:
        if not 0 < len(request_id.encode()) <= MAX_REQUEST_ID or "\0" in request_id:
            raise Refused(
                f"request_id must have 1 to {MAX_REQUEST_ID} bytes and no NUL",
                "invalid_request",
                "request_id",
            )
        if request_id in self._live:
            raise Refused(
                f"request_id {request_id!r} is in use", "duplicate_request_id", "request_id"
            )
        if len(self._live) >= self._limit:
            raise Refused(
                f"{len(self._live)} requests are waiting or running; the limit is {self._limit}",
                "queue_full",
                retry_after=1.0,
            )

    def _submit(self, live: LiveRequest) -> None:
        try:
            self._send(Submit(self._model, live.submission_now()))
        except (FrameError, OverflowError, TypeError) as error:
            raise Refused(f"the request cannot be sent: {error}", "invalid_request") from error

    def _refuse(self, live: LiveRequest, refused: Refused) -> None:
        live.refuse(refused)
        self._settle(live)

    def _settle(self, live: LiveRequest) -> None:
        """Forgets a request that has finished."""
        if live.finished and self._live.get(live.request_id) is live:
            del self._live[live.request_id]
            timer = self._timers.pop(live.request_id, None)
            if timer is not None:
                timer.cancel()
            if not self._live:
                self.idle.set()
