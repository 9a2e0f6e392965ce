"""Executors without a model, for tests of the engine: a token is a hash of all that precedes it,
so that a lost, doubled or altered token changes everything after it. Some of them misbehave.

Loaders take an `EngineConfig`; its `extra` says how to misbehave (see each).
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from octavo.core.plan import Admitted, Row, RowResult, StepPlan, StepResult, TokenLogprob, Want
from octavo.engine.messages import EngineConfig
from octavo.model.info import ModelInfo

VOCAB = 512
POISON = 500
"""Kills the process when it is computed (`load_poison`)."""
RAISES = 501
"""Makes the whole step raise (`load_faulty`)."""
BAD_ROW = 502
"""Is an error of its row alone (`load_faulty`)."""
NO_MEMORY = 503
"""Raises MemoryError (`load_faulty`)."""


def info(eos: tuple[int, ...] = ()) -> ModelInfo:
    return ModelInfo(
        path="", name="hash", architecture="hash", format="none", quantization="none",
        parameters=0, vocab_size=VOCAB, max_position=1 << 20, layers=1, hidden_size=1, heads=1,
        kv_heads=1, head_dim=1, weight_bytes=0, kv_bytes_per_token=1,
        workspace_bytes_per_token=1, workspace_bytes=1, eos_token_ids=eos,
    )  # fmt: skip


@dataclass
class FakeLoaded:
    executor: Any
    info: ModelInfo
    fingerprint: str = "hash-1"

    def describe(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint}


def next_token(history: list[int], seed: int, choice: int, greedy: bool) -> int:
    """Below 480: the special ids above are never sampled."""
    key = "" if greedy else f"{seed}/{choice}"
    data = f"{key}:{history}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "big") % 480


class HashExecutor:
    """Keeps each sequence's tokens by position, as a KV cache would, and computes from those.
    `delay`: seconds a step takes."""

    max_in_flight = 1

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.sequences: dict[int, Admitted] = {}
        self.tokens: dict[int, list[int]] = {}

    def submit(self, plan: StepPlan) -> StepResult:
        for rid in plan.ended:
            self.sequences.pop(rid, None)
            self.tokens.pop(rid, None)
        for admitted in plan.admitted:
            assert admitted.rid not in self.sequences
            self.sequences[admitted.rid] = admitted
            self.tokens[admitted.rid] = list(admitted.history)
        result = StepResult([])
        for row in plan.rows:
            result.rows.append(self.row(row, result))
        if self.delay:
            time.sleep(self.delay)
        return result

    def collect(self, handle: StepResult) -> StepResult:
        return handle

    def row(self, row: Row, result: StepResult) -> RowResult:
        admitted, known = self.sequences[row.rid], self.tokens[row.rid]
        for position, token in enumerate(row.tokens, row.start):
            if token >= 0:
                known[position : position + 1] = [token]
        if not row.want & Want.SAMPLE:
            return RowResult()
        history = known[: row.start + len(row.tokens)]
        params = admitted.params
        token = next_token(history, admitted.seed, admitted.choice, params.greedy)
        known[len(history) :] = [token]
        logprobs = None
        if params.wants_logprob:
            logprobs = [TokenLogprob(token, -token / 512, 1, [(token, -token / 512)])]
        return RowResult([token], logprobs)


class TwoInFlight(HashExecutor):
    """Results are handed over one step late."""

    max_in_flight = 2


class FaultyExecutor(HashExecutor):
    def row(self, row: Row, result: StepResult) -> RowResult:
        if RAISES in row.tokens:
            raise RuntimeError("the step broke")
        if NO_MEMORY in row.tokens:
            raise MemoryError("no room for the batch")
        if BAD_ROW in row.tokens:
            result.errors[row.rid] = "the logits are not finite"
            return RowResult()
        return super().row(row, result)


class KillerExecutor(HashExecutor):
    """Dies of POISON in a row; computes everything else."""

    def row(self, row: Row, result: StepResult) -> RowResult:
        if POISON in row.tokens:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().row(row, result)


def _delay(config: EngineConfig) -> float:
    return float(config.extra.get("delay", 0.0))


def load_hash(config: EngineConfig) -> FakeLoaded:
    return FakeLoaded(HashExecutor(_delay(config)), info())


def load_faulty(config: EngineConfig) -> FakeLoaded:
    return FakeLoaded(FaultyExecutor(_delay(config)), info())


def load_poison(config: EngineConfig) -> FakeLoaded:
    return FakeLoaded(KillerExecutor(_delay(config)), info())


def load_fickle(config: EngineConfig) -> FakeLoaded:
    """Another fingerprint in every process."""
    return FakeLoaded(HashExecutor(_delay(config)), info(), fingerprint=f"hash-{os.getpid()}")


class LoadFailure(Exception):
    """Typed as the model's own errors are."""

    def __init__(self) -> None:
        super().__init__("the weights are incomplete")
        self.code = "model_incomplete"
        self.hint = "download them again"


def load_failing(config: EngineConfig) -> FakeLoaded:
    raise LoadFailure


def load_dying(config: EngineConfig) -> FakeLoaded:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def load_never(config: EngineConfig) -> FakeLoaded:
    """Loads for ever."""
    signal.pause()
    raise AssertionError


def load_once(config: EngineConfig) -> FakeLoaded:
    """Loads the first time; later processes die while loading. `extra["mark"]`: a path."""
    try:
        fd = os.open(config.extra["mark"], os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return load_dying(config)
    os.close(fd)
    return load_hash(config)
