"""RMS norm with the residual's addition, in one pass over memory.

Owns: the kernel and its launch.
Does not know: when it is used (ops.cuda).

One program a row, the row in registers: read once, written twice (normed, and the sum that is the
next residual). The order of the sum of squares depends on the width alone, never on the number of
rows, so a row's bits do not depend on its neighbours.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MAX_WIDTH = 65_536
"""Wider rows do not fit a program's registers."""


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    weight_offset: float = 0.0,
    residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, width) float32 -> (normed, x + residual), both fresh; without a residual the second
    is `x` itself. Raises ValueError where shapes do not fit or a row is wider than MAX_WIDTH."""
    rows, width = x.shape
    if weight.shape != (width,):
        raise ValueError(f"a norm's weight of shape {tuple(weight.shape)} for rows of {width}")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"a residual of shape {tuple(residual.shape)} for {tuple(x.shape)}")
    if width > MAX_WIDTH:
        raise ValueError(f"rows of {width} values; this kernel takes at most {MAX_WIDTH}")
    x = x.contiguous()
    normed = torch.empty_like(x)
    added = residual is not None
    total = torch.empty_like(x) if added else x
    if rows and width:
        with torch.cuda.device_of(x):  # a launch goes to the current device, not to the tensors'
            _kernel[(rows,)](
                x,
                residual.contiguous() if residual is not None else x,
                weight,
                normed,
                total,
                width,
                eps,
                weight_offset,
                ADDED=added,
                BLOCK=triton.next_power_of_2(width),
            )
    return normed, total


@triton.jit
def _kernel(
    x,
    residual,
    weight,
    normed,
    total,
    width,
    eps,
    weight_offset,
    ADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    row = tl.load(x + start + columns, mask=inside, other=0.0)
    if ADDED:
        row += tl.load(residual + start + columns, mask=inside, other=0.0)
        tl.store(total + start + columns, row, mask=inside)
    factor = tl.load(weight + columns, mask=inside, other=0.0) + weight_offset
    mean_square = tl.sum(row * row, axis=0) / width
    tl.store(normed + start + columns, row / tl.sqrt(mean_square + eps) * factor, mask=inside)
