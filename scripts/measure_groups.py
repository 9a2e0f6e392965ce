"""Measures what the groups of a 4-bit checkpoint cost: decoding 64 sequences of one model that is
quantised in groups of 32, of 128, and out of order (act-order).

The models run in turns, step by step, so that a machine that drifts hits them alike; medians, and
ratios to groups of 32. Run by `make measure-groups`; nothing here decides a test.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from octavo.model.kv_cache import cache_layout
from octavo.ops import HostBatch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import golden_models, run_decoder
from support.quantized_cases import gptq
from support.quantized_files import write_pair

ROWS, CONTEXT, STEPS, BLOCK = 64, 128, 40, 16
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
CASES = {
    "groups of 32": (32, False),
    "groups of 128": (128, False),
    "groups of 128, act-order": (128, True),
    "one group": (-1, False),
}


def write_source(path: Path) -> Path:
    """A checkpoint of random floats."""
    hidden, width = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    heads, kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    assert isinstance(hidden, int) and isinstance(heads, int) and isinstance(kv_heads, int)
    kv = hidden // heads * kv_heads
    shapes: dict[str, tuple[Any, ...]] = {
        "model.embed_tokens": (CONFIG["vocab_size"], hidden),
        "model.norm": (hidden,),
    }
    for i in range(int(str(CONFIG["num_hidden_layers"]))):
        at = f"model.layers.{i}."
        shapes |= {
            f"{at}{norm}": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")
        }
        for name, outputs in (("q", hidden), ("k", kv), ("v", kv), ("o", hidden)):
            shapes[f"{at}self_attn.{name}_proj"] = (outputs, hidden)
        shapes |= {f"{at}mlp.{name}_proj": (width, hidden) for name in ("gate", "up")}
        shapes[f"{at}mlp.down_proj"] = (hidden, width)
    rng = np.random.default_rng(1)
    tensors = {
        f"{name}.weight": rng.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    path.mkdir()
    golden_models.write_config(path, CONFIG)
    golden_models.save(path / "model.safetensors", tensors)
    return path


def batch() -> HostBatch:
    """A token of each sequence, behind its context."""
    blocks = CONTEXT // BLOCK + 1
    return HostBatch(
        BLOCK,
        ids=list(range(ROWS)),
        positions=[CONTEXT] * ROWS,
        row_of=list(range(ROWS)),
        row_starts=list(range(ROWS + 1)),
        tables=[[list(range(row * blocks, (row + 1) * blocks)) for row in range(ROWS)]],
        write_from=[0] * ROWS,
        logit_tokens=list(range(ROWS)),
    )


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as directory:
        source = write_source(Path(directory) / "source")
        models = {}
        for number, (name, (group, act)) in enumerate(CASES.items()):
            where = Path(directory) / str(number)
            where.mkdir()
            make, settings = gptq(4, group, True, act)
            coded, _ = write_pair(where, source, make, settings)
            decoder, ops = run_decoder.load(coded, backend="cpu", threads=2)
            layout = cache_layout(decoder.spec, BLOCK, "bfloat16")
            cache = ops.allocate_cache(layout, [ROWS * (CONTEXT // BLOCK + 1)])
            models[name] = (decoder, ops.upload(batch()), cache)
        for step in range(STEPS + 2):
            for name, (decoder, uploaded, cache) in models.items():
                begun = time.perf_counter()
                decoder.logits(decoder.forward(uploaded, cache))
                if step >= 2:
                    times[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(found) for name, found in times.items()}
    first = medians["groups of 32"]
    for name, median in medians.items():
        print(
            f"{name:26} {1e3 * median:7.2f} ms a step of {ROWS} rows, "
            f"{median / first:.3f} of groups of 32"
        )
    print(json.dumps({name: round(median / first, 4) for name, median in medians.items()}))


if __name__ == "__main__":
    main()
