"""Fairness between tenants: who has had less goes first.

Owns: the counters of tokens by class and tenant, and the order made of them.
Does not know: classes' precedence (policy), keys or their names: a tenant is a text.

Each request gets a tag when it comes, and they are served by tag, so that the order of those that
wait never changes: its tenant's counter, or the virtual time where the tenant has been quiet for
long. The counter then moves on by what the request will cost, prompt and expected output, and is
put right when it ends and its length is known: that counts for requests that come later. The
virtual time is the tag of the latest that began: nobody saves up a claim by being quiet, and a
tenant with a thousand requests waits behind one with a single request. Requests of one tenant keep
their order.
"""

from __future__ import annotations

from octavo.core.request import ServiceClass
from octavo.core.sequence import Key, Live, Sequence

EXPECTED_OUTPUT = 256
"""Tokens charged for an answer before its length is known, if it may be so long."""
FORGET_AT = 1024
"""Counters are looked through for those that say nothing any more when there are so many."""


class Fair:
    name = "fair"

    def __init__(self) -> None:
        self._counters: dict[tuple[ServiceClass, str], float] = {}
        self._now = dict.fromkeys(ServiceClass, 0.0)
        self._forget_at = FORGET_AT

    def __len__(self) -> int:
        """Tenants with a counter."""
        return len(self._counters)

    def key(self, sequence: Sequence) -> Key:
        live = sequence.live
        return (live.tag, live.submission.arrival, sequence.rid)

    def entered(self, live: Live) -> None:
        submission = live.submission
        whose = (submission.service_class, submission.tenant)
        live.tag = max(self._now[submission.service_class], self._counters.get(whose, 0.0))
        params = submission.params
        limit = EXPECTED_OUTPUT if params.max_tokens is None else params.max_tokens
        outputs = params.choices * min(EXPECTED_OUTPUT, limit)
        live.charged = len(submission.prompt) + outputs
        self._counters[whose] = live.tag + live.charged
        self._forget()

    def began(self, live: Live) -> None:
        service_class = live.submission.service_class
        self._now[service_class] = max(self._now[service_class], live.tag)

    def left(self, live: Live) -> None:
        """What it did not cost is given back, what it cost beyond is charged."""
        submission = live.submission
        whose = (submission.service_class, submission.tenant)
        if whose not in self._counters:
            return
        cost = sum(sequence.outputs for sequence in live.sequences)
        if live.started is not None:
            cost += len(submission.prompt)
        self._counters[whose] += cost - live.charged

    def _forget(self) -> None:
        """A counter behind the virtual time says what no counter would say."""
        if len(self._counters) < self._forget_at:
            return
        self._counters = {
            whose: count for whose, count in self._counters.items() if count > self._now[whose[0]]
        }
        self._forget_at = max(FORGET_AT, 2 * len(self._counters))
