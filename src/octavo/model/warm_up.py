"""The steps that are run before the first request: one of each kind, so that lazy work is done and
a broken backend shows.

Owns: which steps.
Does not know: the model. Uses block 0 of each KV group before anything is served, and rids below 0.
"""

from __future__ import annotations

from octavo.core.params import SamplingParams
from octavo.core.plan import PENDING, Admitted, Copy, Executor, Row, StepPlan, Want
from octavo.ops import NONFINITE_LOGITS

_GREEDY = SamplingParams(temperature=0.0)
_DRAWN = SamplingParams(
    temperature=0.7,
    top_p=0.9,
    top_k=20,
    repetition_penalty=1.1,
    logprobs=1,
    prompt_logprobs=1,
)
_SEQUENCES = {-1: _GREEDY, -2: _DRAWN}
"""By rid. They have the same tokens, and so may write the same block."""


def warm_up(executor: Executor, *, block_size: int, groups: int) -> None:
    """A prefill with prompt logprobs, a decode and a block copy; one row greedy, one drawn.

    Raises RuntimeError where a row fails, except for logits that are not finite: those are told to
    the request that meets them.
    """
    failed: dict[int, str] = {}
    for plan in _plans(block_size, groups):
        failed = {**executor.collect(executor.submit(plan)).errors, **failed}
    for error in failed.values():
        if error != NONFINITE_LOGITS:
            raise RuntimeError(f"the model fails on a first step: {error}")


def _plans(block_size: int, groups: int) -> list[StepPlan]:
    prompt = [0] * max(1, min(4, block_size - 1))
    size, tables = len(prompt), ([0],) * groups
    plans = [StepPlan(0), StepPlan(0), StepPlan(0)]
    for rid, params in _SEQUENCES.items():
        plans[0].admitted.append(Admitted(rid, params, 0, 0, size, prompt))
        prefill = Row(rid, 0, prompt, tables, 0, 0, Want.SAMPLE | Want.PROMPT_LOGPROBS)
        plans[0].rows.append(prefill)
        if size < block_size:
            plans[1].rows.append(Row(rid, size, [PENDING], tables, size, 0, Want.SAMPLE))
    plans[2].ended = list(_SEQUENCES)
    plans[2].copies = [Copy(group, 0, 0) for group in range(groups)]
    return plans
