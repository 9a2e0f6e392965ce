"""Asks transformers for the right answers and keeps them as small arrays in tests/golden.

Usage (in an environment with requirements.txt beside this file installed):

    python tests/oracle/make_golden.py            # writes tests/golden/*.npz
    python tests/oracle/make_golden.py --check    # makes them anew, compares

Nothing of Octavo is imported: the checkpoints come from tests/support/golden_models.py, everything
else from transformers. Real models: make_greedy.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from support import golden_models  # noqa: E402

GOLDEN = TESTS / "golden"
Arrays = dict[str, np.ndarray]


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


def make_all() -> None:
    for name in golden_models.CONFIGS:
        np.savez_compressed(GOLDEN / f"{name}.npz", **tiny_logits(name))
    np.savez_compressed(GOLDEN / "rope.npz", **rope_tables())


def check_all() -> list[str]:
    problems = []
    for name in (*golden_models.CONFIGS, "rope"):
        new = rope_tables() if name == "rope" else tiny_logits(name)
        with np.load(GOLDEN / f"{name}.npz") as kept:
            problems += compare(name, new, dict(kept))
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Golden answers of transformers.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    begin = time.monotonic()
    problems = []
    if arguments.check:
        problems = check_all()
        print("\n".join(problems) or "transformers gives the same answers")
    else:
        make_all()
    print(f"{time.monotonic() - begin:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
