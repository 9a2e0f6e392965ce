"""Runs a decoder without a scheduler: one sequence in pieces, or many greedily side by side.

Owns: the block tables.
Does not know: plans, sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo.model.decoder import Decoder
from octavo.model.families import FAMILIES
from octavo.model.families.family import Family
from octavo.model.kv_cache import cache_layout
from octavo.model.registry import open_model
from octavo.ops import HostBatch, Ops
from octavo.ops.select import select_ops

BLOCK = 16


def load(
    path: Path,
    context: int | None = None,
    *,
    backend: str = "reference",
    row_at_a_time: bool = False,
    dtype: str = "auto",
    threads: int = 1,
    families: Sequence[Family] = FAMILIES,
) -> tuple[Decoder, Ops]:
    ops = select_ops(backend, row_at_a_time=row_at_a_time, dtype=dtype, threads=threads)
    opened = open_model(path, context, families)
    decoder = Decoder(opened.spec, opened.source, ops)
    opened.source.close()
    return decoder, ops


def groups(decoder: Decoder) -> int:
    """How many KV groups it has."""
    return len(cache_layout(decoder.spec, BLOCK).layers)


def allocate(decoder: Decoder, ops: Ops, blocks: int) -> Any:
    """A cache with so many blocks in each KV group."""
    return ops.allocate_cache(cache_layout(decoder.spec, BLOCK), [blocks] * groups(decoder))


def step(
    decoder: Decoder,
    ops: Ops,
    cache: Any,
    table: Sequence[int] | Sequence[Sequence[int]],
    ids: Sequence[int],
    start: int,
    write_from: int = 0,
) -> np.ndarray:
    """(len(ids), vocab_used): the logits of one row, `ids` at positions from `start` on. `table` is
    the row's for all KV groups, or one for each."""
    tables = [table] * groups(decoder) if isinstance(table[0], int) else table
    end = start + len(ids)
    batch = HostBatch(
        BLOCK,
        ids=[int(i) for i in ids],
        positions=list(range(start, end)),
        row_of=[0] * len(ids),
        row_starts=[0, len(ids)],
        tables=[[list(one[: -(-end // BLOCK)])] for one in tables],
        write_from=[write_from],
        logit_tokens=list(range(len(ids))),
    )
    return np.array(decoder.logits(decoder.forward(ops.upload(batch), cache)))


def logits(decoder: Decoder, ops: Ops, ids: Sequence[int], piece: int) -> np.ndarray:
    """(len(ids), vocab_used): the logits at every position, `piece` tokens a step, over blocks in
    an order of no regularity, another in each KV group."""
    blocks = -(-len(ids) // BLOCK)
    rng = np.random.default_rng(blocks)
    tables = [rng.permutation(blocks).tolist() for _ in range(groups(decoder))]
    cache = allocate(decoder, ops, blocks)
    starts = range(0, len(ids), piece)
    return np.concatenate(
        [step(decoder, ops, cache, tables, ids[i : i + piece], i) for i in starts]
    )


def greedy(decoder: Decoder, ops: Ops, prompts: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """(prompts, count): the best token after each, all sequences in one batch a step. The prompts
    go in pieces of 32 tokens, so the first steps mix prefill and decode."""
    lengths = [len(prompt) + count for prompt in prompts]
    ends = np.cumsum([-(-length // BLOCK) for length in lengths]).tolist()
    tables = [list(range(a, b)) for a, b in zip([0, *ends], ends, strict=False)]
    cache = allocate(decoder, ops, ends[-1])
    known = [[int(i) for i in prompt] for prompt in prompts]
    computed = [0] * len(prompts)
    while rows := [i for i, length in enumerate(lengths) if len(known[i]) < length]:
        rows_of: list[list[int]] = []
        batch = HostBatch(BLOCK, tables=[rows_of] * groups(decoder))
        for r, i in enumerate(rows):
            piece = known[i][computed[i] : computed[i] + 32]
            batch.ids += piece
            batch.positions += range(computed[i], computed[i] + len(piece))
            batch.row_of += [r] * len(piece)
            batch.row_starts.append(len(batch.ids))
            batch.write_from.append(0)
            computed[i] += len(piece)
            rows_of.append(tables[i][: -(-computed[i] // BLOCK)])
            batch.logit_tokens.append(len(batch.ids) - 1)
        best = decoder.logits(decoder.forward(ops.upload(batch), cache)).argmax(axis=-1)
        for r, i in enumerate(rows):
            if computed[i] == len(known[i]):
                known[i].append(int(best[r]))
    return np.array([ids[-count:] for ids in known])
