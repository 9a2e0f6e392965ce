"""What the routes serve from: the engine, the text side, the model's facts, the limits.

Owns: `Serving`, and the engine as the server sees it.
Does not know: HTTP. It is made once (lifecycle) and passed as an argument; there are no globals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.config import Options
from octavo.core.params import Caps
from octavo.core.request import Output, Submission
from octavo.engine.health import EngineState, Health
from octavo.engine.messages import EngineConfig, EngineStats
from octavo.frontend import load_template, load_tokenizer
from octavo.model.info import ModelInfo
from octavo.server.errors import RETRY_AFTER, ApiError
from octavo.server.metrics import EngineView, Metrics
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer

PAUSED = "paused"
PAUSED_RETRY_AFTER = 5.0
"""Seconds: nobody knows how long a pause lasts."""


class Stream(Protocol):
    """`engine.stream.RequestStream`: outputs of all choices of one submission."""

    def __aiter__(self) -> AsyncIterator[Output]: ...
    async def abort(self, choice: int | None = None) -> None: ...
    async def aclose(self) -> None: ...


class Engine(Protocol):
    """`engine.client.AsyncEngine`, as far as the server uses it."""

    failed: asyncio.Event

    async def start(self) -> None: ...
    def submit(self, submission: Submission) -> Stream: ...
    def health(self) -> Health: ...
    @property
    def stats(self) -> EngineStats: ...
    async def drain(self, timeout: float | None) -> bool: ...  # noqa: ASYNC109
    async def close(self) -> None: ...


@dataclass
class Serving:
    """`names` are the served names, the first is the one reported. `defaults` are sampling defaults
    of the model's generation_config. `template` is None where the model has none. `vocab_size`
    counts the embedding's rows. `max_requests` can run and wait in the engine at once, with
    `max_waiting_tokens` of prompts. `loaded` is false until the engine started; `draining` once the
    server is on its way out, `paused` while it takes nothing new. `begin_drain` (of whoever runs
    the server) begins that way, or moves its deadline; it returns the seconds that are left."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: tuple[str, ...]
    max_model_len: int
    vocab_size: int
    defaults: Mapping[str, Any] = field(default_factory=dict)
    caps: Caps = field(default_factory=Caps)
    heartbeat: float = 15.0
    max_requests: int = 1 << 31
    max_waiting_tokens: int = 1 << 53
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    paused: bool = False
    begin_drain: Callable[[float | None], float] | None = None
    metrics: Metrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.names[0], self._view)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def ready(self) -> bool:
        return not (self.draining or self.paused) and self.engine.health().ready

    @property
    def unfinished(self) -> int:
        """Sequences that run or wait, as the engine last told."""
        return self.engine.stats.running + self.engine.stats.waiting

    def state(self) -> tuple[str, str]:
        """(state, reason), of the server and the engine together."""
        if self.draining:
            return EngineState.DRAINING.value, "the server is shutting down"
        health = self.engine.health()
        if self.paused and health.state is EngineState.READY:
            return PAUSED, "the server is paused"
        return health.state.value, health.reason

    def check_accepting(self) -> None:
        """Raise ApiError(503) when new work is not taken. While the engine restarts work is taken:
        it waits, as the running requests do."""
        state, reason = self.state()
        if self.paused and state in (PAUSED, EngineState.RESTARTING):
            raise ApiError(
                503,
                "No new requests are taken: the server is paused.",
                code=PAUSED,
                retry_after=PAUSED_RETRY_AFTER,
            )
        if state not in (EngineState.READY, EngineState.RESTARTING):
            raise ApiError(
                503, f"No new requests are taken: {reason}.", code=state, retry_after=RETRY_AFTER
            )

    def check_model(self, name: str | None) -> None:
        """Raise ApiError(404) for a name that is not served; no name (or an empty one) is the
        one model."""
        if name and name not in self.names:
            raise ApiError(
                404,
                f"The model {name!r:.80} does not exist; this server has {self.names[0]!r}.",
                "model",
                "model_not_found",
            )

    def _view(self) -> EngineView:
        return EngineView(self.engine.stats, self.engine.health().restarts, self.ready)


def build_serving(
    options: Options,
    model: ModelInfo,
    config: EngineConfig,
    generation: Mapping[str, Any],
    engine: Engine,
) -> Serving:
    """What `engine` is served with. Raises TokenizerError and ChatError for a tokenizer or a
    template that cannot be used."""
    tokenizer = load_tokenizer(model)
    tokenizer.min_token_count("")  # looks through the vocabulary, once; not at the first request
    return Serving(
        engine=engine,
        tokenizer=tokenizer,
        template=load_template(tokenizer, options.chat_template),
        names=options.served_model_name or (config.served_name,),
        max_model_len=config.max_model_len,
        vocab_size=model.vocab_size,
        defaults=generation,
        heartbeat=options.sse_heartbeat,
        max_requests=config.max_num_seqs + config.max_waiting_requests,
        max_waiting_tokens=config.max_waiting_tokens,
    )
