"""Every family gives the same logits whether its prefix is computed or found in the cache."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo.model.kv_cache import cache_layout
from octavo.ops.native import native_available
from support import golden_families, golden_models, run_decoder
from support.family_configs import older
from support.run_decoder import BLOCK, step

LENGTH = 38
BORDERS = (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, LENGTH - 1)
EXACT = ["reference", *(["cpu"] if native_available() else [])]
NAMES = [*golden_models.CONFIGS, "gpt_neox", *older.CONFIGS]


def write(path: Path, name: str) -> Path:
    if name in golden_models.CONFIGS:
        return golden_models.write_checkpoint(path, name)
    with np.load(golden_families.GOLDEN / f"{name}.npz") as kept:
        shapes = json.loads(str(kept["shapes"]))
    return golden_families.write_checkpoint(path, golden_families.CONFIGS[name], shapes)


@pytest.mark.parametrize("shared", BORDERS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", EXACT)
def test_b01_a_prefix_hit_changes_nothing(
    backend: str, name: str, shared: int, tmp_path: Path
) -> None:
    """Bitwise (the reference in its row-at-a-time mode): the second sequence finds the full blocks
    of the first `shared` tokens, and computes the rest in pieces of five."""
    path = write(tmp_path / name, name)
    decoder, ops = run_decoder.load(path, backend=backend, row_at_a_time=True)
    rng = np.random.default_rng(shared)
    first = rng.integers(0, golden_models.VOCAB, LENGTH).tolist()
    second = [*first[:shared], *rng.integers(0, golden_models.VOCAB, LENGTH - shared).tolist()]
    alone = run_decoder.logits(decoder, ops, second, LENGTH)

    blocks = -(-LENGTH // BLOCK)
    cache = ops.allocate_cache(cache_layout(decoder.spec, BLOCK), [2 * blocks])
    step(decoder, ops, cache, list(range(blocks)), first, 0)
    hit = shared // BLOCK
    table = [*range(hit), *range(blocks, 2 * blocks - hit)]
    for start in range(hit * BLOCK, LENGTH, 5):
        found = step(decoder, ops, cache, table, second[start : start + 5], start)
        np.testing.assert_array_equal(found, alone[start : start + 5])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", EXACT)
def test_b01_a_full_hit_computes_the_last_token_without_writing_it(
    backend: str, name: str, tmp_path: Path
) -> None:
    path = write(tmp_path / name, name)
    decoder, ops = run_decoder.load(path, backend=backend, row_at_a_time=True)
    ids = np.random.default_rng(3).integers(0, golden_models.VOCAB, 2 * BLOCK).tolist()
    cache = ops.allocate_cache(cache_layout(decoder.spec, BLOCK), [4])
    table = [3, 1, 2]
    whole = step(decoder, ops, cache, table, ids, 0)
    for _ in range(4):
        last = step(decoder, ops, cache, table, ids[-1:], len(ids) - 1, write_from=len(ids))
        np.testing.assert_array_equal(last[0], whole[-1])
