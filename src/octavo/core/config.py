"""What a scheduler is told at its start.

Owns: `SchedulerConfig` and the checks on it.
Does not know: where the numbers come from (memory plan, command line).
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.adaptive import RULES
from octavo.core.blocks import GroupSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one engine. Raises ValueError where one makes no sense.

    `num_blocks` blocks of `block_size` tokens hold all keys and values; `groups` names the KV
    groups instead (all with the same block size, each with its own number of blocks and window).
    `max_num_seqs` bounds the rows of a step and `max_num_batched_tokens` its tokens; no more
    sequences run than either allows, so that every one of them can decode in every step.
    `eos_token_ids` end a sequence unless it ignores them. `fingerprint` keys the prefix cache.
    `policy` is the order within a class: "fcfs", "priority" or "fair" (between tenants); under
    "priority" a wait of `priority_ageing` seconds counts as much as one level (0: for nothing).
    `batch_share` of the tokens computed are the batch class's for certain, whatever realtime work
    there is. A realtime request that is predicted to wait longer than `max_queue_delay` seconds for
    its first row is refused.
    With `target_tpot` or `target_latency` (seconds) the limits of a step follow what is measured,
    by `adaptive_rule`: "proportional" or "step".
    """

    num_blocks: int
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_waiting_requests: int = 4096
    max_waiting_tokens: int = 8_000_000
    enable_prefix_caching: bool = True
    eos_token_ids: tuple[int, ...] = ()
    fingerprint: str = ""
    policy: str = "fcfs"
    max_queue_delay: float | None = None
    priority_ageing: float = 60.0
    batch_share: float = 0.05
    target_tpot: float | None = None
    target_latency: float | None = None
    adaptive_rule: str = "proportional"
    groups: tuple[GroupSpec, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "num_blocks",
            "max_model_len",
            "block_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_waiting_requests",
            "max_waiting_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_queue_delay is not None and self.max_queue_delay <= 0:
            raise ValueError(f"max_queue_delay is {self.max_queue_delay}; it must be above 0")
        if not 0 <= self.priority_ageing < float("inf"):
            raise ValueError(f"priority_ageing is {self.priority_ageing}; it must be at least 0")
        if not 0 <= self.batch_share <= 0.5:
            raise ValueError(f"batch_share is {self.batch_share}; it must be from 0 to 0.5")
        for name in ("target_tpot", "target_latency"):
            target = getattr(self, name)
            if target is not None and not 0 < target < float("inf"):
                raise ValueError(f"{name} is {target}; it must be above 0")
        if self.adaptive_rule not in RULES:
            raise ValueError(
                f"adaptive_rule is {self.adaptive_rule!r}; known are {', '.join(RULES)}"
            )
        if any(group.block_size != self.block_size for group in self.groups):
            raise ValueError(f"every KV group must have block_size {self.block_size}")

    @property
    def group_specs(self) -> tuple[GroupSpec, ...]:
        return self.groups or (GroupSpec(self.num_blocks, self.block_size),)

    @property
    def max_running(self) -> int:
        return min(self.max_num_seqs, self.max_num_batched_tokens)
