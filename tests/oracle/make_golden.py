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


def smollm2(path: Path) -> tuple[torch.nn.Module, list[list[int]]]:
    """The model and the tokens of the 20 prompts.

    transformers dequantises the GGUF file with the `gguf` package and restores the order of q and k
    itself.
    """
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prompts = [[{"role": "user", "content": text}] for text in CHATS]
    return model, [
        *(
            tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            for chat in prompts
        ),
        *(tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS),
    ]


def smollm2_greedy(path: Path) -> Arrays:
    """20 prompts x 64 greedy tokens with the gap between the two best logits of each. End-of-text
    tokens do not stop it, so that every sequence has its full length.

    All prompts go in one batch, padded on the left; `check_smollm2` looks at each by itself.
    """
    model, prompts = smollm2(path)
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
    arrays: Arrays = {}
    for i, prompt in enumerate(prompts):
        arrays[f"{i}.prompt"] = np.array(prompt)
        arrays[f"{i}.tokens"] = torch.stack(tokens)[:, i].numpy()
        arrays[f"{i}.gaps"] = torch.stack(gaps)[:, i].numpy()
    return arrays


def check_smollm2(path: Path, kept: Arrays) -> list[str]:
    """Whether the kept tokens are the greedy ones: each must be the best after all before it. One
    pass over each whole sequence shows that, without generating anew."""
    model, prompts = smollm2(path)
    problems = []
    for i, prompt in enumerate(prompts):
        tokens, gaps = kept[f"{i}.tokens"], kept[f"{i}.gaps"]
        if prompt != kept[f"{i}.prompt"].tolist():
            problems.append(f"smollm2: prompt {i} is tokenised in another way")
            continue
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *tokens[:-1]]])
            logits = model(ids, logits_to_keep=len(tokens)).logits[0].numpy()
        best = np.sort(logits, axis=-1)[:, -2:]
        other = np.flatnonzero(logits.argmax(axis=-1) != tokens)
        if len(other) and gaps[other[0]] >= NEAR_TIE:
            problems.append(
                f"smollm2: prompt {i} differs at token {other[0]}, which is no near-tie"
            )
        elif np.abs(best[:, 1] - best[:, 0] - gaps).max() > NEAR_TIE:
            problems.append(f"smollm2: prompt {i} has other gaps between the best two logits")
    return problems


def compare(name: str, new: Arrays, old: Arrays) -> list[str]:
    """What differs by more than 1e-5 of the largest value, in words."""
    if new.keys() != old.keys():
        return [f"{name}: other arrays: {sorted(new.keys() ^ old.keys())}"]
    problems = []
    for key, value in new.items():
        if value.shape != old[key].shape:
            problems.append(f"{name}: {key} has shape {value.shape}, kept is {old[key].shape}")
            continue
        worst = float(np.abs(value - old[key]).max()) / (float(np.abs(old[key]).max()) or 1.0)
        if worst > 1e-5:
            problems.append(f"{name}: {key} differs by {worst:.1e} of the largest value")
    return problems


def make_all(model: Path | None) -> None:
    for name in golden_models.CONFIGS:
        np.savez_compressed(GOLDEN / f"{name}.npz", **tiny_logits(name))
    np.savez_compressed(GOLDEN / "rope.npz", **rope_tables())
    if model:
        np.savez_compressed(GOLDEN / "smollm2.npz", **smollm2_greedy(model))


def check_all(model: Path | None) -> list[str]:
    problems = []
    for name in (*golden_models.CONFIGS, "rope"):
        new = rope_tables() if name == "rope" else tiny_logits(name)
        problems += compare(name, new, load(name))
    return problems + (check_smollm2(model, load("smollm2")) if model else [])


def load(name: str) -> Arrays:
    with np.load(GOLDEN / f"{name}.npz") as kept:
        return dict(kept)


def main() -> int:
    parser = argparse.ArgumentParser(description="Golden answers of transformers.")
    parser.add_argument("--model", type=Path, help="the SmolLM2 GGUF file")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    if not arguments.model:
        print("smollm2 is left out, because no --model was given")
    begin = time.monotonic()
    problems = []
    if arguments.check:
        problems = check_all(arguments.model)
        print("\n".join(problems) or "transformers gives the same answers")
    else:
        make_all(arguments.model)
    print(f"{time.monotonic() - begin:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
