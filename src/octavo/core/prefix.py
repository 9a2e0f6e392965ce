"""Chain hashes of full blocks: equal hash means equal tokens from position 0 on.

Owns: how content is named.
Does not know: which block holds what (blocks), or when content may be shared (scheduler).

    root -> hash(block 0) -> hash(block 0, block 1) -> ...

The root is keyed with everything besides the tokens that keys and values depend on: the numerics
fingerprint and the adapter's content, and with the salt of a tenant that must not share. blake2b
with 16 bytes: collisions cannot be found on purpose, unlike with Python's `hash`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_SIZE = 16


def root_hash(fingerprint: str = "", adapter: str | None = None, salt: str = "") -> bytes:
    """The start of every chain under this fingerprint, adapter content and salt."""
    digest = blake2b(digest_size=DIGEST_SIZE, person=b"octavo-prefix")
    for part in (fingerprint, adapter or "", salt):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def chain_hash(parent: bytes, ids: Sequence[int]) -> bytes:
    """The hash of a block with these token ids after the chain `parent`."""
    return blake2b(parent + array("q", ids).tobytes(), digest_size=DIGEST_SIZE).digest()


def extend_hashes(
    hashes: list[bytes], root: bytes, tokens: Sequence[int], block_size: int
) -> list[bytes]:
    """Append to `hashes` those of the full blocks of `tokens` that it lacks; returns it."""
    parent = hashes[-1] if hashes else root
    for index in range(len(hashes), len(tokens) // block_size):
        parent = chain_hash(parent, tokens[index * block_size : (index + 1) * block_size])
        hashes.append(parent)
    return hashes


def hashes_of_ids(root: bytes, ids: Sequence[int], blocks_per_id: int = 1) -> list[bytes]:
    """Chain hashes for a trace that names its blocks by ids instead of tokens.

    Each id stands for `blocks_per_id` blocks (a trace with 512 tokens an id, on blocks of 16: 32).
    """
    hashes: list[bytes] = []
    parent = root
    for block_id in ids:
        for part in range(blocks_per_id):
            parent = chain_hash(parent, (block_id, part))
            hashes.append(parent)
    return hashes
