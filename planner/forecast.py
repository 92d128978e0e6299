"""Which experts a draft token will use, before it is verified.

Four signals, each a guess of how much likelier than usual every expert of every layer is:

- the token: what it used before (`tokentable.py`);
- the probe: what the head's state tells that the token leaves open (`probe.py`);
- the parent: the experts expected of it;
- the context: what was used lately.

They are added with weights that are learned by least squares from what was observed, apart for
drafts of different kinds: how often the token was seen, and whether the head's state is there. The
`n_used` likeliest a layer are expected.

What the planner pays for is the *union* of a subtree. What drafts of a kind add to it beyond what
the sets tell is learned and priced as `unforeseen`; `scale` follows the ratio of the observed to
the forecast growth of unions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cost import CycleCost
from .experts import Bitsets, best, n_words, sizes, unpack
from .probe import RANK, fit_probe, random_projection
from .tokentable import CERTAIN, FAMILIARITIES, Floats, TokenTable
from .trace import TracedText
from .tree import DraftTree, FloatArray, IntArray

SIGNALS = ("token", "probe", "parent", "context")
FIRST_WEIGHTS = np.array([1.0, 1.0, 0.1, 0.1])
# What the first weights are worth, in observed rows, and what is kept of old rows at every new one.
PRIOR_ROWS = 1.0
KEPT = 1 - 1 / 2000
# Kinds of nodes: by how often the token was seen; the same again with the head's state.
N_KINDS = 2 * FAMILIARITIES
# At most so many drafts of a verified tree teach weights and probe; all teach the table.
TEACHERS = 4
PROBE_STEP = 0.02
# From this depth on a node's parent, which tells least, is not asked: level by level takes long.
DEEP = 2
GROWTH_STEP = 0.02
# Rows that the usual shares of experts follow, at first and later, and the latest ones.
FIRST_ROWS = 8
USUAL_ROWS = 4096
CONTEXT_ROWS = 16
LEARNED = ("projection", "linear", "gram", "moments", "weights", "beyond", "growths")


@dataclass(frozen=True)
class ExpertForecast:
    """Experts expected of every node of a tree.

    sets:       uint64 [n, layer, word].
    unforeseen: float64 [n], weighted number of further experts that no other node is known to use.
    """

    sets: Bitsets
    unforeseen: FloatArray

    def with_likenesses(self, nodes: NDArray[np.integer]) -> ExpertForecast:
        """Adds a node for each of `nodes` that uses the same experts, so none that are new."""
        return ExpertForecast(
            np.concatenate([self.sets, self.sets[nodes]]),
            np.concatenate([self.unforeseen, np.zeros(len(nodes))]),
        )

    def only(self, keep: NDArray[np.bool_]) -> ExpertForecast:
        """Of the nodes of keep [n]."""
        return ExpertForecast(self.sets[keep], self.unforeseen[keep])


@dataclass(frozen=True)
class Paid:
    """With a cache of experts, what there is to pay for by `cost`; missing_share: what part that is
    of what there would be without, as a rule. Unforeseen experts are missing as often as all, or
    more so, since the usual ones are cached: so growths are learned in units of that share."""

    cost: CycleCost
    missing_share: float


@dataclass(frozen=True)
class _Known:
    """What was computed for the nodes of a tree, kept to be reused as it grows.

    codes: float32 [n, rank], of the states behind their parents, zero where there is none.
    slots: int [n], of the token table. kinds: int [n]. sets: uint64 [n, layer, word].
    """

    tree: DraftTree
    codes: Floats
    slots: NDArray[np.intp]
    kinds: NDArray[np.intp]
    sets: Bitsets


class Forecast:
    """Learns from observed cycles."""

    def __init__(self, n_layers: int, n_experts: int, n_used: int, layer_weights: FloatArray):
        self._shape = (n_layers, n_experts)
        self.n_used = n_used
        self._layer_weights = layer_weights
        n_outputs = n_layers * n_experts
        self._table = TokenTable(n_outputs)
        self._projection = np.zeros((0, RANK), np.float32)
        # One matrix product serves the probe's basis, the usual shares of experts, and the latest.
        self._linear = np.zeros((RANK + 2, n_outputs), np.float32)
        # Not quite even, so that there is always a best.
        uneven = 1 + 1e-3 * np.random.default_rng(0).random(n_outputs)
        self._linear[RANK:] = n_used / n_experts * uneven
        self._rows = FIRST_ROWS
        # Normal equations of the weights, by kind.
        self._gram = np.tile(np.eye(len(SIGNALS)) * n_layers * n_used * PRIOR_ROWS, (N_KINDS, 1, 1))
        self._moments = self._gram @ FIRST_WEIGHTS
        self._weights = np.tile(FIRST_WEIGHTS, (N_KINDS, 1)).astype(np.float32)
        # Growth of a union beyond what the sets tell, a layer, by kind; growths forecast and seen.
        self._beyond = np.where(np.arange(N_KINDS) % FAMILIARITIES == 0, n_used / 2, 0.0)
        self._growths = np.full(2, float(n_used))
        self._known: _Known | None = None

    @property
    def layer_weight(self) -> float:
        """Sum of the weights of layers."""
        return float(self._layer_weights.sum())

    @property
    def scale(self) -> float:
        """What to multiply the forecast growth of a union by."""
        forecast, observed = self._growths + 1e-9
        return float(np.clip(observed / forecast, 0.25, 4.0))

    def knows(self, tokens: IntArray) -> bool:
        """Whether all of `tokens` were observed before: nothing new is to be learned from them."""
        return all(token in self._table for token in tokens.tolist())

    def of(self, tree: DraftTree) -> ExpertForecast:
        """What to expect of `tree`; quick if it is the one of the last call, grown."""
        known = self._known = self._look(tree)
        return ExpertForecast(known.sets, self._unforeseen(known) * self.layer_weight)

    def learn(
        self,
        tree: DraftTree,
        forecast: ExpertForecast | None,
        seen: Bitsets,
        paid: Paid | None = None,
    ) -> None:
        """Learns from what a verified `tree` used, uint64 [n, layer, word].

        forecast: what was expected of this very tree. paid: with a cache, what is paid for.
        """
        used = unpack(seen, self._shape[1])
        n_lines = tree.n_lines
        if len(tree) > n_lines:
            known = self._look(tree) if forecast is None else self._blank(tree, forecast.sets)
            if forecast is not None:
                self._describe(known, 0)
            self._learn_growth(known, seen, paid)
            self._learn_weights(known, used)
        self._table.learn(tree.tokens, used)
        self._learn_shares(used, used[:n_lines])
        self._known = None

    def train(self, texts: Sequence[TracedText]) -> None:
        """Learns from candidates of recorded texts. Raises ValueError if there are no drafts."""
        probe = fit_probe(texts, self._shape[1], self._table)
        self._projection = probe.projection
        self._linear[:RANK] = probe.basis
        self._linear[RANK:] = probe.usual
        self._rows = USUAL_ROWS
        self._known = None

    def signals(self, tree: DraftTree) -> Floats:
        """float32 [n, signal, output]: what each of SIGNALS adds to what is usual."""
        signals = self._signals(self._look(tree), slice(None))
        signals[: tree.n_lines, SIGNALS.index("parent")] = 0.0  # nothing is known of a root's
        return signals

    def likeliest(self, scores: Floats) -> Bitsets:
        """uint64 [n, layer, word]: the best experts a layer, of scores [n, output] above usual."""
        return best((scores + self._linear[RANK]).reshape(-1, *self._shape), self.n_used)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """All that was learned, for `restore`."""
        learned = {name: getattr(self, "_" + name) for name in LEARNED}
        return {**self._table.state(), **learned, "rows": np.array(self._rows)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Raises ValueError, and changes nothing, if `state` is not of a forecast of this shape."""
        m, width = (len(np.atleast_1d(state.get(key, ()))) for key in ("tokens", "projection"))
        shapes: dict[str, tuple[int, ...]] = {
            name: getattr(self, "_" + name).shape for name in LEARNED
        }
        shapes |= {"projection": (width, RANK), "rows": ()}
        shapes |= {"tokens": (m,), "shares": (m, self._linear.shape[1]), "sightings": (m,)}
        like = self.state()
        for name, shape in shapes.items():
            array = state.get(name)
            if array is None or array.shape != shape or array.dtype != like[name].dtype:
                raise ValueError(f"{name} is not what a forecast of this model has learned")
            if not np.isfinite(array).all():
                raise ValueError(f"{name} holds what is no number")
        self._table.restore(state)
        for name in LEARNED:
            setattr(self, "_" + name, np.array(state[name]))
        self._rows = int(state["rows"])
        self._known = None

    def _look(self, tree: DraftTree) -> _Known:
        old, n = self._known, len(tree)
        if old is not None and old.tree is tree:
            return old
        known, m = self._blank(tree), 0
        if old is not None and _starts_with(tree, old.tree):
            m = len(old.tree)
            known.codes[:m], known.sets[:m] = old.codes, old.sets
            known.slots[:m], known.kinds[:m] = old.slots, old.kinds
        self._describe(known, m)
        depths = tree.depths
        while m < n:  # level by level: a parent's experts come first, but not in long lookups
            end = n
            if depths[m] < DEEP:
                end = m + int(np.searchsorted(depths[m:], depths[m], "right"))
            known.sets[m:end] = self._expected(known, slice(m, end))
            m = end
        return known

    def _blank(self, tree: DraftTree, sets: Bitsets | None = None) -> _Known:
        n = len(tree)
        if sets is None:
            sets = np.zeros((n, self._shape[0], n_words(self._shape[1])), np.uint64)
        nothing = np.zeros((2, n), np.intp)
        return _Known(tree, np.zeros((n, RANK), np.float32), nothing[0], nothing[1], sets)

    def _describe(self, known: _Known, m: int) -> None:
        """Codes, slots and kinds of the nodes from `m` on."""
        tree = known.tree
        known.slots[m:] = slots = self._table.slots(tree.tokens[m:])
        known.kinds[m:] = self._table.familiarity[slots]
        drafts = max(m, tree.n_lines)
        if tree.states is None or drafts == len(tree):
            return
        states = tree.states[tree.parents[drafts:]]
        if len(self._projection) != states.shape[1]:
            self._projection = random_projection(states)
            self._linear[:RANK] = 0.0
        np.matmul(states, self._projection, out=known.codes[drafts:])
        known.kinds[drafts:] += FAMILIARITIES * known.codes[drafts:].any(axis=1)

    def _expected(self, known: _Known, level: slice) -> Bitsets:
        """Sets of the nodes of a level."""
        slots, weights = known.slots[level], self._weights[known.kinds[level]]
        weights[:, 0] *= self._table.trust[slots]
        depths = known.tree.depths[level]
        weights[(depths == 0) | (depths >= DEEP), 2] = 0.0  # nothing is known of their parents
        by_token, by_probe, by_parent, by_context = weights.T[:, :, None]
        usual = 1 - by_token - by_parent - by_context
        codes, parts, linear = known.codes[level], [usual, by_context], self._linear[RANK:]
        if codes.any():  # else they were looked up, without a head
            parts, linear = [codes * by_probe, *parts], self._linear
        scores = np.concatenate(parts, axis=1) @ linear
        scores += self._table.shares[slots] * (by_token * np.float32(1 / CERTAIN))
        if by_parent.any():
            scores += unpack(known.sets[known.tree.parents[level]], self._shape[1]) * by_parent
        return best(scores.reshape(-1, *self._shape), self.n_used)

    def _signals(self, known: _Known, nodes: slice) -> Floats:
        """Each signal apart; `_expected` adds them in fewer steps."""
        usual, latest = self._linear[RANK:]
        slots = known.slots[nodes]
        signals = np.empty((len(slots), len(SIGNALS), len(usual)), np.float32)
        np.subtract(self._table.expected(slots, usual), usual, out=signals[:, 0])
        signals[:, 1] = known.codes[nodes] @ self._linear[:RANK]
        parents = unpack(known.sets[known.tree.parents[nodes]], self._shape[1])
        np.subtract(parents, usual, out=signals[:, 2])
        signals[:, 3] = latest - usual
        return signals

    def _learn_weights(self, known: _Known, used: NDArray[np.uint8]) -> None:
        n_lines = known.tree.n_lines
        drafts = slice(n_lines, n_lines + TEACHERS)
        signals, kinds = self._signals(known, drafts), known.kinds[drafts]
        left = used[drafts] - self._linear[RANK]
        touched = np.unique(kinds)
        self._gram[touched] *= KEPT
        self._moments[touched] *= KEPT
        np.add.at(self._gram, kinds, signals @ signals.transpose(0, 2, 1))
        np.add.at(self._moments, kinds, (signals @ left[:, :, None])[..., 0])
        solved = np.linalg.solve(self._gram[touched], self._moments[touched, :, None])
        # A signal that speaks against experts that it expects has been overtaken by another.
        self._weights[touched] = np.maximum(solved[..., 0], 0.0)
        # The probe learns what the table leaves open, whatever the weights are.
        left -= signals[:, 0]
        left -= signals[:, 1]
        self._linear[:RANK] += (known.codes[drafts].T * np.float32(PROBE_STEP / RANK)) @ left

    def _learn_shares(self, used: NDArray[np.uint8], latest: NDArray[np.uint8]) -> None:
        self._rows = min(self._rows + len(used), USUAL_ROWS)
        whole = (self._rows, CONTEXT_ROWS)
        for shares, rows, out_of in zip(self._linear[RANK:], (used, latest), whole, strict=True):
            mean = rows.sum(axis=0, dtype=np.float32) / np.float32(len(rows))
            shares += min(len(rows) / out_of, 1.0) * (mean - shares)

    def _learn_growth(self, known: _Known, seen: Bitsets, paid: Paid | None) -> None:
        if not self.layer_weight:
            return
        n_lines = known.tree.n_lines
        expected = self._growth(known.sets, n_lines, paid)
        observed = self._growth(seen, n_lines, paid)
        priced = expected.sum() + self._unforeseen(known).sum()
        self._growths += GROWTH_STEP * (np.array([priced, observed.sum()]) - self._growths)
        kinds = known.kinds[n_lines:].tolist()
        for kind, more in zip(kinds, (observed - expected).tolist(), strict=True):
            self._beyond[kind] += GROWTH_STEP * (more - self._beyond[kind])

    def _growth(self, sets: Bitsets, n_lines: int, paid: Paid | None) -> FloatArray:
        """float64 [n - n_lines]: experts a layer that each draft adds to the nodes before it; with
        a cache what is paid for, as if everything were."""
        sets, uses = (sets, None) if paid is None else paid.cost.paid(sets, None)
        unions = sizes(np.bitwise_or.accumulate(sets, axis=0)[n_lines - 1 :])
        growth: FloatArray = np.diff(unions, axis=0) @ self._layer_weights / self.layer_weight
        if paid is None:
            return growth
        if uses is not None:
            growth += uses[n_lines:] / self.layer_weight
        return growth / paid.missing_share

    def _unforeseen(self, known: _Known) -> FloatArray:
        """float64 [n], a layer; never negative: that sets share too little is told by `scale`."""
        unforeseen = np.maximum(self._beyond[known.kinds], 0.0)
        unforeseen[: known.tree.n_lines] = 0.0  # a root's number of experts is certain
        return unforeseen


def _starts_with(tree: DraftTree, old: DraftTree) -> bool:
    """Whether `tree` is `old` grown: the same first nodes behind the same state."""
    m, n_lines = len(old), old.n_lines
    same = tree.tokens[:m].tobytes() == old.tokens.tobytes()
    same = same and tree.parents[:m].tobytes() == old.parents.tobytes()
    if not same or m == n_lines or tree.states is None or old.states is None:
        return same and (m == n_lines or tree.states is old.states)
    return tree.states[:n_lines].tobytes() == old.states[:n_lines].tobytes()
