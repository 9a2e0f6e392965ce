"""The baseline: transformers' `generate` with one static, padded batch for a workload.

Usage (in an environment with requirements.txt beside this file installed):

    python tests/oracle/static_generate.py --model MODEL --workloads FILE [--only NAME] ...

Prints JSON: output tokens a second for each workload, medians of --repeats. Each request counts
the tokens that it asked for, although the batch goes on until its longest is done: that is what a
static batch costs. A workload that takes longer than --seconds has no result. Nothing of Octavo is
imported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)

Requests = list[dict[str, Any]]


class Deadline(StoppingCriteria):
    """Ends generation when the time is over."""

    def __init__(self, seconds: float) -> None:
        self.at = time.perf_counter() + seconds
        self.passed = False

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.passed = time.perf_counter() > self.at
        return torch.full((input_ids.shape[0],), self.passed, dtype=torch.bool)


def load(path: Path, dtype: str) -> tuple[Any, Any]:
    """A Hugging Face directory, or a GGUF file, its weights dequantised to `dtype`."""
    where: dict[str, Any] = {"pretrained_model_name_or_path": path}
    packed = path.suffix == ".gguf"
    if packed:
        where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if packed:
        where["quantization_config"] = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=getattr(torch, dtype)).eval()
    return model, tokenizer


def run(model: Any, tokenizer: Any, requests: Requests, seconds: float) -> float | None:
    """The seconds that all of them took; None where that is more than `seconds`."""
    begun = time.perf_counter()
    deadline = Deadline(seconds)
    batch = tokenizer(
        [request["prompt"] for request in requests], return_tensors="pt", padding=True
    )
    longest = max(request["max_tokens"] for request in requests)
    with torch.inference_mode():
        model.generate(
            **batch,
            do_sample=False,
            max_new_tokens=longest,
            min_new_tokens=longest,
            pad_token_id=tokenizer.pad_token_id,
            stopping_criteria=StoppingCriteriaList([deadline]),
        )
    return None if deadline.passed else time.perf_counter() - begun


def measure(
    model: Any, tokenizer: Any, requests: Requests, repeats: int, seconds: float
) -> dict[str, Any] | None:
    taken = []
    for _ in range(repeats):
        one = run(model, tokenizer, requests, seconds)
        if one is None:
            return None
        taken.append(one)
    median = statistics.median(taken)
    tokens = sum(request["max_tokens"] for request in requests)
    return {
        "requests": len(requests),
        "output_tokens": tokens,
        "seconds": median,
        "output_tokens_per_s": tokens / median,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--workloads", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300, help="the most for one run")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    workloads: dict[str, Requests] = json.loads(asked.workloads.read_text(encoding="utf-8"))
    model, tokenizer = load(asked.model, asked.dtype)
    warm: Requests = [{"prompt": "Some words to begin with.", "max_tokens": 4}]
    run(model, tokenizer, warm, asked.seconds)
    found: dict[str, Any] = {}
    for name, requests in workloads.items():
        if asked.only and name not in asked.only:
            continue
        found[name] = measure(model, tokenizer, requests, asked.repeats, asked.seconds)
        rate = "no result in time" if found[name] is None else found[name]["output_tokens_per_s"]
        print(f"transformers, static batch, {asked.dtype}, {name}: {rate}", file=sys.stderr)
    facts = {"dtype": asked.dtype, "threads": asked.threads, "workloads": found}
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
