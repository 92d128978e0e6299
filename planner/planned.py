"""The planning modes: `specfit`, `specfit:ratio`, and `count`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .account import DEEPEST, Account
from .beliefs import Beliefs
from .cost import NO_OVERHEADS, PLAINLY, Before, CycleCost, Levels, Overheads
from .drafting import DraftingRule
from .drafts import Drafts
from .foresight import Foresight
from .found import first_level
from .livecost import LiveCost
from .looking import Looking
from .policies import FIRST_PLANNING_MS, NOTHING, Choice, Outcome, followed, widths_of
from .prospect import Prospect
from .reason import Reason
from .resting import Resting
from .search import Plan
from .tree import DraftTree, FloatArray, IntArray
from .weighing import Weighing

# A node that is committed once in a hundred cycles pays for no row on any machine we measured.
LEAST_CHANCE = 0.01
BRANCHING = 8
# Of tokens found that it would not pay to verify, one in so many is learned from.
LEARN_FOUND = 8
# Plain cycles in which nothing was planned are learned from at once, up to so many, and judged by
# one prospect: between decodes Python works with cold caches.
PLAIN_AT_ONCE = 16
NO_HOPES: FloatArray = np.zeros(0)


class Planned:
    """Keeps the subtree with the best predicted throughput, and drafts only while that can improve.

    beliefs: what was learned. live: the machine to plan for. by_count: plan by the number of rows
    alone, as EVICT does (arXiv 2605.00342). ratio: maximise E/T of the cycle, as the SpecFit paper
    does (arXiv 2610.15417); else E - rate * T at the long-run rate. looks_up: see `Policy`.
    """

    least_chance = LEAST_CHANCE

    def __init__(
        self,
        beliefs: Beliefs,
        live: LiveCost,
        max_rows: int,
        *,
        by_count: bool = False,
        ratio: bool = False,
        overheads: Overheads = NO_OVERHEADS,
        looks_up: bool = False,
    ) -> None:
        self.beliefs = beliefs
        self.looks_up = looks_up
        self.live = live
        self.max_rows = min(max_rows, live.now.max_rows)
        self.ratio = ratio
        self._overheads = overheads
        self._looking = Looking(overheads.observe_ms + overheads.unsettled_ms)
        union = beliefs.expected_union(1)
        gains, streak = beliefs.gains, beliefs.streak
        self.rule = DraftingRule(live, union, self.max_rows, gains, streak)
        self._resting = Resting(overheads, self._promise)
        self._forecast = None if by_count else beliefs.forecast
        self._forecasting = self._forecast is not None
        self._foresight = Foresight()
        self._weigh = Weighing(
            live, self.rule, union, self.max_rows, lambda: self.planning_ms, ratio=ratio
        )
        # Of this cycle: the roots to draft behind; what was drafted; per level its predicted gain,
        # and the worth before; how long the heads were to catch up; and what its reason is told by.
        self._waiting_ms = 0.0
        self._account = Account(None)
        self._drafting: IntArray = NOTHING
        self._levels_drafted: tuple[tuple[int, ...], ...] = ()
        self._hopes: list[tuple[float, float]] = []
        self._newest: tuple[Drafts, Plan] | None = None
        self._folded: CycleCost | None = None
        self._found: DraftTree | None = None  # by lookups in this cycle
        self._finding_ms = FIRST_PLANNING_MS  # of a plan with that
        self._unlearned = 0
        self._planned = False  # something, in this cycle
        # Plain cycles to be learned from: the text, the decode before, what drafts promised.
        self._plain: list[tuple[int, Before, tuple[Prospect, float, float] | None]] = []
        self._prospect: Prospect | None = None
        self._promised: tuple[Prospect, float, float] | None = None

    @property
    def planning_ms(self) -> float:
        return self._foresight.planning_ms[self._forecasting]

    @property
    def reads_states(self) -> bool:
        return self._forecasting

    @property
    def _may_draft(self) -> bool:
        return self.rule.may_draft(self._foresight.planning_ms[False])

    def tracks(self, prompt: int, missing_ms: float, lines: int = 1) -> bool:
        self._found = None  # of a cycle that did not come to its end
        self._learn_plain()
        if not self._may_draft:
            self._foresight.doubt()
            return False
        self._turn_to(prompt, lines)
        look_ms = self._weigh.spent_ms([(0,)]) + prompt * self._overheads.position_ms
        return self._resting.wakes(self.rule, lines, missing_ms, look_ms)

    def _promise(self) -> float:
        """Tokens a cycle that first drafts are to gain, by all that is known of roots, where every
        cycle drafts."""
        kinds = self.beliefs.outlook.typical(self._weigh.lines)
        firsts = [self._weigh.first(hopes) for hopes in kinds]
        gains = [first.gain + self.rule.rate * first.charged_ms for first in firsts]
        return sum(max(0.0, self.rule.gains.calibrated(0, gain)) for gain in gains) / len(gains)

    def _turn_to(self, context: int, lines: int) -> None:
        self._weigh.turn_to(lines, self.beliefs.expected_union(lines), context)
        self._prospect = self._promised = None

    def _turn_to_cycle(self, context: int, lines: int) -> None:
        self._learn_plain()
        self._turn_to(context, lines)
        self._planned = True
        self._levels_drafted = ()
        self._hopes.clear()
        self._newest = self._folded = self._found = None
        self._account = Account(None if self.ratio else self.rule.rate)

    def behind(self, before: Before) -> None:
        self.rule.switching.before = before

    @property
    def finds(self) -> bool:
        return not self.rule.abstains and self.rule.finds(self._finding_ms)

    def hopes(self, prob: float) -> bool:
        chance = self.beliefs.acceptance.first_looked_up(prob)
        return self.rule.may_find(chance, self._finding_ms)

    def takes(self, context: int, found: DraftTree) -> bool:
        self._turn_to_cycle(context, found.n_lines)
        self._found = found
        self._forecasting = self._forecast_pays()
        drafts = self._drafts(found, self.beliefs.acceptance.conditional(found))
        plan = self._best(drafts, ())
        self._newest = (drafts, plan)
        if np.count_nonzero(plan.keep) == self._weigh.lines:
            self._offer(drafts, plan)
            return False
        gain = self._weigh.worth(plan.committed, plan.ms) - self._weigh.plain
        self.rule.spare(gain / self.rule.rate - self._finding_ms)
        return True

    def begin(self, context: int, roots: Sequence[int], waiting: int = 0) -> bool:
        if self._found is None:
            if len(roots) == 1 and self._is_hopeless(roots[0], waiting):
                return False
            self._turn_to_cycle(context, len(roots))
        if not self._may_draft or self.rule.abstains:
            return False
        if self._found is None:
            self._forecasting = self._forecast_pays()
        hopes = [self.beliefs.outlook.behind(root) for root in roots]
        prospect = Prospect(self._weigh.first(hopes), self.rule.rate, self.rule.gains)
        first, gain = prospect.first, prospect.gain(prospect.first.hoped)
        spent_ms, worth, expected = first.spent_ms, first.plain, prospect.expected(gain)
        self._hope(prospect, gain, expected)
        lines = sorted(range(len(roots)), key=lambda line: -hopes[line])[: first.n]
        if self._newest is not None:
            gain, worth, lines = self._beside(np.array(hopes))
            if not lines:
                return False
            spent_ms = self._weigh.spent_ms([(0,) * len(lines)])
            expected = self.rule.gains.calibrated(0, gain)
        self._drafting = np.array(sorted(lines), np.int32)
        self._hopes.append((gain, worth))
        self._account.first = first.extra_ms, first.hoped, first.plain_ms
        self._waiting_ms = waiting * self._overheads.position_ms
        least = self._least(prospect.rate)
        goes_on = self.rule.goes_on(0, gain, expected, spent_ms + self._waiting_ms, least)
        self._account.trial = self.rule.trying
        if self._weigh.lines == 1 and not (self.ratio or goes_on or self._newest):
            self._prospect = prospect
        return self._resting.drafts(now=goes_on)

    def _is_hopeless(self, root: int, waiting: int) -> bool:
        """Whether the prospect of a few cycles ago leaves nothing to draft for behind a root: most
        cycles of a text end here, so it is quick."""
        prospect = self._prospect
        if prospect is None or self.rule.switching.before != PLAINLY or self.rule.abstains:
            return False
        hoped = self.beliefs.outlook.behind(root)
        gain = prospect.gain(hoped)
        expected, first = prospect.expected(gain), prospect.first
        self._waiting_ms = waiting * self._overheads.position_ms
        if expected > self._least(prospect.rate) or not prospect.glances(PLAIN_AT_ONCE):
            return False
        if self.rule.may_try(first.spent_ms + self._waiting_ms):
            return False
        self._promised = prospect, gain, expected
        self._newest, self._hopes = None, [(gain, first.plain)]
        self._account = Account(prospect.rate, (first.extra_ms, hoped, first.plain_ms))
        return True

    def _hope(self, prospect: Prospect, gain: float, expected: float) -> None:
        """Notes what first drafts promise in this cycle."""
        self.rule.switching.hope(gain / prospect.rate)
        self._resting.learn(self._weigh.lines, expected)

    def _least(self, rate: float) -> float:
        """Tokens that first drafts must gain for heads to catch up: once, and it serves all further
        drafts of the answer."""
        return rate * self._waiting_ms / self._resting.drafted

    def _beside(self, hopes: FloatArray) -> tuple[float, float, list[int]]:
        """The gain of the head's first drafts beside what lookups found, the worth of that, and the
        lines to draft behind. hopes: [line], chances of the best drafts."""
        assert self._newest is not None
        drafts, plan = self._newest
        roots = np.arange(self._weigh.lines, dtype=np.int32)
        levels = ((0,) * self._weigh.lines,)
        wider = self._best(drafts, levels, roots, hopes * drafts.left(roots))
        lines = np.flatnonzero(wider.keep[len(drafts.tree) :]).tolist()
        worth = self._weigh.worth(plan.committed, plan.ms)
        spared_ms = self._weigh.spent_ms(levels) - self._weigh.spent_ms([(0,) * len(lines)])
        return self._weigh.worth(wider.committed, wider.ms - spared_ms) - worth, worth, lines

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        depth, self._account.room = len(self._levels_drafted), room
        if depth == 0:
            self._levels_drafted = ((0,) * len(self._drafting),)
            return self._drafting, BRANCHING
        conditional = self.beliefs.acceptance.conditional(tree)
        self.beliefs.outlook.learn(tree, conditional)
        drafts = self._drafts(tree, conditional)
        plan = self._best(drafts, self._levels_drafted)
        self._newest = (drafts, plan)
        if depth >= min(room, DEEPEST):
            return NOTHING, 0
        # One more level: each node gets the child to expect, whose experts are all there already.
        frontier = np.flatnonzero(tree.depths == depth).astype(np.int32)
        if tree.named is not None:  # the head knows only what it was led to
            frontier = frontier[tree.expanded[tree.parents[frontier]]]
        if not len(frontier):
            return NOTHING, 0
        hoped = self.beliefs.outlook.best_child(tree.tokens[frontier], conditional[frontier])
        hoped *= drafts.left(frontier)
        levels = (*self._levels_drafted, widths_of(tree, frontier))
        wider = self._best(drafts, levels, frontier, hoped)
        nodes = frontier[wider.keep[len(tree) :]]
        level = widths_of(tree, nodes)
        worth = self._weigh.worth(plan.committed, plan.ms)
        gain = self._weigh.worth(wider.committed, wider.ms) - worth
        level_ms = self._weigh.spent_ms([level])
        expected = self.rule.gains.calibrated(depth, gain)
        if not len(nodes) or not self.rule.goes_on(depth, gain, expected, level_ms):
            self._account.wider = (wider, len(nodes))
            return NOTHING, 0
        self._hopes.append((gain, worth))
        self._levels_drafted = (*self._levels_drafted, level)
        return nodes, BRANCHING

    def choose(self, tree: DraftTree) -> Choice:
        choice = self._chosen(tree)
        return replace(choice, padding=self.live.padding(len(choice.chances)))

    def _chosen(self, tree: DraftTree) -> Choice:
        n = tree.n_lines
        if len(tree) == n:
            return Choice(np.ones(n, np.bool_), np.ones(n), self.beliefs.expected_union(n))
        if self._newest is None or self._newest[0].tree is not tree:
            drafts = self._drafts(tree, self.beliefs.acceptance.conditional(tree))
            self._newest = (drafts, self._best(drafts, self._levels_drafted))
        drafts, plan = self._newest
        worth, offered = self._weigh.worth(plan.committed, plan.ms), self._offer(drafts, plan)
        for level, (predicted, before) in enumerate(self._hopes):
            free = level == 0 and self._found is None
            self.rule.gains.learn(level, predicted, offered if free else worth - before)
        self._learn_saving(drafts, worth)
        rows = int(np.count_nonzero(plan.keep))
        chances = drafts.chances[plan.keep]
        if drafts.forecast is None or rows == self._weigh.lines:
            return Choice(plan.keep, chances, self.beliefs.expected_union(rows))
        kept = drafts.forecast.only(plan.keep)
        return Choice(plan.keep, chances, drafts.union(plan.keep), kept)

    def looks(self, tree: DraftTree) -> bool:
        if not self._looking.begins():
            return False
        news = self._forecasting and self._forecast and not self._forecast.knows(tree.tokens)
        return bool(news) or (len(tree) > 1 and self._looking.is_due)

    def learn(self, outcome: Outcome) -> None:
        if outcome.experts is not None:
            self._looking.looked()
        self._learn_plain()
        choice = outcome.choice
        tree, path, experts, paid = outcome.tree, outcome.path, outcome.experts, outcome.paid_union
        self.beliefs.learn(tree, path, choice.forecast, experts, self._folded, paid)
        rows = min(outcome.rows, self.live.now.max_rows)
        context, before, levels = outcome.context, self.rule.switching.before, outcome.levels
        ms = self.live.cycle_ms(rows, choice.union, context, before, levels, self.planning_ms)
        self._learn_cycle(len(path), ms, rows, context, len(tree) - tree.n_lines)
        if outcome.planned:
            if self._account.trial:
                self.rule.charge(max(0.0, outcome.catch_up_ms - self._waiting_ms))
            self._foresight.learn(outcome, forecasting=self._forecasting)

    def learned(self, ms: float) -> None:
        self._looking.learned(ms)

    def learn_plain(self, context: int, paid_union: float | None = None) -> None:
        self.beliefs.learn_paid(1, paid_union)
        self._plain.append((context, self.rule.switching.before, self._promised))
        self._promised = None
        if self._planned or self.rule.abstains or len(self._plain) == PLAIN_AT_ONCE:
            self._learn_plain()

    def _learn_plain(self) -> None:
        for context, before, promised in self._plain:
            if promised is not None:
                self._hope(*promised)
            ms = self.live.verify_ms(1, self._weigh.root_union, context, before)
            self._learn_cycle(1, ms, 1, context, 0)
        self._plain.clear()

    def _learn_cycle(self, committed: int, ms: float, rows: int, context: int, drafts: int) -> None:
        self.rule.learn(committed, ms, context, drafts)
        self._looking.passed(ms)
        self.passed(rows)

    def passed(self, rows: int) -> None:
        self.rule.passed(rows)
        self._found, self._planned = None, False

    def learn_found(self, found: Sequence[tuple[int, float]], token: int, spent_ms: float) -> None:
        self._unlearned = (self._unlearned + 1) % LEARN_FOUND
        if spent_ms or not self._unlearned:
            self.beliefs.acceptance.learn(*first_level(found, token))
        if spent_ms:
            self.rule.spare(-spent_ms)
            self._finding_ms = followed(self._finding_ms, spent_ms)

    def reason(self, *, begun: bool) -> Reason:
        self._learn_plain()
        if self._weigh.lines >= self.max_rows:
            return Reason("planned", 0, end="rows")
        if self.rule.abstained:
            return Reason("abstaining")
        if not begun and self._may_draft:
            return Reason("resting")
        if not begun or (self._newest is None and not self._hopes):
            surest, plain_ms = self.rule.surest(self._foresight.planning_ms[False])
            return Reason("hopeless", 0, plain_ms, surest)
        if self._newest is None:
            return self._account.of_no_level()
        return self._account.of_plan(*self._newest, self.max_rows)

    def _drafts(self, tree: DraftTree, conditional: FloatArray) -> Drafts:
        """By rows alone: for plans without a forecast, the unions that so many rows have in the
        mean; before a forecast, free experts, so that what cannot pay even then needs none."""
        if self._folded is None:
            folded = self.live.now.at(self._weigh.context, self.rule.switching.by_nodes())
            self._folded = replace(folded, resident=self.live.resident)
        cost = self._folded
        unions = self.beliefs.expected_unions[: cost.max_rows + 1]
        if self._forecasting:
            unions = np.full_like(unions, self._weigh.root_union)
        rate = None if self.ratio else self.rule.rate
        return Drafts(tree, conditional, cost, unions, self._weigh.root_union, rate, self.max_rows)

    def _best(
        self,
        drafts: Drafts,
        levels: Levels,
        frontier: IntArray = NOTHING,
        hoped: FloatArray = NO_HOPES,
    ) -> Plan:
        """The best plan after drafting `levels`, with a child hoped for behind each node of
        `frontier`, of that chance and without new experts."""
        chances = drafts.chances
        if len(frontier):
            chances = np.concatenate([chances, chances[frontier] * hoped])
        spent_ms = self._weigh.spent_ms(levels)
        plan = drafts.searched(frontier, chances, None, drafts.by_rows, spent_ms)
        if not self._forecasting or np.count_nonzero(plan.keep) == self._weigh.lines:
            return plan
        if drafts.forecast is None:
            assert self._forecast is not None
            drafts.foresee(self._forecast, self.beliefs)
        assert drafts.forecast is not None
        forecast = drafts.forecast.with_likenesses(frontier)
        return drafts.searched(frontier, chances, forecast, drafts.by_experts, spent_ms)

    def _forecast_pays(self) -> bool:
        """Whether to forecast in the coming cycle."""
        if self._forecast is None:
            return False
        row_ms = self.live.now.expert_ms[min(2, self.max_rows)] * self.beliefs.expected_union(1)
        limit = None if self.live.resident is not None else float(row_ms)
        return self._foresight.pays(self.rule.rate, limit)

    def _offer(self, drafts: Drafts, plan: Plan) -> float:
        """Tokens that the best plan would gain, were switching free."""
        hoped, unions = self._found is None and bool(self._hopes), self.beliefs.expected_unions
        spent_ms = self._weigh.spent_ms(self._levels_drafted)
        return self.rule.offer(drafts, plan, unions, spent_ms, self._weigh.plain_ms, hoped=hoped)

    def _learn_saving(self, drafts: Drafts, worth: float) -> None:
        """Learns what the forecast was worth."""
        if not (self._forecasting and self._foresight.looks):
            return
        saved = 0.0
        if drafts.forecast is not None:
            spent_ms = self._weigh.spent_ms(self._levels_drafted)
            other = drafts.planned_by_rows(self.beliefs.expected_unions, spent_ms)
            saved = worth - self._weigh.worth(*other)
        self._foresight.learn_saved(saved)
