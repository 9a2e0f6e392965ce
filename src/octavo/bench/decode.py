"""How fast a model answers in this process: time to the first token, and tokens a second.

Owns: that measurement, at several numbers of requests at once.
Does not know: servers and clients.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from octavo.core.params import SamplingParams
from octavo.offline.llm_engine import LLMEngine


@dataclass(frozen=True, slots=True)
class DecodeSpeed:
    """`ttft_s`: from submission to the last request's first token, all prompts together.
    `decode_tokens_per_s`: output tokens of all requests after that."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    decode_tokens_per_s: float

    @property
    def tpot_ms(self) -> float:
        return 1000 * self.requests / self.decode_tokens_per_s


def measure(
    engine: LLMEngine, requests: int, prompt_tokens: int = 128, output_tokens: int = 32
) -> DecodeSpeed:
    """Every request has a prompt of its own, so that none is served from the prefix cache."""
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    vocabulary = engine.prepared.model.vocab_size
    begun = time.perf_counter()
    for number in range(requests):
        salt = time.monotonic_ns() + number * 7919
        prompt = [
            (salt + position * (2 * number + 3)) % (vocabulary - 1000) + 500
            for position in range(prompt_tokens)
        ]
        engine.add_request(f"bench-{requests}-{number}", prompt, params)
    lengths: dict[str, int] = {}
    first = begun
    counted = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            lengths[output.request_id] = len(output.outputs[0].token_ids)
        if not counted and len(lengths) == requests and min(lengths.values()) > 0:
            first, counted = time.perf_counter(), sum(lengths.values())
    decoded = sum(lengths.values()) - counted
    elapsed = time.perf_counter() - first
    return DecodeSpeed(requests, prompt_tokens, output_tokens, first - begun, decoded / elapsed)
