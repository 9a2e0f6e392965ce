"""What the batch class has for certain: a credit of tokens.

Owns: the account, and how many rows may be sheltered at its expense.
Does not know: who is running, or how a step is filled (planner).

While batch work is there, each step adds `share` of its tokens to the credit and takes off what
batch rows computed. With little realtime work batch rows have far more than their share, and the
credit stays at nought: nothing is saved up beyond it, and what filled up a step that would have had
room is no debt. Once realtime work takes all, the credit grows; then tokens are kept free for batch
rows, and one of them is let in before realtime work and sheltered from it. Sheltered rows do run
into debt, so that in the long run the class has its share and no more.
"""

from __future__ import annotations


class BatchShare:
    """`share` of all tokens; `most` bounds what is owed (one step's tokens)."""

    def __init__(self, share: float, rows: int, most: int) -> None:
        self._share = share
        self._most = most
        self._credit = 0.0
        self.rows = max(1, int(share * rows)) if share > 0 else 0
        """So many rows may be sheltered at a time."""

    @property
    def credit(self) -> int:
        """Tokens that are owed; below 0 is debt."""
        return int(self._credit // 1)

    def settle(self, total: int, filling: int, sheltered: int, wanted: bool) -> None:
        """After a step of `total` tokens: `filling` of batch rows, and `sheltered` of those that
        were. `wanted`: batch work was there. Where none is, nothing is owed and debts lapse."""
        if not wanted:
            self._credit = 0.0
            return
        credit = min(self._most, self._credit + self._share * total - sheltered)
        self._credit = max(credit - filling, min(credit, 0.0))
