"""In what order modes take turns, so that none is measured at another's cost or gain.

A mode finds what the one before it left: the GPU's recorded graph of one row or of sixty, warm or
cold caches, a throttled clock. With a mere rotation each mode always follows the same other one,
which on short answers made ratios of 0.92 where there was nothing to see (LOG.md).
"""

from __future__ import annotations


def order_of_round(modes: int, round_: int) -> list[int]:
    """The modes 0 … modes-1 in the order of a round, rounds being numbered from 0.

    In `modes` rounds, twice as many if their number is odd, each mode is first equally often and
    follows each other mode equally often (E. J. Williams, Aust. J. Sci. Res. A 2, 1949).
    """
    zigzag = [(step + 1) // 2 if step % 2 else -(step // 2) for step in range(modes)]
    order = [(place + round_) % modes for place in zigzag]
    return order[::-1] if modes % 2 and round_ // modes % 2 else order
