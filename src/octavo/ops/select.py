"""Which backend runs.

Owns: the names of backends.
Does not know: models. It does not import numpy until a backend is made: numpy's BLAS reads its
number of threads once, when numpy is first imported, so whoever starts a computing process must
limit it to one before (`machine.limit_thread_pools`).
"""

from __future__ import annotations

from octavo.ops import Ops
from octavo.ops.native import native_installed

BACKENDS = ("auto", "cpu", "reference", "cuda")


class BackendUnavailable(RuntimeError):
    """The backend asked for cannot run in this install; `hint` says what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def resolve_backend(name: str) -> str:
    """ "auto" is the compiled backend where its kernels are installed, else the reference. Raises
    ValueError for a name that is not in `BACKENDS`."""
    if name not in BACKENDS:
        raise ValueError(f"backend is {name!r}; it must be one of {', '.join(BACKENDS)}")
    if name != "auto":
        return name
    return "cpu" if native_installed() else "reference"


def select_ops(
    name: str = "auto",
    *,
    threads: int = 1,
    row_at_a_time: bool = False,
    dtype: str = "auto",
    quantize: str = "none",
) -> Ops:
    """The backend called `name` (`resolve_backend`).

    `threads` is how many it may use; `dtype` how the compiled and the cuda backend pack weights,
    `quantize` what the compiled one rounds them to. Raises ValueError for a name that is not in
    `BACKENDS` and for options that the backend does not have, RuntimeError for a backend that
    cannot run here (BackendUnavailable where there is a hint to give).
    """
    backend = resolve_backend(name)
    if quantize != "none" and backend != "cpu":
        raise ValueError(f"quantize {quantize} needs backend cpu; it is {backend}")
    if backend == "cpu":
        from octavo.ops.cpu import CpuOps

        return CpuOps(threads=threads, dtype=dtype, quantize=quantize)
    if backend == "cuda":
        return _cuda(threads, row_at_a_time, dtype)
    from octavo.ops.reference import ReferenceOps

    return ReferenceOps(threads=threads, row_at_a_time=row_at_a_time)


def _cuda(threads: int, row_at_a_time: bool, dtype: str) -> Ops:
    if row_at_a_time:
        raise BackendUnavailable(
            "the cuda backend cannot compute each row by itself",
            "Leave out --row-at-a-time, or use --backend reference.",
        )
    try:
        from octavo.ops.cuda import CudaOps
    except ImportError as error:
        raise BackendUnavailable(
            f"the cuda backend needs PyTorch, which cannot be imported: {error}",
            "Install it with: pip install 'octavo[gpu]'. Or use --backend auto.",
        ) from error
    return CudaOps(threads=threads, dtype=dtype)
