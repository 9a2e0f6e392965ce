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
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "oracle")]

import corrections  # noqa: E402

from support import golden_families  # noqa: E402
from support.family_configs import older  # noqa: E402
from support.family_configs.long import LONG, ROWS  # noqa: E402

PIECE = 1024

Arrays = dict[str, np.ndarray]


def logits(name: str) -> Arrays:
    """`ids`, `logits` (tokens, vocabulary), and `shapes`: the checkpoint's tensors, as JSON. Of
    long ones the ids are not kept, and the last logits only."""
    long = name in LONG
    config = LONG[name][0] if long else golden_families.CONFIGS[name]
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
            found = _last_logits(model, ids) if long else _logits(model, ids)
    answer = {"logits": found.float().numpy(), "shapes": np.array(json.dumps(shapes))}
    return answer if long else {"ids": ids, **answer}


def _logits(model: Any, ids: np.ndarray) -> torch.Tensor:
    return model(torch.from_numpy(ids)[None], use_cache=False).logits[0]


def _last_logits(model: Any, ids: np.ndarray) -> torch.Tensor:
    """In pieces, for the scores of all at once would be gigabytes."""
    cache = DynamicCache(config=model.config)
    for piece in torch.from_numpy(ids).split(PIECE):
        found = model(piece[None], cache=cache, use_cache=True).logits[0]
    return found[-ROWS:]


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
    for name in arguments.names or [*golden_families.CONFIGS, *LONG]:
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
