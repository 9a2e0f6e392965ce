"""What the executor keeps of one sequence between its first row and its end.

Owns: the tokens known so far, the counts that penalties need, and the sampler's view of them.
Does not know: the batch, the cache, the model.
"""

from __future__ import annotations

from collections import Counter

from octavo.core.params import SamplingParams
from octavo.core.plan import PENDING, Admitted, Row
from octavo.ops import SampleRow


class Sequence:
    """Begins at admission with the prompt and the outputs so far, and grows by sampled tokens."""

    def __init__(self, admitted: Admitted) -> None:
        self.params: SamplingParams = admitted.params
        self._seed = admitted.seed
        self._choice = admitted.choice
        self._prompt_len = admitted.prompt_len
        self._tokens = list(admitted.history)
        params = admitted.params
        over_output = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._repetition = params.repetition_penalty != 1.0
        self._counting = self._repetition or over_output
        prompt, output = self._tokens[: self._prompt_len], self._tokens[self._prompt_len :]
        self._prompt_counts = Counter(prompt if self._repetition else ())
        self._output_counts = Counter(output if self._counting else ())

    def resolve(self, row: Row) -> list[int] | None:
        """The row's tokens with every PENDING one filled in, or None where one is not known."""
        if PENDING not in row.tokens:
            return row.tokens
        if row.start + len(row.tokens) > len(self._tokens):
            return None
        return [
            self._tokens[row.start + i] if token == PENDING else token
            for i, token in enumerate(row.tokens)
        ]

    def expects(self, position: int) -> bool:
        """Whether the next token to be sampled is that of `position`."""
        return position == len(self._tokens)

    def append(self, token: int) -> None:
        self._tokens.append(token)
        if self._counting:
            self._output_counts[token] += 1

    def sample_row(self, eos_ids: tuple[int, ...], mask: bytes | None) -> SampleRow:
        """How the next token is sampled. The counts are the live ones: use it before `append`."""
        params = self.params
        position = len(self._tokens)
        early = position - self._prompt_len < params.min_tokens
        return SampleRow(
            seed=self._seed,
            choice=self._choice,
            position=position,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            prompt_counts=self._prompt_counts,
            output_counts=self._output_counts,
            logit_bias=params.logit_bias,
            banned=(*eos_ids, *params.stop_token_ids) if early else (),
            top=(params.logprobs or 0) if params.wants_logprob else None,
            mask=mask,
        )
