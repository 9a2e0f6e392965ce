"""Asks transformers for the right answers and keeps them as small arrays in tests/golden.

Usage (in an environment with requirements.txt beside this file installed):

    python tests/oracle/make_golden.py --model SMOLLM2.gguf            # writes tests/golden/*.npz
    python tests/oracle/make_golden.py --model SMOLLM2.gguf --check    # makes them anew, compares

Without --model the SmolLM2 part is left out, and said to be. Nothing of Octavo is imported: the
checkpoints come from tests/support/golden_models.py, everything else from transformers and gguf.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from support import golden_models  # noqa: E402

GOLDEN = TESTS / "golden"
NEW_TOKENS = 64
NEAR_TIE = 1e-3
Arrays = dict[str, np.ndarray]

CHATS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "Translate 'good morning' into Spanish, German and Italian.",
    "List three uses of a paper clip.",
    "Who wrote Pride and Prejudice, and when?",
    "Schreibe einen kurzen Satz über Katzen.",
    "What is 17 + 25? Show the steps.",
]
TEXTS = [
    "The quick brown fox jumps over the lazy dog. The dog",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "In 1969, the first human beings walked on the Moon. The mission",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "known_for":',
    "Once upon a time, in a village at the foot of a mountain, there lived an old clockmaker who",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "Q: What do plants need to grow?\nA:",
    "La mer est calme ce matin. Les bateaux",
    "Water boils at 100 degrees Celsius at sea level, but on a high mountain it boils at",
    "日本の首都は",
]


def rope_tables() -> Arrays:
    """Per case: positions, cos and sin (half of the rotary dimensions), inverse frequencies."""
    arrays: Arrays = {}
    for name, (parameters, _) in golden_models.ROPES.items():
        base = dict(golden_models.ROPE_BASE)
        theta = base.pop("rope_theta")
        config = LlamaConfig(**base, rope_parameters={**parameters, "rope_theta": theta})
        rope = LlamaRotaryEmbedding(config)
        positions = golden_models.rope_positions(name)
        # The last position is the context's: it makes length-dependent kinds choose for all.
        cos, sin = rope(torch.zeros(1, dtype=torch.float32), torch.tensor([positions]))
        half = cos.shape[-1] // 2
        arrays[f"{name}.positions"] = np.array(positions)
        arrays[f"{name}.cos"] = cos[0, :, :half].numpy()
        arrays[f"{name}.sin"] = sin[0, :, :half].numpy()
        arrays[f"{name}.frequencies"] = rope.inv_freq.numpy()
    return arrays


def tiny_logits(name: str) -> Arrays:
    with tempfile.TemporaryDirectory() as directory:
        path = golden_models.write_checkpoint(Path(directory) / "model", name)
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        ids = golden_models.token_ids(name)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)[None]).logits[0]
    return {"ids": ids, "logits": logits.numpy()}


def smollm2_greedy(path: Path) -> Arrays:
    """20 prompts x 64 greedy tokens with the gap between the two best logits of each.

    transformers dequantises the GGUF file with the `gguf` package and restores the order of q and k
    itself. The end-of-text tokens do not stop it, so that every sequence has its full length.
    """
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    arrays: Arrays = {}
    prompts = [[{"role": "user", "content": text}] for text in CHATS]
    ids = [
        *(
            tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            for chat in prompts
        ),
        *(tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS),
    ]
    for i, prompt in enumerate(ids):
        tokens, gaps = _greedy(model, prompt)
        arrays[f"{i}.prompt"] = np.array(prompt)
        arrays[f"{i}.tokens"] = np.array(tokens)
        arrays[f"{i}.gaps"] = np.array(gaps, dtype=np.float32)
    return arrays


def _greedy(model: torch.nn.Module, prompt: list[int]) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    gaps: list[float] = []
    feed, cache = torch.tensor([prompt]), None
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            out = model(feed, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            best = torch.topk(out.logits[0, -1], 2)
            tokens.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
            feed = torch.tensor([[tokens[-1]]])
    return tokens, gaps


def compare(name: str, new: Arrays, old: Arrays) -> list[str]:
    """What differs beyond the tolerances, in words."""
    if new.keys() != old.keys():
        return [f"{name}: other arrays: {sorted(new.keys() ^ old.keys())}"]
    if name == "smollm2":
        return [text for i in range(len(new) // 3) if (text := _compare_greedy(i, new, old))]
    problems = []
    for key, value in new.items():
        if value.shape != old[key].shape:
            problems.append(f"{name}: {key} has shape {value.shape}, kept is {old[key].shape}")
            continue
        largest = float(np.abs(old[key]).max()) or 1.0
        worst = float(np.abs(value - old[key]).max()) / largest
        if worst > 1e-5:
            problems.append(f"{name}: {key} differs by {worst:.1e} of the largest value")
    return problems


def _compare_greedy(i: int, new: Arrays, old: Arrays) -> str:
    if not np.array_equal(new[f"{i}.prompt"], old[f"{i}.prompt"]):
        return f"smollm2: prompt {i} is tokenised in another way"
    differing = np.flatnonzero(new[f"{i}.tokens"] != old[f"{i}.tokens"])
    if len(differing) and old[f"{i}.gaps"][differing[0]] >= NEAR_TIE:
        return f"smollm2: prompt {i} differs at token {differing[0]}, which is no near-tie"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="the SmolLM2 GGUF file")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    makers = {name: (lambda n=name: tiny_logits(n)) for name in golden_models.CONFIGS}
    makers["rope"] = rope_tables
    if arguments.model:
        makers["smollm2"] = lambda: smollm2_greedy(arguments.model)
    else:
        print("smollm2: left out, because no --model was given")
    problems: list[str] = []
    for name, make in makers.items():
        begin = time.monotonic()
        new, path = make(), GOLDEN / f"{name}.npz"
        if arguments.check:
            with np.load(path) as kept:
                found = compare(name, new, dict(kept))
            problems += found
            said = "differs" if found else "agrees"
        else:
            np.savez_compressed(path, **new)
            said = f"written, {path.stat().st_size} bytes"
        print(f"{name}: {said} ({time.monotonic() - begin:.1f} s)", flush=True)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
