"""What followed earlier where a text ended as it does now: drafts that cost no model.

Occurrences of the last LEAST tokens are found by hash chains, as deflate finds them (RFC 1951,
section 4): a dictionary gives the latest place behind such tokens, and every place the one before
it. So a token is appended, or taken away again, in constant time. At each occurrence tokens are
compared backwards, which gives the length of the match.

Matches of n tokens and more, N of them of which c go on with a token, give that token

    p_n = (c + p_(n-1)) / (N + 1),   p_(LEAST-1) = 0:

a back-off in which one match of any length weighs as much as all shorter ones together. A single
match of n tokens has 1 - 2^-(n - LEAST + 1). What such a number is worth is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

LEAST, LONGEST = 2, 16
# So many of the latest occurrences count.
OCCURRENCES = 32


class NgramIndex:
    """Over the tokens of one text, which grows at its end and is cut there."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        # The latest place behind each LEAST tokens; for every place the one before, or -1.
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens."""
        text, latest, before = self._tokens, self._latest, self._before
        for token in tokens:
            place = len(text)
            text.append(token)
            if place < LEAST:
                before.append(-1)
                continue
            key = tuple(text[place - LEAST : place])
            before.append(latest.get(key, -1))
            latest[key] = place

    def truncate(self, n: int) -> None:
        """Forgets tokens from the n-th on."""
        text = self._tokens
        for place in range(len(text) - 1, max(n, LEAST) - 1, -1):
            key, before = tuple(text[place - LEAST : place]), self._before[place]
            if before < 0:
                del self._latest[key]
            else:
                self._latest[key] = before
        del text[n:], self._before[n:]

    def following(self, path: Sequence[int] = ()) -> list[tuple[int, float]]:
        """Tokens that may follow the text and `path`, and their probabilities, falling."""
        # Mostly nothing is found, in a cycle that should cost what plain decoding costs.
        end = [*self._tokens[-LEAST:], *path]
        place = self._latest.get(tuple(end[-LEAST:]), -1)
        if place < 0:
            return []
        end = [*self._tokens[-LONGEST:], *path][-LONGEST:]
        matches: list[tuple[int, int]] = []
        while place >= 0 and len(matches) < OCCURRENCES:
            matches.append((self._matching(end, place), self._tokens[place]))
            place = self._before[place]
        return backed_off(matches)

    def _matching(self, end: list[int], place: int) -> int:
        """How many tokens before `place` are those of `end`; LEAST of them are known to be."""
        text, n = self._tokens, LEAST
        most = min(len(end), place)
        while n < most and text[place - n - 1] == end[-n - 1]:
            n += 1
        return n


def backed_off(matches: Sequence[tuple[int, int]]) -> list[tuple[int, float]]:
    """Tokens and their probabilities, falling, by matches (length, following token), the latest
    first; of equals the one seen last comes first."""
    if len(matches) == 1:
        length, token = matches[0]
        return [(token, 1 - 0.5 ** (length - LEAST + 1))]
    counts = dict.fromkeys((token for _, token in matches), 0)
    probs = dict.fromkeys(counts, 0.0)
    for _, token in matches:
        counts[token] += 1
    n, reached = len(matches), LEAST - 1
    for length, ending in groupby(sorted(matches), key=lambda match: match[0]):
        # Between two lengths of matches the counts stay, so p nears c / N by N + 1 at every step.
        left = (n + 1.0) ** (reached - length)
        for token, count in counts.items():
            share = count / n
            probs[token] = share + (probs[token] - share) * left
        reached = length
        for _, token in ending:
            counts[token] -= 1
            n -= 1
    return sorted(probs.items(), key=lambda item: -item[1])
