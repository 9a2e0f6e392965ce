"""The memory plan: how many blocks of KV cache fit, and how long a sequence may be.

Owns: the arithmetic of memory, in bytes and tokens; the ledger; what to change when it does not
fit.
Does not know: models and machines beyond the numbers given, configuration files, or a backend.

`plan_memory` sizes the pool and `footprint` is its inverse: what a size costs. For every plan
`footprint(plan) <= budget`, and where the budget is what bounds the pool, one more block would
exceed it. A model with sliding windows has a pool for each KV group: `num_blocks` is the widest
one's, from which the others follow (kv_pools).

    budget = memory * utilization
    +---------+-----------+---------+---------------------------+--------+
    | weights | workspace | reserve | KV cache: blocks          | unused |
    +---------+-----------+---------+---------------------------+--------+
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from octavo.core.kv_pools import KvGroup, KvPools

RESERVE = 192 * 1024**2
"""Bytes for the two processes themselves: interpreter, libraries, tokenizer, buffers."""

BLOCK_OVERHEAD = 512
"""Bytes of bookkeeping that the scheduler keeps for a block: its entry, hash and table slots."""

CHAT = 2048
"""Tokens of a typical chat, for saying how many the cache holds."""


class PlanError(ValueError):
    """No plan meets the limits. `field` is the limit at fault."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the ledger. `tokens` is None where the line does not count tokens."""

    name: str
    bytes: int
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of `field` to `value` that, alone, makes the plan fit. A `field` of "memory" is
    the memory that the machine or container would need."""

    field: str
    value: int | float


class DoesNotFit(PlanError):
    """What was asked for does not fit. `lines` is the ledger of it, `budget` in bytes, `changes`
    the smallest single changes that would make it fit."""

    def __init__(
        self, message: str, field: str, lines: list[Line], budget: int, changes: list[Change]
    ) -> None:
        super().__init__(message, field)
        self.lines = lines
        self.budget = budget
        self.changes = changes


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What of a model counts here, in bytes; `max_position` in tokens. `workspace_bytes` are taken
    whatever the batch, `workspace_bytes_per_token` for each token of a step. `kv_groups` divide
    `kv_bytes_per_token` by window (empty: all is full attention)."""

    weight_bytes: int
    kv_bytes_per_token: int
    workspace_bytes_per_token: int
    workspace_bytes: int
    max_position: int
    kv_groups: tuple[KvGroup, ...] = ()

    @property
    def groups(self) -> tuple[KvGroup, ...]:
        return self.kv_groups or (KvGroup(0, self.kv_bytes_per_token),)


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What was asked for. `memory` is what the machine has for us, in bytes.

    `kv_bytes` and `kv_tokens` fix the size of the cache; otherwise it is what fits, at most
    `max_num_seqs` sequences of `typical_len` tokens (None: of the longest length). `max_model_len`
    None chooses the largest that fits. `tier_bytes` are buffers for blocks on their way between
    the pool and a disk.
    """

    memory: int
    utilization: float = 0.9
    kv_bytes: int | None = None
    kv_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int = 16
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 512
    typical_len: int | None = CHAT
    tier_bytes: int = 0

    @property
    def budget(self) -> int:
        return math.floor(self.memory * self.utilization)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The pool and the longest sequence that were decided. `shortened` tells that max_model_len
    was chosen below the model's own limit, because no more fits."""

    model: ModelFacts
    limits: MemoryLimits
    num_blocks: int
    max_model_len: int
    shortened: bool

    @property
    def pools(self) -> tuple[int, ...]:
        """The blocks of each KV group."""
        return _pools(self.model, self.limits).sizes(self.num_blocks)

    @property
    def kv_tokens(self) -> int:
        """Of the widest group."""
        return self.num_blocks * self.limits.block_size

    @property
    def budget(self) -> int:
        return self.limits.budget

    def chats(self) -> tuple[int, int]:
        """(how many, of how many tokens): chats of typical length that the cache holds at once."""
        length = min(CHAT, self.max_model_len)
        return _pools(self.model, self.limits).together(self.num_blocks, length), length

    def ledger(self) -> list[Line]:
        return _ledger(self.model, self.limits, self.num_blocks)


def footprint(model: ModelFacts, limits: MemoryLimits, num_blocks: int) -> int:
    """Bytes in all of a pool of `num_blocks`: the inverse of `plan_memory`. Grows with each of the
    model's figures, the blocks, their size and max_num_batched_tokens."""
    return sum(line.bytes for line in _ledger(model, limits, num_blocks))


def plan_memory(model: ModelFacts, limits: MemoryLimits) -> MemoryPlan:
    """Size the pool and choose the longest sequence.

    Raises PlanError when max_model_len exceeds the model's positions, DoesNotFit (with the ledger
    and what to change) when the budget cannot hold what was asked for.
    """
    asked = limits.max_model_len
    if asked is not None and asked > model.max_position:
        raise PlanError(
            f"max_model_len ({asked}) exceeds the {model.max_position} positions of the model",
            "max_model_len",
        )
    fits = _blocks_that_fit(model, limits)
    fixed = _fixed_blocks(model, limits)
    available = fits if fixed is None else fixed
    pools = _pools(model, limits)
    wanted = 1 if asked is None else pools.wanted(asked)
    if available < wanted or available > fits:
        raise _does_not_fit(model, limits, max(available, wanted), available >= wanted)
    longest = min(model.max_position, pools.longest(available)) if asked is None else asked
    if fixed is None:
        typical = longest if limits.typical_len is None else min(longest, limits.typical_len)
        enough = pools.enough(limits.max_num_seqs, typical)
        available = min(fits, max(enough, pools.enough(1, longest)))
    return MemoryPlan(model, limits, available, longest, longest < model.max_position and not asked)


def show_bytes(value: int) -> str:
    """`value` in the largest binary unit that leaves at least 1, e.g. "1.50 GiB"."""
    size = float(value)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{value} bytes" if unit == "bytes" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def show_ledger(lines: list[Line], budget: int) -> list[str]:
    """The ledger as lines of text: name, bytes, tokens, the total and the budget."""
    total = sum(line.bytes for line in lines)
    rows = [*lines, Line("total", total), Line("may be used", budget)]
    return [
        f"{row.name:<12}{show_bytes(row.bytes):>12}"
        + (f"  {row.tokens:,} tokens" if row.tokens is not None else "")
        for row in rows
    ]


def _ledger(model: ModelFacts, limits: MemoryLimits, num_blocks: int) -> list[Line]:
    batched, size = limits.max_num_batched_tokens, limits.block_size
    pools = _pools(model, limits).sizes(num_blocks)
    return [
        Line("weights", model.weight_bytes),
        Line("workspace", _workspace(model, batched), batched),
        *(
            Line(
                f"window {group.window}" if group.window else "KV cache",
                blocks * size * group.bytes_per_token,
                blocks * size,
            )
            for group, blocks in zip(model.groups, pools, strict=True)
        ),
        *([Line("disk buffers", limits.tier_bytes)] if limits.tier_bytes else []),
        Line("reserve", RESERVE + sum(pools) * BLOCK_OVERHEAD),
    ]


def _workspace(model: ModelFacts, tokens: int) -> int:
    return model.workspace_bytes + tokens * model.workspace_bytes_per_token


def _pools(model: ModelFacts, limits: MemoryLimits) -> KvPools:
    """How the groups share memory. Where `kv_tokens` fixes the pools, they are the same for every
    max_model_len."""
    asked = limits.max_model_len if limits.kv_tokens is None else None
    typical = min(CHAT, model.max_position if asked is None else asked)
    return KvPools(model.groups, limits.block_size, typical, limits.max_num_batched_tokens)


def _blocks_that_fit(model: ModelFacts, limits: MemoryLimits) -> int:
    rest = limits.budget - footprint(model, limits, 0)
    return _pools(model, limits).largest(rest, BLOCK_OVERHEAD)


def _fixed_blocks(model: ModelFacts, limits: MemoryLimits) -> int | None:
    """The size that kv_bytes or kv_tokens ask for (the smaller of the two)."""
    sizes, pools = [], _pools(model, limits)
    if limits.kv_bytes is not None:
        sizes.append(pools.largest(limits.kv_bytes))
    if limits.kv_tokens is not None:
        sizes.append(pools.blocks(limits.kv_tokens))
    return min(sizes, default=None)


def _does_not_fit(
    model: ModelFacts, limits: MemoryLimits, blocks: int, over_budget: bool
) -> DoesNotFit:
    """`blocks` are needed. `over_budget`: a cache of fixed size is larger than the budget allows;
    otherwise the cache (fixed, or as large as fits) is too small for one sequence."""
    changes = [
        change for change in _candidates(model, limits, blocks) if _fits(model, limits, change)
    ]
    lines = _ledger(model, limits, blocks)
    needed, budget = sum(line.bytes for line in lines), limits.budget
    fixed = _fixed_blocks(model, limits)
    cache = "kv_memory" if limits.kv_bytes is not None else "kv_tokens"
    if fixed is not None and not over_budget:
        field = "max_model_len" if limits.max_model_len is not None else cache
        message = (
            f"one sequence needs {blocks * limits.block_size:,} tokens of KV cache, "
            f"and {cache} gives {fixed * limits.block_size:,}"
        )
    else:
        field = "max_model_len" if limits.max_model_len is not None else "memory_utilization"
        field = cache if over_budget else field
        message = f"{show_bytes(needed)} are needed, and {show_bytes(budget)} may be used"
    return DoesNotFit(message, field, lines, budget, changes)


def _candidates(model: ModelFacts, limits: MemoryLimits, blocks: int) -> Iterator[Change]:
    """Single changes, each as small as can be, that may make it fit."""
    fits = _blocks_that_fit(model, limits)
    fixed = _fixed_blocks(model, limits)
    needed = footprint(model, limits, blocks)
    if limits.max_model_len is not None:
        room = fits if fixed is None else fixed
        yield Change("max_model_len", room * limits.block_size)
    if fixed is not None:
        size = min(blocks, fits)
        if limits.kv_bytes is not None:
            yield Change("kv_memory", _pools(model, limits).bytes(size))
        if limits.kv_tokens is not None:
            yield Change("kv_tokens", size * limits.block_size)
    if limits.memory > 0:
        yield Change("memory_utilization", math.ceil(needed / limits.memory * 100) / 100)
    spare = limits.budget - (needed - limits.max_num_batched_tokens * _per_token(model))
    yield Change("max_num_batched_tokens", spare // _per_token(model))
    memory = math.ceil(needed / limits.utilization)
    while math.floor(memory * limits.utilization) < needed:
        memory += 1
    yield Change("memory", memory)


def _per_token(model: ModelFacts) -> int:
    return max(1, model.workspace_bytes_per_token)


def _fits(model: ModelFacts, limits: MemoryLimits, change: Change) -> bool:
    """Whether `change`, alone, leads to a plan."""
    name = "kv_bytes" if change.field == "kv_memory" else change.field
    name = "utilization" if name == "memory_utilization" else name
    if change.value <= 0 or (name == "utilization" and change.value > 1):
        return False
    if name != "memory" and change.value == getattr(limits, name):
        return False
    values: dict[str, Any] = {name: change.value}
    changed = replace(limits, **values)
    fixed = _fixed_blocks(model, changed)
    fits = _blocks_that_fit(model, changed)
    available = fits if fixed is None else fixed
    asked = changed.max_model_len
    wanted = 1 if asked is None else _pools(model, changed).wanted(asked)
    return wanted <= available <= fits
