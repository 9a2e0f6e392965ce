"""Runs a decoder without a scheduler: one sequence, in pieces of a given size.

Owns: the block table of one sequence.
Does not know: plans, sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from octavo.model.decoder import Decoder
from octavo.model.kv_cache import cache_layout
from octavo.model.registry import open_model
from octavo.ops import HostBatch, Ops
from octavo.ops.select import select_ops

BLOCK = 4


def load(path: Path, context: int | None = None) -> tuple[Decoder, Ops]:
    ops = select_ops("reference")
    opened = open_model(path, context)
    decoder = Decoder(opened.spec, opened.source, ops)
    opened.source.close()
    return decoder, ops


def logits(decoder: Decoder, ops: Ops, ids: Sequence[int], piece: int) -> np.ndarray:
    """(len(ids), vocab_used): the logits at every position, `piece` tokens a step, over blocks in
    an order of no regularity."""
    blocks = -(-len(ids) // BLOCK)
    table = [int(i) for i in np.random.default_rng(blocks).permutation(blocks)]
    layout = cache_layout(decoder.spec, BLOCK)
    cache = ops.allocate_cache(layout, [blocks])
    out = []
    for start in range(0, len(ids), piece):
        part = [int(i) for i in ids[start : start + piece]]
        end = start + len(part)
        batch = HostBatch(
            BLOCK,
            ids=part,
            positions=list(range(start, end)),
            row_of=[0] * len(part),
            row_starts=[0, len(part)],
            tables=[[table[: -(-end // BLOCK)]]],
            write_from=[0],
            logit_tokens=list(range(len(part))),
        )
        out.append(np.array(decoder.logits(decoder.forward(ops.upload(batch), cache))))
    return np.concatenate(out)
