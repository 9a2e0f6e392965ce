"""The executor of the real model: runs a step's plan on the decoder, samples, and answers by row.

Owns: the cache, and the state of every admitted sequence.
Does not know: blocks' meaning, queues, text, stop strings; nor numpy (arrays are the backend's).

One step: forget what ended, take in what was admitted, check each row, copy blocks, compute the
rows that passed in one batch, sample and score its logits a bounded number of rows at a time. A row
that fails becomes an entry of `StepResult.errors`; the others are computed as if it were not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.core.plan import Row, RowResult, StepPlan, StepResult, TokenLogprob, Want
from octavo.model.batch import Assembled, Work, assemble
from octavo.model.decoder import Decoder
from octavo.model.info import LOGIT_ROWS
from octavo.model.kv_cache import cache_layout, group_windows
from octavo.model.sequence import Sequence as SequenceState
from octavo.model.warm_up import warm_up
from octavo.ops import NONFINITE_LOGITS, Array, Ops, SampledRow


class ModelExecutor:
    """Implements `core.plan.Executor`; synchronous: `submit` computes, `collect` hands over.

    `nonfinite` counts the rows failed because of logits that were not finite.
    """

    def __init__(
        self,
        decoder: Decoder,
        ops: Ops,
        *,
        num_blocks: int,
        block_size: int,
        pools: Sequence[int] = (),
        eos_ids: Iterable[int] = (),
        kv_dtype: str = "float32",
    ) -> None:
        """`pools` are the blocks of each KV group, where they are not `num_blocks` for all."""
        self.nonfinite = 0
        self._decoder = decoder
        self._ops = ops
        self._eos_ids = tuple(eos_ids)
        self._block_size = block_size
        layout = cache_layout(decoder.spec, block_size, kv_dtype)
        self.groups = len(group_windows(decoder.spec))
        self._pools = list(pools) or [num_blocks] * self.groups
        self._cache = ops.allocate_cache(layout, self._pools)
        self._sequences: dict[int, SequenceState] = {}

    def submit(self, plan: StepPlan) -> StepResult:
        for rid in plan.ended:
            self._sequences.pop(rid, None)
        for admitted in plan.admitted:
            self._sequences[admitted.rid] = SequenceState(admitted)
        result = StepResult([RowResult() for _ in plan.rows])
        if plan.copies:
            copies = [(c.group, c.source, c.target) for c in plan.copies]
            self._ops.copy_blocks(self._cache, copies)
        work = []
        for index, row in enumerate(plan.rows):
            checked = self._check(row)
            if isinstance(checked, str):
                result.errors[row.rid] = checked
            else:
                work.append(Work(index, row, checked))
        if work:
            try:
                self._compute(plan, work, result)
            except MemoryError as error:
                text = f"out of memory in this step ({error}); fewer or shorter requests would fit"
                result.errors.update((item.row.rid, text) for item in work)
        return result

    def collect(self, handle: StepResult) -> StepResult:
        return handle

    def block_bytes(self) -> int:
        """Of the largest block that `read_block` gives."""
        return max(len(self.read_block(group, 0)) for group in range(self.groups))

    def read_block(self, group: int, block: int) -> bytes:
        """The bytes of a block, in the backend's own layout. Raises ValueError where there is no
        such block."""
        return self._ops.read_block(self._cache, group, block)

    def write_block(self, group: int, block: int, data: bytes) -> None:
        """What `read_block` gave. Raises ValueError where it does not fit."""
        self._ops.write_block(self._cache, group, block, data)

    def warm_up(self) -> None:
        """To be called before anything is served. Raises RuntimeError where a step fails."""
        warm_up(self, block_size=self._block_size, groups=self.groups)
        self.nonfinite = 0

    def _check(self, row: Row) -> list[int] | str:
        """The row's tokens, all known; or why it cannot be computed."""
        sequence = self._sequences.get(row.rid)
        if sequence is None:
            return f"sequence {row.rid} was not admitted"
        if row.adapter is not None:
            return f"adapter {row.adapter!r} is not loaded"
        if row.want & Want.POOL:
            return "this model does not give pooled vectors"
        tokens = sequence.resolve(row)
        if tokens is None:
            return "the token sampled before this step is not known: its step failed"
        end = row.start + len(tokens)
        vocab = self._decoder.spec.vocab
        wrong = next((t for t in tokens if not 0 <= t < vocab), None)
        if wrong is not None:
            return f"token id {wrong} is outside the vocabulary (0 to {vocab - 1})"
        if not tokens or not 0 <= row.logits_from <= len(tokens):
            return f"a row of {len(tokens)} tokens with logits from {row.logits_from}"
        if row.want & Want.SAMPLE and not sequence.expects(end):
            return f"a token is to be sampled at position {end}, which is not the next one"
        return self._check_tables(row, end) or tokens

    def _check_tables(self, row: Row, end: int) -> str | None:
        if len(row.tables) != self.groups:
            return f"{len(row.tables)} block tables for {self.groups} KV groups"
        for table, blocks in zip(row.tables, self._pools, strict=True):
            if len(table) * self._block_size < end:
                return f"{len(table)} blocks of {self._block_size} do not cover {end} positions"
            if min(table) < 0 or max(table) >= blocks:
                return f"a block id is outside the pool of {blocks} blocks"
        return None

    def _compute(self, plan: StepPlan, work: list[Work], result: StepResult) -> None:
        assembled = assemble(work, self._block_size, self.groups)
        batch = self._ops.upload(assembled.batch)
        hidden = self._decoder.forward(batch, self._cache)
        split = len(assembled.samples)
        self._sample(plan, assembled, hidden[:split], result)
        self._score(plan, assembled, hidden[split:], result)

    def _sample(
        self, plan: StepPlan, assembled: Assembled, hidden: Array, result: StepResult
    ) -> None:
        for begin in range(0, len(assembled.samples), LOGIT_ROWS):
            part = slice(begin, begin + LOGIT_ROWS)
            rows = [plan.rows[i] for i in assembled.samples[part]]
            sequences = [self._sequences[row.rid] for row in rows]
            wanted = [
                s.sample_row(self._eos_ids, row.mask)
                for s, row in zip(sequences, rows, strict=True)
            ]
            sampled = self._ops.sample(self._decoder.logits(hidden[part]), wanted)
            for index, one in zip(assembled.samples[part], sampled, strict=True):
                row, answer = plan.rows[index], result.rows[index]
                if one.error is not None:
                    self._fail(row, one.error, result)
                    continue
                sequence = self._sequences[row.rid]
                sequence.append(one.token)
                answer.tokens = [one.token]
                if sequence.params.wants_logprob:
                    answer.logprobs = [_logprob(one, sequence.params.logprobs or 0)]

    def _score(
        self, plan: StepPlan, assembled: Assembled, hidden: Array, result: StepResult
    ) -> None:
        for begin in range(0, len(assembled.scores), LOGIT_ROWS):
            part = slice(begin, begin + LOGIT_ROWS)
            scores = assembled.scores[part]
            tops = [
                self._sequences[plan.rows[s.index].rid].params.prompt_logprobs or 0 for s in scores
            ]
            logits = self._decoder.logits(hidden[part])
            found = self._ops.score(logits, [s.target for s in scores], max(tops))
            for score, one, top in zip(scores, found, tops, strict=True):
                answer = result.rows[score.index]
                if one.error is not None:
                    self._fail(plan.rows[score.index], one.error, result)
                    continue
                if answer.prompt_logprobs is None:
                    answer.prompt_logprobs = []
                answer.prompt_logprobs.append(_logprob(one, top))

    def _fail(self, row: Row, error: str, result: StepResult) -> None:
        if error == NONFINITE_LOGITS and row.rid not in result.errors:
            self.nonfinite += 1
        result.errors[row.rid] = error


def _logprob(one: SampledRow, top: int) -> TokenLogprob:
    return TokenLogprob(one.token, one.logprob, one.rank, one.top[:top])
