"""Choosing a backend that cannot run here: a typed error that says what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.ops import native
from octavo.ops.select import BACKENDS, BackendUnavailable, resolve_backend, select_ops


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


@pytest.mark.parametrize(("installed", "expected"), [(True, "cpu"), (False, "reference")])
def test_auto_is_the_compiled_backend_where_it_is_installed(
    installed: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.ops.select.native_installed", lambda: installed)
    assert resolve_backend("auto") == expected
    assert resolve_backend("reference") == "reference"


def test_looking_for_the_kernels_does_not_load_them() -> None:
    code = "import sys; from octavo.ops.native import MODULE, native_installed as n; n()"
    code += "; assert MODULE not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert native.native_installed() or not native.native_available()
