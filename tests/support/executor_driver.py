"""Drives a ModelExecutor step by step, as a scheduler would: rows, chunks, forks, block tables.

Owns: block ids (shuffled, so that no result can depend on them) and each sequence's progress.
Does not know: policies. The test says which rows a step has.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from octavo.core.params import SamplingParams
from octavo.core.plan import (
    PENDING,
    Admitted,
    Copy,
    Row,
    RowResult,
    StepPlan,
    StepResult,
    TokenLogprob,
    Want,
)
from octavo.model.decoder import Decoder
from octavo.model.executor import ModelExecutor
from octavo.ops import Ops
from octavo.ops.select import select_ops
from support.tiny_models import TinyModel

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Seq:
    rid: int
    prompt: list[int]
    params: SamplingParams
    seed: int
    choice: int
    table: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    computed: int = 0
    admitted: bool = False
    error: str | None = None

    @property
    def known(self) -> list[int]:
        return self.prompt + self.output


class Driver:
    def __init__(
        self,
        model: TinyModel,
        *,
        rows: bool = True,
        block_size: int = 4,
        num_blocks: int = 256,
        seed: int = 0,
        ops: Ops | None = None,
    ) -> None:
        self.ops = ops or select_ops("reference", row_at_a_time=rows)
        decoder = Decoder(model.spec, model.source(), self.ops)
        self.executor = ModelExecutor(
            decoder,
            self.ops,
            num_blocks=num_blocks,
            block_size=block_size,
            eos_ids=model.info().eos_token_ids,
        )
        self.block_size = block_size
        self.rng = random.Random(seed)
        self._free = list(range(num_blocks))
        self.rng.shuffle(self._free)
        self._next_rid = 0
        self._copies: list[Copy] = []
        self._ended: list[int] = []

    def add(
        self,
        prompt: list[int],
        params: SamplingParams = GREEDY,
        seed: int = 0,
        choice: int = 0,
        output: list[int] | None = None,
    ) -> Seq:
        self._next_rid += 1
        return Seq(self._next_rid, prompt, params, seed, choice, output=list(output or []))

    def fork(self, parent: Seq, choice: int, params: SamplingParams) -> Seq:
        """Shares the parent's full blocks; the partly filled one is copied in the next step."""
        child = self.add(parent.prompt, params, parent.seed, choice)
        full = parent.computed // self.block_size
        child.table = parent.table[:full]
        if parent.computed % self.block_size:
            child.table.append(self._free.pop())
            self._copies.append(Copy(0, parent.table[full], child.table[full]))
        child.computed = parent.computed
        return child

    def end(self, seq: Seq) -> None:
        self._ended.append(seq.rid)

    def row(self, seq: Seq, count: int, pending: bool = False) -> Row:
        """The next `count` tokens of `seq`; the last known one is sampled from."""
        tokens = seq.known[seq.computed : seq.computed + count]
        last = seq.computed + count >= len(seq.known)
        while len(seq.table) * self.block_size < seq.computed + count:
            seq.table.append(self._free.pop())
        want = Want.SAMPLE if last else Want.NONE
        logits_from = count - 1 if last else count
        following = None
        if seq.params.prompt_logprobs is not None and seq.computed < len(seq.prompt):
            want |= Want.PROMPT_LOGPROBS
            logits_from = 0
            following = None if last else seq.known[seq.computed + count]
        if pending and tokens:
            tokens[-1] = PENDING
        return Row(
            seq.rid,
            seq.computed,
            tokens,
            (list(seq.table),),
            seq.computed,
            logits_from,
            want,
            following,
        )

    def plan(self, rows: list[tuple[Seq, int]], pending: bool = False) -> StepPlan:
        plan = StepPlan(0, copies=self._copies, ended=self._ended)
        self._copies, self._ended = [], []
        for seq, count in rows:
            if not seq.admitted:
                plan.admitted.append(
                    Admitted(seq.rid, seq.params, seq.seed, seq.choice, len(seq.prompt), seq.known)
                )
                seq.admitted = True
            plan.rows.append(self.row(seq, count, pending and bool(seq.output)))
        return plan

    def step(self, rows: list[tuple[Seq, int]]) -> StepResult:
        plan = self.plan(rows, pending=True)
        result = self.executor.collect(self.executor.submit(plan))
        for (seq, count), answer in zip(rows, result.rows, strict=True):
            if seq.rid in result.errors:
                seq.error = result.errors[seq.rid]
            else:
                self._take(seq, count, answer)
        return result

    @staticmethod
    def _take(seq: Seq, count: int, answer: RowResult) -> None:
        seq.computed += count
        seq.output += answer.tokens
        seq.logprobs += answer.logprobs or []
        seq.prompt_logprobs += answer.prompt_logprobs or []

    def run(self, seqs: list[Seq], tokens: int, chunk: int | None = None) -> list[list[int]]:
        """All together until each has `tokens` outputs (or failed); prefill in chunks of up to
        `chunk`, of random length where it is 0."""
        while active := [s for s in seqs if len(s.output) < tokens and s.error is None]:
            rows = []
            for seq in active:
                left = len(seq.known) - seq.computed
                size = self.rng.randint(1, 9) if chunk == 0 else chunk or left
                rows.append((seq, min(left, size)))
            self.step(rows)
        return [s.output for s in seqs]
