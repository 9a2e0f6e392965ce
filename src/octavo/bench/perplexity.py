"""How well a model predicts a text in this process, by the engine's own prompt logprobs.

Owns: windows of the text, their logprobs, and the perplexity that comes of them.
Does not know: which options are compared, tables (cli.bench_perplexity).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from octavo.core.params import SamplingParams
from octavo.offline.llm_engine import LLMEngine

AT_ONCE = 4
"""Windows in the engine together."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Of `tokens` scored tokens: exp of minus their mean logprob."""

    tokens: int
    value: float
    seconds: float


def options_for(window: int) -> Mapping[str, object]:
    """What an engine needs for windows of so many tokens: room for those in it, no caching."""
    room = -(-(window + 1) // 16) * 16
    return {
        "max_model_len": window + 1,
        "max_num_seqs": AT_ONCE,
        "kv_tokens": (AT_ONCE + 1) * room,
        "enable_prefix_caching": False,
    }


def windows(
    ids: Sequence[int], window: int, tokens: int, begin: Sequence[int] = ()
) -> Iterator[list[int]]:
    """Pieces of `window` ids (the last may be shorter) that have `tokens` to score between them: a
    piece's first token is not scored, since nothing is before it. `begin` stands before each piece
    but the first, which has it: some models are lost without their beginning of text."""
    at = 0
    while tokens > 0:
        lead = list(begin) if at else []
        piece = lead + list(ids[at : at + min(window, tokens + 1) - len(lead)])
        if len(piece) < 2:
            return
        yield piece
        tokens -= len(piece) - 1
        at += len(piece) - len(lead)


def measure(engine: LLMEngine, ids: Sequence[int], tokens: int, window: int) -> Perplexity:
    """Of the first `tokens` of the text `ids`, or of as many as there are. Raises ValueError where
    it has no two, RuntimeError where a window fails."""
    begun = time.perf_counter()
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
    begin = list(engine.tokenizer.encode(""))
    own = len(begin) == 1 and list(ids[:1]) == begin
    pieces = list(windows(ids, window, tokens, begin if own else ()))
    if not pieces:
        raise ValueError("the text is too short: it needs two tokens or more")
    for number, piece in enumerate(pieces):
        engine.add_request(f"window-{number}", piece, params)
    logprobs: list[float] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            if not output.finished:
                continue
            if output.outputs[0].error is not None:
                raise RuntimeError(f"{output.request_id}: {output.outputs[0].error}")
            logprobs += [entry.logprob for entry in output.prompt_logprobs or () if entry]
    mean = math.fsum(logprobs) / len(logprobs)
    return Perplexity(len(logprobs), math.exp(-mean), time.perf_counter() - begun)
