"""Choosing a backend that cannot run here: a typed error that says what to do."""

from __future__ import annotations

import sys

import pytest

from octavo.ops.select import BACKENDS, BackendUnavailable, select_ops


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("octavo.ops.cuda")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)  # so that importing it fails


def test_the_cuda_backend_without_torch_says_how_to_get_it(without_torch: None) -> None:
    assert "cuda" in BACKENDS
    with pytest.raises(BackendUnavailable, match="needs PyTorch") as caught:
        select_ops("cuda")
    assert "pip install 'octavo[gpu]'" in caught.value.hint


def test_the_cuda_backend_refuses_to_compute_rows_one_at_a_time() -> None:
    with pytest.raises(BackendUnavailable, match="row by itself") as caught:
        select_ops("cuda", row_at_a_time=True)
    assert "--backend reference" in caught.value.hint
