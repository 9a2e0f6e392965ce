"""Where a step's time goes, and how near each op comes to the machine's ceilings.

Owns: real steps of a model at a batch and a context, and what each op's time is compared with.
Does not know: how ops are timed (timed_ops) and counted (counting), or how results are shown.

Steps with a clock around each op take turns with steps as they are served, and with measurements of
the ceilings: on a shared machine all of them change from one second to the next.

An op's bound is the time that its bytes or its operations need at the ceilings, whichever is
longer; its fraction is that bound over the time that it took (S. Williams et al., "Roofline",
2009).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from octavo.bench.ceilings import Ceilings, middle
from octavo.bench.timed_ops import Call, TimedOps
from octavo.core.params import SamplingParams
from octavo.core.plan import PENDING, Admitted, Row, StepPlan, Want
from octavo.model.executor import ModelExecutor

PREFILL_TOKENS = 512
"""Prompt tokens of a step."""
BETWEEN = 6
"""Decode steps between two measurements of the ceilings."""
SETTLING = 2
"""Decode steps that are not counted."""
HOST = "host (between ops)"


@dataclass(frozen=True, slots=True)
class OpShare:
    """Of one step (decode) or of all steps of the prompts (prefill). `fraction` is None for ops
    that count nothing, and without ceilings; `limit` says which ceiling is the nearer."""

    label: str
    calls: int
    seconds: float
    share: float
    bytes: float
    operations: float
    limit: str | None
    fraction: float | None


@dataclass(frozen=True, slots=True)
class Phase:
    """`seconds` as in `OpShare`; `tokens` computed in them. `fraction`: the sum of all bounds over
    `seconds`, the time between ops included. `served`, `served_fraction`: the same of steps without
    clocks, which a backend may replay whole."""

    name: str
    batch: int
    context: int
    seconds: float
    tokens: int
    fraction: float | None
    served: float
    served_fraction: float | None
    ceilings: Ceilings | None
    ops: tuple[OpShare, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    seconds: float
    calls: list[Call]


def blocks_needed(batch: int, context: int, steps: int, block_size: int) -> int:
    return batch * -(-(context + 2 * (SETTLING + steps) + 1) // block_size)


class Roofline:
    """Drives an executor that was built on `ops`. Its pool must hold `blocks_needed` blocks."""

    def __init__(
        self, executor: ModelExecutor, ops: TimedOps, *, vocab: int, block_size: int, groups: int
    ) -> None:
        self._executor = executor
        self._ops = ops
        self._vocab = vocab
        self._block_size = block_size
        self._groups = groups
        self._next_rid = 0
        self._ended: list[int] = []

    def measure(
        self, batch: int, context: int, steps: int, ceilings: Callable[[], Ceilings] | None
    ) -> list[Phase]:
        """Prefill of `batch` prompts of `context` tokens, then `steps` decode steps of them all,
        each with clocks and without. `ceilings` measures the machine once."""
        prefill: dict[bool, _Step] = {}
        samples = _Samples(ceilings)
        for timing in (False, True):
            rids, tables = self._sequences(batch, context, 2 * steps)
            samples.take()
            done = [self._run(plan, timing) for plan in self._prompts(rids, tables, context)]
            prefill[timing] = _Step(
                sum(s.seconds for s in done), [c for s in done for c in s.calls]
            )
            self._ended = rids
        samples.take()
        prompts = _phase(
            "prefill", batch, context, batch * context, [prefill[True]], [prefill[False]], samples
        )
        decode: dict[bool, list[_Step]] = {True: [], False: []}
        samples = _Samples(ceilings)
        for number in range(2 * (SETTLING + steps)):
            if number % BETWEEN == 0:
                samples.take()
            timing = number % 2 == 0
            plan = self._decode(rids, tables, context + number)
            decode[timing].append(self._run(plan, timing))
        timed, served = decode[True][SETTLING:], decode[False][SETTLING:]
        return [prompts, _phase("decode", batch, context, batch, timed, served, samples)]

    def _sequences(
        self, batch: int, context: int, steps: int
    ) -> tuple[list[int], dict[int, tuple[list[int], ...]]]:
        """New ones, in the blocks of those before."""
        rids = list(range(self._next_rid, self._next_rid + batch))
        self._next_rid += batch
        each = blocks_needed(1, context, steps // 2, self._block_size)
        tables = {
            rid: (list(range(i * each, (i + 1) * each)),) * self._groups
            for i, rid in enumerate(rids)
        }
        return rids, tables

    def _run(self, plan: StepPlan, timing: bool) -> _Step:
        """Raises RuntimeError where a row fails."""
        self._ops.timing = timing
        self._ops.take()
        begun = time.perf_counter()
        result = self._executor.collect(self._executor.submit(plan))
        seconds = time.perf_counter() - begun
        calls, overhead = self._ops.take()
        for error in result.errors.values():
            raise RuntimeError(f"a step fails: {error}")
        return _Step(seconds - overhead, calls)

    def _prompts(self, rids: list[int], tables: dict[int, Any], context: int) -> Iterator[StepPlan]:
        """Whole prompts as far as a step holds them; longer ones in chunks."""
        params = SamplingParams(temperature=0.0, max_tokens=1 << 20, ignore_eos=True)
        prompts = {
            rid: [(rid * 7919 + place * 31) % self._vocab for place in range(context)]
            for rid in rids
        }
        plan = StepPlan(0, ended=self._ended)
        room = PREFILL_TOKENS
        for rid, prompt in prompts.items():
            plan.admitted.append(Admitted(rid, params, rid, 0, context, prompt))
            start = 0
            while start < context:
                tokens = prompt[start : start + room]
                last = start + len(tokens) == context
                want = Want.SAMPLE if last else Want.NONE
                logits = len(tokens) - 1 if last else len(tokens)
                plan.rows.append(Row(rid, start, tokens, tables[rid], start, logits, want))
                start += len(tokens)
                room -= len(tokens)
                if room == 0:
                    yield plan
                    plan, room = StepPlan(0), PREFILL_TOKENS
        if plan.rows:
            yield plan

    def _decode(self, rids: list[int], tables: dict[int, Any], position: int) -> StepPlan:
        rows = [
            Row(rid, position, [PENDING], tables[rid], position, 0, Want.SAMPLE) for rid in rids
        ]
        return StepPlan(0, rows=rows)


def _middle(steps: list[_Step]) -> list[_Step]:
    """The middle half by time: without the steps in which the machine did something else. One set
    of steps for all figures, so that shares add up."""
    ordered = sorted(steps, key=lambda step: step.seconds)
    aside = len(ordered) // 4
    return ordered[aside : len(ordered) - aside]


class _Samples:
    """Ceilings measured during a phase."""

    def __init__(self, source: Callable[[], Ceilings] | None) -> None:
        self._source = source
        self._taken: list[Ceilings] = []

    def take(self) -> None:
        if self._source is not None:
            self._taken.append(self._source())

    def middle(self) -> Ceilings | None:
        return middle(self._taken) if self._taken else None


def _phase(
    name: str,
    batch: int,
    context: int,
    tokens: int,
    steps: list[_Step],
    served: list[_Step],
    samples: _Samples,
) -> Phase:
    """Means over the middle half of `steps`, label by label."""
    ceilings = samples.middle()
    steps, served = _middle(steps), _middle(served)
    whole = statistics.fmean(step.seconds for step in served)
    seconds = statistics.fmean(step.seconds for step in steps)
    by_label: dict[str, list[Call]] = {}
    for step in steps:
        for call in step.calls:
            by_label.setdefault(call.cost.label, []).append(call)
    ops = [_share(label, calls, len(steps), seconds, ceilings) for label, calls in by_label.items()]
    ops.sort(key=lambda op: -op.seconds)
    rest = seconds - sum(op.seconds for op in ops)
    ops.append(OpShare(HOST, 0, rest, rest / seconds, 0.0, 0.0, None, None))
    fraction = reached = None
    if ceilings is not None:
        bound = sum(_bound(call, ceilings) for step in steps for call in step.calls) / len(steps)
        fraction, reached = bound / seconds, bound / whole
    return Phase(
        name, batch, context, seconds, tokens, fraction, whole, reached, ceilings, tuple(ops)
    )


def _share(
    label: str, calls: list[Call], steps: int, whole: float, ceilings: Ceilings | None
) -> OpShare:
    seconds = sum(call.seconds for call in calls) / steps
    read = sum(call.cost.bytes for call in calls) / steps
    operations = sum(call.cost.operations for call in calls) / steps
    limit = fraction = None
    if ceilings is not None and read + operations > 0 and seconds > 0:
        fraction = sum(_bound(call, ceilings) for call in calls) / steps / seconds
        limit = ceilings.limit(read, operations, calls[0].cost.kind)
    share = seconds / whole
    return OpShare(label, len(calls) // steps, seconds, share, read, operations, limit, fraction)


def _bound(call: Call, ceilings: Ceilings) -> float:
    return ceilings.seconds(call.cost.bytes, call.cost.operations, call.cost.kind)
