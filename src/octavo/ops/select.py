"""Which backend runs.

Owns: the names of backends.
Does not know: models. It does not import numpy until a backend is made: numpy's BLAS reads its
number of threads once, when numpy is first imported, so whoever starts a computing process must
limit it to one before (`machine.limit_thread_pools`).
"""

from __future__ import annotations

from octavo.ops import Ops

BACKENDS = ("auto", "cpu", "reference")


def resolve_backend(name: str, *, row_at_a_time: bool = False) -> str:
    """ "auto" is the reference. Raises ValueError for a name that is not in `BACKENDS`."""
    if name not in BACKENDS:
        raise ValueError(f"backend is {name!r}; it must be one of {', '.join(BACKENDS)}")
    return "reference" if name == "auto" else name


def select_ops(
    name: str = "auto",
    *,
    threads: int = 1,
    row_at_a_time: bool = False,
    dtype: str = "auto",
    quantize: str = "none",
) -> Ops:
    """The backend called `name` (`resolve_backend`).

    `threads` is how many it may use; `dtype` and `quantize` how the compiled backend packs
    weights. Raises ValueError for a name that is not in `BACKENDS` and for options that the backend
    does not have, RuntimeError for a backend that cannot run here.
    """
    backend = resolve_backend(name, row_at_a_time=row_at_a_time)
    if quantize != "none" and backend != "cpu":
        raise ValueError(f"quantize {quantize} needs backend cpu; it is {name}")
    if backend == "cpu":
        from octavo.ops.cpu import CpuOps

        return CpuOps(threads=threads, dtype=dtype, quantize=quantize)
    from octavo.ops.reference import ReferenceOps

    return ReferenceOps(threads=threads, row_at_a_time=row_at_a_time)
