"""The Triton RMS norm against the numpy reference; interpreted where there is no GPU."""

from __future__ import annotations

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (make oracle has it)")
pytest.importorskip("triton", reason="Triton is not installed (make oracle has it)")
CUDA = torch.cuda.is_available()
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

from octavo.ops import NormSpec  # noqa: E402
from octavo.ops.reference import ReferenceOps  # noqa: E402
from octavo.ops.triton.rms_norm import MAX_WIDTH, rms_norm  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def there(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy()).to(DEVICE)


@pytest.mark.parametrize("width", [1, 2, 31, 64, 127, 576, 1000, 1537])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_it_agrees_with_its_twin(width: int, offset: float) -> None:
    x, residual, weight = draw(width, 5, width), draw(1, 5, width), draw(2, width)
    spec = NormSpec("rms", 1e-5, offset)
    for added in (None, residual):
        expected, total = ReferenceOps().norm(x, weight, spec, added)
        normed, summed = rms_norm(
            there(x), there(weight), 1e-5, offset, None if added is None else there(added)
        )
        assert np.allclose(normed.cpu().numpy(), expected, rtol=1e-5, atol=1e-5)
        assert (summed.cpu().numpy() == total).all()


def test_its_inputs_are_left_as_they_were_and_may_be_slices() -> None:
    whole, residual, weight = there(draw(1, 4, 90)), there(draw(2, 4, 30)), there(draw(3, 30))
    kept = whole.clone(), residual.clone()
    part = whole[:, 30:60]
    normed, total = rms_norm(part, weight, 1e-5, 0.0, residual)
    same, _ = rms_norm(part.contiguous(), weight, 1e-5, 0.0, residual)
    assert torch.equal(normed, same) and torch.equal(total, part + residual)
    assert torch.equal(whole, kept[0]) and torch.equal(residual, kept[1])


def test_a_rows_bits_do_not_depend_on_its_neighbours() -> None:
    x, residual, weight = there(draw(4, 9, 193)), there(draw(5, 9, 193)), there(draw(6, 193))
    whole = rms_norm(x, weight, 1e-6, 0.0, residual)
    for i in range(9):
        alone = rms_norm(x[i : i + 1], weight, 1e-6, 0.0, residual[i : i + 1])
        assert all(torch.equal(a[0], b[i]) for a, b in zip(alone, whole, strict=True))


def test_no_rows_and_rows_of_zeros() -> None:
    weight = there(draw(7, 33))
    empty = torch.zeros((0, 33), device=DEVICE)
    assert [tuple(t.shape) for t in rms_norm(empty, weight, 1e-5, 0.0, empty)] == [(0, 33)] * 2
    assert not rms_norm(torch.zeros((2, 33), device=DEVICE), weight, 1e-5)[0].any()


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    x = torch.zeros((2, 8), device=DEVICE)
    with pytest.raises(ValueError, match=r"weight of shape \(7,\) for rows of 8"):
        rms_norm(x, torch.zeros(7, device=DEVICE), 1e-5)
    with pytest.raises(ValueError, match=r"residual of shape \(1, 8\) for \(2, 8\)"):
        rms_norm(x, x[0], 1e-5, 0.0, x[:1])
    wide = torch.zeros((1, MAX_WIDTH + 1), device=DEVICE)
    with pytest.raises(ValueError, match=f"at most {MAX_WIDTH}"):
        rms_norm(wide, wide[0], 1e-5)
