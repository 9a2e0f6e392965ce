"""Prompts made up on the spot: distinct, of about a given length, the same for the same seed.

Owns: the words, and how prompts are made of them.
Does not know: tokenizers. A word is one token or nearly in the usual vocabularies; what a prompt
really had is told by the server's usage, and only that is reported.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_TEXT = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city community name president team minute idea body information back parent face others
level office door health person art war history party result change morning reason research girl
guy moment air teacher force education foot boy age policy music market sense nation plan
college interest death experience effect use class control field development role effort rate
heart drug show leader light voice wife police mind price report decision son view relationship
town road arm difference value building action season society tax director position player
record paper space ground form event official matter center couple site project activity star
table need court oil situation cost industry figure street image phone data picture practice
piece land product doctor wall patient worker news test movie north love support technology step
baby computer type film tree source hair look chance
"""
WORDS = tuple(_TEXT.split())
BLOCK_WORDS = 512
"""Words of a block that a trace names by a hash: equal hashes give equal words."""


def random_prompt(generator: random.Random, tokens: int) -> str:
    """About `tokens` tokens of words. Prompts of 12 words or more all but never begin alike."""
    return " ".join(generator.choices(WORDS, k=max(1, tokens)))


def random_prompts(seed: int, lengths: list[int]) -> Iterator[str]:
    """One prompt for each length, none equal to another. Raises ValueError where there are not
    enough prompts so short."""
    generator = random.Random(seed)
    seen: set[str] = set()
    for length in lengths:
        for _ in range(1000):
            prompt = random_prompt(generator, length)
            if prompt not in seen:
                break
        else:
            raise ValueError(f"there are not enough distinct prompts of {length} tokens")
        seen.add(prompt)
        yield prompt


def block_prompt(seed: int, hashes: tuple[int, ...], tokens: int) -> str:
    """A prompt whose blocks of BLOCK_WORDS words are given by hashes, as traces with hash ids
    have them: prompts that share their first hashes share their beginning."""
    words: list[str] = []
    for hashed in hashes:
        if len(words) >= tokens:
            break
        words += random.Random(f"{seed}:{hashed}").choices(WORDS, k=BLOCK_WORDS)
    return " ".join(words[: max(1, tokens)])


def salt(seed: int) -> str:
    """Three words and a space to put before a prompt: a run with another salt finds nothing of
    this one in a prefix cache."""
    return " ".join(random.Random(f"salt:{seed}").choices(WORDS, k=3)) + " "
