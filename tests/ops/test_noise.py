"""Counter-based noise: the published generator, its distribution, and what it depends on."""

from __future__ import annotations

import numpy as np

from octavo.ops.noise import GOLDEN, exponential, mix64, stream_key


def test_the_mixer_gives_splitmix64s_published_stream() -> None:
    """The first outputs for seed 1234567, as published with other implementations."""
    state, outputs = 1234567, []
    for _ in range(5):
        state = (state + GOLDEN) % 2**64
        outputs.append(mix64(state))
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_a_tokens_noise_is_output_number_id_of_its_stream() -> None:
    ids = np.array([0, 1, 77, 151_935])
    key = stream_key(seed=5, choice=2, position=9)
    bits = [mix64((key + (int(i) + 1) * GOLDEN) % 2**64) for i in ids]
    uniform = [((b >> 12) + 0.5) / 2**52 for b in bits]
    assert np.allclose(exponential(5, 2, 9, ids), [-np.log(u) for u in uniform], rtol=1e-12)


def test_noise_depends_on_seed_choice_position_and_id_alone() -> None:
    ids = np.arange(1000)
    whole = exponential(2**63 - 1, 127, 100_000, ids)
    picked = np.array([999, 3, 500])
    assert (exponential(2**63 - 1, 127, 100_000, picked) == whole[picked]).all()
    keys = {stream_key(s, c, p) for s in range(12) for c in range(12) for p in range(12)}
    assert len(keys) == 12**3


def test_noise_is_exponentially_distributed_and_finite() -> None:
    noise = np.concatenate([exponential(1, 0, p, np.arange(50_000)) for p in range(8)])
    assert np.isfinite(noise).all()
    assert noise.min() > 0
    assert abs(noise.mean() - 1) < 0.01
    assert abs(noise.var() - 1) < 0.02
    levels = np.array([1e-4, 0.1, 1.0, 3.0])
    shares = [(noise < level).mean() for level in levels]
    assert np.abs(shares - (1 - np.exp(-levels))).max() < 0.003
    neighbours = np.corrcoef([exponential(1, 0, p, np.arange(50_000)) for p in (1, 2)])
    assert abs(neighbours[0, 1]) < 0.02
