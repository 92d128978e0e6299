"""Takes any mode, or specfit with one of its parts switched off, through a recorded text.

A part is switched off to see what it contributes: `calibration` (the drafters' probabilities are
believed), `forecast` (plans by the number of rows, as `count` does), `objective` (the ratio E/T),
`rules` (every cycle drafts, and goes on while the optimistic gain is positive). `noisy:0.4` keeps
the forecast and replaces so large a share of its experts by random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .acceptance import Acceptance
from .beliefs import Beliefs, UnionByRows
from .caching import left_by, uses_of_chains
from .cost import NO_OVERHEADS, CycleCost, Overheads
from .drafting import DraftingRule
from .experts import best, unpack
from .forecast import ExpertForecast, Forecast
from .gains import Gains
from .hindsight import Ranks, Static, best_static, mean_unions, replay_oracle
from .livecost import LiveCost
from .modes import make_policy
from .outlook import Outlook
from .planned import Planned
from .replay import OBSERVE_MS, Cache, ReplayedCycle, replay
from .residency import Rule
from .spec import Spec
from .streak import Streak
from .trace import Trace
from .tree import DRAFTERS, LOOKUP, DraftTree, FloatArray

# Modes that only a replay can have.
ORACLE, STATIC = "oracle", "static"
NOISE = 0.4
NOISY = f"noisy:{NOISE:g}"
PARTS = ("calibration", "forecast", "objective", "rules", NOISY)
Shape = tuple[Ranks, ...]
# Rows that the tables know, as many as a decode of ours takes.
MAX_ROWS = 64
MORE_MISSING = 0.05


class Lab:
    """A trace, ready to be replayed many times."""

    def __init__(self, trace: Trace) -> None:
        self.texts = trace.texts
        self._shape = (trace.n_layers, trace.n_experts, trace.n_used)
        dense = not trace.n_experts
        self.layer_weights: FloatArray = np.ones(0 if dense else trace.n_layers)
        self._unions = np.zeros(MAX_ROWS + 1) if dense else mean_unions(trace.texts, MAX_ROWS)

    def static_shape(self, cost: CycleCost) -> Shape:
        """The best fixed tree in hindsight, as paths of ranks among the head's children."""
        return best_static(self.texts, cost)

    def take(
        self,
        mode: str,
        cost: CycleCost,
        true_cost: Callable[[int], CycleCost] | None = None,
        lines: int = 1,
        cache: Cache | None = None,
        drafters: Sequence[str] = DRAFTERS[:1],
    ) -> list[ReplayedCycle]:
        """Every cycle of the mode, planned by the tables `cost` and whatever it learns.

        mode: as `Spec` reads it, or ORACLE. true_cost: what cycle number i really costs; None
        stands for `cost`. lines: texts at a time. cache: of experts. drafters: those there are.
        Raises ValueError for what is no mode.
        """
        if mode == ORACLE:
            return replay_oracle(self.texts, cost, cache)
        live = LiveCost(cost, follows=True)
        beliefs = self._beliefs_under(cost, cache)
        overheads = self._overheads if cache is None else NO_OVERHEADS
        policy = make_policy(Spec.parse(mode), beliefs, live, MAX_ROWS, overheads, drafters)
        really = true_cost or (lambda _: cost)
        return replay(self.texts, policy, live, really, lines, cache, drafters)

    def take_fixed(
        self, shape: Shape, cost: CycleCost, cache: Cache | None = None
    ) -> list[ReplayedCycle]:
        """Every cycle of the fixed tree of this shape."""
        policy, live = Static(self.beliefs(), MAX_ROWS, shape), LiveCost(cost, follows=True)
        return replay(self.texts, policy, live, lambda _: cost, cache=cache)

    def cache(self, rule: Rule) -> Cache:
        """A cache of experts as it is left behind when the texts were decoded once, plainly."""
        return Cache(rule, left_by(uses_of_chains(self.texts, 0, self._shape[1]), rule))

    def _beliefs_under(self, cost: CycleCost, cache: Cache | None, without: str = "") -> Beliefs:
        """With a cache, rows pay at first for the share of uses that missed it before, and more:
        drafts are not the text that it knows."""
        beliefs = self.beliefs(without)
        if cache is None:
            return beliefs
        uses = cost.use_share * self._shape[2] * np.arange(MAX_ROWS + 1)
        missing = min(1.0, cache.begun.missing_share + MORE_MISSING)
        paid = missing * (self._unions + uses)
        return replace(beliefs, unions=UnionByRows(paid))

    def take_without(
        self,
        part: str,
        cost: CycleCost,
        cache: Cache | None = None,
        drafters: Sequence[str] = DRAFTERS[:1],
    ) -> list[ReplayedCycle]:
        """Every cycle of specfit with one of PARTS switched off."""
        live = LiveCost(cost, follows=True)
        policy = Planned(
            self._beliefs_under(cost, cache, part),
            live,
            MAX_ROWS,
            by_count=part == "forecast",
            ratio=part == "objective",
            overheads=self._overheads if cache is None else NO_OVERHEADS,
            looks_up=DRAFTERS[LOOKUP] in drafters,
        )
        if part == "rules":
            root_union = policy.beliefs.expected_union(1)
            policy.rule = Unruled(live, root_union, policy.max_rows, Gains(), Streak())
        return replay(self.texts, policy, live, lambda _: cost, cache=cache, drafters=drafters)

    def beliefs(self, without: str = "") -> Beliefs:
        """Nothing learned yet, but for the mean unions, which a machine's calibration knows too."""
        acceptance = Believing() if without == "calibration" else Acceptance()
        kind = NoisyForecast if without == NOISY else Forecast
        forecast = kind(*self._shape, self.layer_weights) if len(self.layer_weights) else None
        unions = UnionByRows(self._unions)
        return Beliefs(acceptance, Outlook(), forecast, unions, self.layer_weights)

    @property
    def _overheads(self) -> Overheads:
        return Overheads(observe_ms=OBSERVE_MS * len(self.layer_weights))


class Believing(Acceptance):
    """Takes the drafters' probabilities for chances."""

    def conditional(self, tree: DraftTree) -> FloatArray:
        return tree.probs

    def first_looked_up(self, prob: float) -> float:
        return prob

    def learn(self, tree: DraftTree, path: list[int]) -> None:
        pass


class Unruled(DraftingRule):
    """Looks up and drafts in every cycle, as long as one more level can win if all goes well."""

    abstains = False

    def finds(self, planning_ms: float) -> bool:
        return True

    def may_find(self, chance: float, planning_ms: float) -> bool:
        return True

    def may_draft(self, planning_ms: float) -> bool:
        return True

    def goes_on(
        self, level: int, gain: float, expected: float, ms: float, least: float = 0.0
    ) -> bool:
        return level == 0 or gain > 0


class NoisyForecast(Forecast):
    """Replaces NOISE of the experts of each set by others at random."""

    def of(self, tree: DraftTree) -> ExpertForecast:
        clean = super().of(tree)
        n_experts, n_used = self._shape[1], self.n_used
        # The same noise for a node whenever it is asked about while its tree grows.
        rng = np.random.default_rng(tree.tokens[tree.depths <= 1])
        chance = rng.random((*clean.sets.shape[:2], n_experts), np.float32)
        member = unpack(clean.sets, n_experts).reshape(chance.shape).astype(np.bool_)
        # Members that stay come first, those that are replaced last.
        score = np.where(member, np.where(chance < NOISE, -1, 2), chance)
        return ExpertForecast(best(score.astype(np.float32), n_used), clean.unforeseen)
