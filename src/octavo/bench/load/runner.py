"""One run: a workload sent to one server at its times, and every outcome of it.

Owns: the schedule of the requests, the bound on how many are under way, what is kept when the run
is interrupted, and how busy the client itself was.
Does not know: what is made of the outcomes (figures).

Open loop: requests have times and are sent then, whatever the server does. Closed loop:
`concurrency` requests are under way, and each that ends lets the next one go. Both together: times,
with a bound.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from octavo.bench.load.client import Api, Outcome, ask
from octavo.bench.load.workload import Workload


@dataclass(slots=True)
class Run:
    """`seconds`: from the first request sent to the last end. `client_cpu`: the client's share of
    one processor; `late`: the most that a request was sent after it was due, for the client's own
    reasons or because of `concurrency`."""

    workload: str
    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0
    client_cpu: float = 0.0
    late: float = 0.0


async def run(
    api: Api, workload: Workload, *, concurrency: int | None = None, salt: str = ""
) -> Run:
    """Cancelling it is an interrupt: what has ended by then is kept, and `interrupted` set."""
    order = sorted(workload.items, key=lambda item: item.at)
    # Written before the clock starts: the client has nothing left to do but send.
    bodies = [api.body(item, salt) for item in order]
    places = asyncio.Semaphore(concurrency or len(order))
    result = Run(workload.name)
    tasks: list[asyncio.Task[None]] = []
    begun, cpu = time.perf_counter(), time.process_time()

    async def one(body: bytes, due: float) -> None:
        try:
            result.outcomes.append(await ask(api, body, due, begun))
        finally:
            places.release()

    try:
        for item, body in zip(order, bodies, strict=True):
            wait = item.at - (time.perf_counter() - begun)
            if wait > 0:
                await asyncio.sleep(wait)
            await places.acquire()
            tasks.append(asyncio.create_task(one(body, item.at)))
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        result.interrupted = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    result.client_cpu = (time.process_time() - cpu) / max(time.perf_counter() - begun, 1e-9)
    sent = [outcome.sent for outcome in result.outcomes]
    ended = [outcome.ended for outcome in result.outcomes if not outcome.cancelled]
    if sent and ended:
        result.seconds = max(ended) - min(sent)
        result.late = max(outcome.sent - outcome.due for outcome in result.outcomes)
    return result
