"""A block's bytes, out of one cache and into another: the same block, and no other one touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.ops import AttentionSpec, CacheLayout, HostBatch
from octavo.ops.native import native_available
from octavo.ops.select import select_ops

BLOCK, BLOCKS = 16, 5
LAYERS = (2, 1)

CASES = [("reference", "float32")]
if native_available():
    CASES += [("cpu", "float32"), ("cpu", "bfloat16"), ("cpu", "int8")]
try:
    import torch  # noqa: F401
except ImportError:
    pass
else:
    CASES += [("cuda", "float32"), ("cuda", "bfloat16")]


def table_batch(table: list[int], count: int) -> HostBatch:
    return HostBatch(
        BLOCK,
        ids=[0] * count,
        positions=list(range(count)),
        row_of=[0] * count,
        row_starts=[0, count],
        tables=[[table], [table]],
        write_from=[0],
    )


class Filled:
    """A cache in which a sequence lies in blocks of both groups."""

    def __init__(self, backend: str, dtype: str, head: int = 24) -> None:
        self.ops: Any = select_ops(backend, threads=1)
        self.head = head
        self.layout = CacheLayout(BLOCK, LAYERS, 2, head, dtype)
        self.cache = self.ops.allocate_cache(self.layout, [BLOCKS, BLOCKS + 1])

    def array(self, values: np.ndarray) -> Any:
        if self.ops.name != "cuda":
            return values
        import torch

        return torch.from_numpy(values).to(self.ops.device)

    def floats(self, seed: int, count: int, heads: int) -> Any:
        rng = np.random.default_rng(seed)
        return self.array(rng.normal(0, 1, (count, heads * self.head)).astype(np.float32))

    def fill(self, table: list[int]) -> None:
        count = len(table) * BLOCK
        batch = self.ops.upload(table_batch(table, count))
        for group, layers in enumerate(LAYERS):
            for layer in range(layers):
                spec = AttentionSpec(layer, 4, 2, self.head, 0.2, group=group)
                q, k, v = (
                    self.floats(seed + 10 * layer + 100 * group, count, heads)
                    for seed, heads in ((1, 4), (2, 2), (3, 2))
                )
                self.ops.rope_and_store(q, k, v, self.cache, batch, None, spec)

    def attended(self, table: list[int]) -> list[np.ndarray]:
        """What each layer reads of the sequence."""
        count = len(table) * BLOCK
        batch = self.ops.upload(table_batch(table, count))
        found = []
        for group, layers in enumerate(LAYERS):
            for layer in range(layers):
                spec = AttentionSpec(layer, 4, 2, self.head, 0.2, group=group)
                q = self.floats(7, count, 4)
                out = self.ops.attention(q, self.cache, batch, spec)
                found.append(out.cpu().numpy() if self.ops.name == "cuda" else out)
        return found


@pytest.mark.parametrize(("backend", "dtype"), CASES)
def test_a_block_goes_to_another_cache_bit_for_bit(backend: str, dtype: str) -> None:
    one, two = Filled(backend, dtype), Filled(backend, dtype)
    one.fill([0, 3, 1])
    two.fill([4])
    kept = [two.ops.read_block(two.cache, group, 4) for group in (0, 1)]
    for group in (0, 1):
        for source, target in ((0, 2), (3, 0), (1, 3)):
            data = one.ops.read_block(one.cache, group, source)
            two.ops.write_block(two.cache, group, target, data)
            assert two.ops.read_block(two.cache, group, target) == data
    for a, b in zip(one.attended([0, 3, 1]), two.attended([2, 0, 3]), strict=True):
        assert np.array_equal(a, b)
    assert [two.ops.read_block(two.cache, group, 4) for group in (0, 1)] == kept
    assert len({len(data) for data in kept}) == 2, "the groups have unequally many layers"


@pytest.mark.parametrize(("backend", "dtype"), CASES)
def test_what_does_not_exist_or_fit_is_refused(backend: str, dtype: str) -> None:
    one = Filled(backend, dtype)
    data = one.ops.read_block(one.cache, 0, 0)
    for group, block in ((2, 0), (0, BLOCKS), (1, BLOCKS + 1)):
        with pytest.raises(ValueError):
            one.ops.read_block(one.cache, group, block)
        with pytest.raises(ValueError):
            one.ops.write_block(one.cache, group, block, data)
    for wrong in (b"", data[:-1], data + b"x"):
        with pytest.raises(ValueError, match="bytes for a block"):
            one.ops.write_block(one.cache, 0, 0, wrong)
