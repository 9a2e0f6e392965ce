"""The steps that are run before the first request: one of each kind, so that lazy work is done and
a broken backend shows.

Owns: which steps.
Does not know: the model. Uses block 0 of each KV group, before anything is served, and rid -1.
"""

from __future__ import annotations

from octavo.core.params import SamplingParams
from octavo.core.plan import PENDING, Admitted, Copy, Executor, Row, StepPlan, Want
from octavo.ops import NONFINITE_LOGITS

_RID = -1


def warm_up(executor: Executor, *, block_size: int, groups: int) -> None:
    """A prefill with prompt logprobs, a decode and a block copy; greedy, then drawn.

    Raises RuntimeError where a row fails, except for logits that are not finite: those are told to
    the request that meets them.
    """
    drawn = SamplingParams(
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        repetition_penalty=1.1,
        logprobs=1,
        prompt_logprobs=1,
    )
    for params in (SamplingParams(temperature=0.0), drawn):
        failed: str | None = None
        for plan in _plans(params, block_size, groups):
            failed = failed or executor.collect(executor.submit(plan)).errors.get(_RID)
        if failed is not None and failed != NONFINITE_LOGITS:
            raise RuntimeError(f"the model fails on a first step: {failed}")


def _plans(params: SamplingParams, block_size: int, groups: int) -> list[StepPlan]:
    prompt = [0] * max(1, min(4, block_size - 1))
    size, tables = len(prompt), ([0],) * groups
    prefill = Row(_RID, 0, prompt, tables, 0, 0, Want.SAMPLE | Want.PROMPT_LOGPROBS)
    decode = Row(_RID, size, [PENDING], tables, size, 0, Want.SAMPLE)
    plans = [StepPlan(0, [prefill], [Admitted(_RID, params, 0, 0, size, prompt)])]
    if size < block_size:
        plans.append(StepPlan(0, [decode]))
    ending = StepPlan(0, ended=[_RID], copies=[Copy(g, 0, 0) for g in range(groups)])
    return [*plans, ending]
