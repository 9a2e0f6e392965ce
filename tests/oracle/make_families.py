"""Asks transformers for the logits of each tiny family and keeps them in tests/golden/families.

Usage (in an environment with requirements.txt beside this file installed):

    python tests/oracle/make_families.py [NAME ...]    # writes tests/golden/families/NAME.npz
    python tests/oracle/make_families.py --check       # makes all anew, compares

Nothing of Octavo is imported: configurations and weights come from tests/support/golden_families.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "oracle")]

import corrections  # noqa: E402

from support import golden_families  # noqa: E402
from support.family_configs import older  # noqa: E402

Arrays = dict[str, np.ndarray]


def logits(name: str) -> Arrays:
    """`ids`, `logits` (tokens, vocabulary), and `shapes`: the checkpoint's tensors, as JSON."""
    config = golden_families.CONFIGS[name]
    attention = "sdpa" if name in older.SDPA else "eager"
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        golden_families.write_checkpoint(where, config, {})
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(where))
        # As it would be saved: shared tensors once, buffers that are not kept left out.
        empty.save_pretrained(where / "saved", max_shard_size="1GB")
        shapes = _shapes(where / "saved" / "model.safetensors")
        golden_families.write_checkpoint(where, config, shapes)
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype=torch.float32, attn_implementation=attention
        ).eval()
        ids = golden_families.token_ids(name)
        with torch.no_grad():
            found = model(torch.from_numpy(ids)[None], use_cache=False).logits[0]
    text = np.array(json.dumps(shapes))
    return {"ids": ids, "logits": found.float().numpy(), "shapes": text}


def _shapes(path: Path) -> dict[str, list[int]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    return {k: v["shape"] for k, v in sorted(header.items()) if k != "__metadata__"}


def differs(name: str, new: Arrays) -> str | None:
    with np.load(golden_families.GOLDEN / f"{name}.npz") as kept:
        if kept["shapes"] != new["shapes"]:
            return f"{name}: other tensors"
        worst = np.abs(kept["logits"] - new["logits"]).max() / np.abs(new["logits"]).max()
    return f"{name}: logits differ by {worst:.1e} of the largest" if worst > 1e-5 else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Golden logits of the families.")
    parser.add_argument("names", nargs="*", help="which families; all by default")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    corrections.apply()
    problems = []
    for name in arguments.names or golden_families.CONFIGS:
        found = logits(name)
        if arguments.check:
            problems.append(differs(name, found))
        else:
            golden_families.GOLDEN.mkdir(exist_ok=True)
            np.savez_compressed(golden_families.GOLDEN / f"{name}.npz", **found)
    told = [problem for problem in problems if problem]
    print("\n".join(told) or "transformers gives the same logits" if arguments.check else "written")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
