"""Asks transformers how real models go on, token by token, and keeps it in tests/golden.

Usage (in an environment with requirements.txt beside this file installed):

    python tests/oracle/make_greedy.py NAME=FILE.gguf ...            # writes tests/golden/NAME.npz
    python tests/oracle/make_greedy.py --check NAME=FILE.gguf ...    # is what is kept still greedy?

NAME is smollm2, qwen or gemma. Nothing of Octavo is imported: transformers dequantises the files
with the `gguf` package, and restores the order of q and k and Gemma's norms itself.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
NEW_TOKENS = 64
NEAR_TIE = 1e-3
LONG = 48
"""Prompts this much longer than the shortest go in a batch of their own."""
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


def load(path: Path) -> tuple[Any, list[list[int]]]:
    """The model and its prompts' tokens: 20, and where it has windows one that exceeds them.

    Chats are put in the model's template; a model that has none gets them as texts.
    """
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    chat = tokenizer.chat_template is not None
    texts = TEXTS if chat else [*CHATS, *TEXTS]
    prompts = [tokenizer(text, add_special_tokens=not chat)["input_ids"] for text in texts]
    if chat:
        prompts = [*(_chat(tokenizer, text) for text in CHATS), *prompts]
    window = getattr(model.config, "sliding_window", None)
    if window:
        whole = tokenizer(" ".join(TEXTS * 4))["input_ids"]
        prompts.append(whole[: window + 40])
        assert len(prompts[-1]) > window
    return model, prompts


def _chat(tokenizer: Any, text: str) -> list[int]:
    chat = [{"role": "user", "content": text}]
    found: list[int] = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False
    )
    return found


def greedy(path: Path) -> Arrays:
    """64 greedy tokens after each prompt with the gap between the two best logits of each.
    End-of-text tokens do not stop it, so that every sequence has its full length."""
    model, prompts = load(path)
    shortest = min(map(len, prompts))
    arrays: Arrays = {}
    for long in (False, True):
        chosen = [i for i, p in enumerate(prompts) if (len(p) > shortest + LONG) == long]
        if chosen:
            tokens, gaps = _generate(model, [prompts[i] for i in chosen])
            for row, i in enumerate(chosen):
                arrays[f"{i}.prompt"] = np.array(prompts[i])
                arrays[f"{i}.tokens"], arrays[f"{i}.gaps"] = tokens[row], gaps[row]
    return arrays


def _generate(model: Any, prompts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """All in one batch, padded on the left; `check` looks at each by itself."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache, tokens, gaps = None, [], []
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            out = model(
                ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.past_key_values
            best = torch.topk(out.logits[:, -1], 2)
            ids, positions = best.indices[:, :1], positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
            tokens.append(ids[:, 0])
            gaps.append(best.values[:, 0] - best.values[:, 1])
    return torch.stack(tokens, 1).numpy(), torch.stack(gaps, 1).numpy()


def check(name: str, path: Path) -> list[str]:
    """Whether the kept tokens are the greedy ones: each must be the best after all before it. One
    pass over each whole sequence shows that, without generating anew."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        kept = dict(file)
    model, prompts = load(path)
    problems = []
    for i, prompt in enumerate(prompts):
        tokens, gaps = kept[f"{i}.tokens"], kept[f"{i}.gaps"]
        if prompt != kept[f"{i}.prompt"].tolist():
            problems.append(f"{name}: prompt {i} is tokenised in another way")
            continue
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *tokens[:-1]]])
            logits = model(ids, logits_to_keep=len(tokens)).logits[0].numpy()
        best = np.sort(logits, axis=-1)[:, -2:]
        other = np.flatnonzero(logits.argmax(axis=-1) != tokens)
        if len(other) and gaps[other[0]] >= NEAR_TIE:
            problems.append(f"{name}: prompt {i} differs at token {other[0]}, which is no near-tie")
        elif np.abs(best[:, 1] - best[:, 0] - gaps).max() > NEAR_TIE:
            problems.append(f"{name}: prompt {i} has other gaps between the best two logits")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Greedy tokens of real models.")
    parser.add_argument("models", nargs="+", metavar="NAME=FILE.gguf")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    problems = []
    for name, _, path in (model.partition("=") for model in arguments.models):
        begin = time.monotonic()
        if arguments.check:
            problems += check(name, Path(path))
        else:
            np.savez_compressed(GOLDEN / f"{name}.npz", **greedy(Path(path)))
        print(f"{name}: {time.monotonic() - begin:.0f} s")
    if arguments.check:
        print("\n".join(problems) or "transformers goes on in the same way")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
