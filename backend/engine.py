"""The engine: one model, one context, its drafters, and the cycle that makes text.

    look up -> worth drafting at all? -> draft a level -> forecast, plan, worth another? -> (again)
    -> verify the subtree in one decode -> walk it with llama.cpp's sampler -> commit -> learn

`Engine.cycle` is that line; everything it calls is a part of its own. A cycle is of one line of
text or of several, whose drafts compete for the rows of the decode that they share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specfit.planner import (
    DRAFTERS,
    HEAD,
    LOOKUP,
    NOTHING_FOUND,
    Beliefs,
    Bitsets,
    DraftTree,
    Found,
    LiveCost,
    Outcome,
    Policy,
    Spec,
    drafted_by_lookup,
    looked_up,
    make_policy,
    pack,
    union_per_layer,
)

from .context import BATCH, TREE_LIMIT, Context
from .drafter import PENDING, Draft, Drafter, draft
from .errors import SpecfitError
from .generation import Generation
from .held import NOT_CACHED, CacheUse, uses_path
from .line import Line, Turn
from .loading import Loaded, LoadOptions, load
from .memory import keep
from .model import Message, Progress, Prompt
from .report import CycleReport
from .sampling import Sampler, Sampling
from .verify import walk
from .view import Drafted

_FIRST_ROW = np.zeros(1, np.intp)


@dataclass(frozen=True)
class Cycle:
    """tokens: committed, in order, for every turn; the last one of each is its next root. drafted:
    None if nothing was."""

    tokens: list[list[int]]
    report: CycleReport
    drafted: Drafted | None = None


class Engine:
    """Use `Engine.load`. One thread at a time."""

    def __init__(self, loaded: Loaded) -> None:
        self.model = loaded.model
        self.context: Context = loaded.context
        self.notices = loaded.notices
        self.description = loaded.description
        self.recommended_sampling = loaded.sampling
        self._new_beliefs: Callable[[], Beliefs] = loaded.new_beliefs
        self._own_cost = loaded.own_cost
        self._steering_cost = loaded.steering_cost
        self._head = loaded.head
        heads = [None] * loaded.lines if loaded.head is None else loaded.head.copies(loaded.lines)
        self.drafters = loaded.drafters
        self.lines = [
            Line(
                self.context,
                number,
                None if head is None else Drafter(head, max(BATCH, PENDING // loaded.lines)),
                looks_up=DRAFTERS[LOOKUP] in loaded.drafters,
            )
            for number, head in enumerate(heads)
        ]
        self._prompt_cache = loaded.prompt_cache
        if loaded.prompt_cache is not None:
            told = loaded.prompt_cache.restore(self.lines[0])
            self.notices += (told,) if told else ()
        self.not_kept = ""
        self._policies: dict[str, Policy] = {}
        self._costs: dict[Policy, LiveCost] = {}  # of cycles here, as followed in each mode
        self._memory = loaded.memory
        self._held = loaded.held
        # A cycle without drafts is always alike: no planner is asked about it.
        self._plain_union = float(self.model.info.n_experts_used)
        self._plain_weighted = self._plain_union * float(loaded.own_cost.layer_weights.sum())
        self._rows_before = 1
        self._overheads = loaded.overheads
        self._learning_ms = 0.0  # in the last drafted cycle
        self._prompt_tokens, self._prompt_ms = 1.0, 0.0  # of the last few prompts

    @classmethod
    def load(cls, options: LoadOptions, progress: Progress | None = None) -> Engine:
        """Loads model, head and costs; `progress` is told 0..1 and returns False to cancel.

        Raises SpecfitError or ModelFileError, in one sentence, for what cannot be loaded.
        """
        return cls(load(options, progress))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees everything, and keeps what was learned about the pair of models, and the prompt
        cache; `not_kept` says why that could not be written, if so."""
        learner = self._policies.get("specfit")
        if self._memory is not None and learner is not None:
            keep(learner.beliefs, self._memory)
        if self._prompt_cache is not None:
            self.not_kept = self._prompt_cache.keep(self.lines[0])
        if self._held is not None:
            self._held.keep(uses_path(self.model.info))
        self._memory = self._prompt_cache = self._held = None
        if self._head is not None:
            self._head.close()
        self.context.close()
        self.model.close()

    def trouble(self) -> str | None:
        """A sentence for the user on what went wrong and was got over, if there is a new one."""
        return None if self._held is None else self._held.trouble()

    @property
    def ctx(self) -> int:
        """Tokens that a prompt and its answer may take together."""
        return self.context.ctx

    @property
    def drafts(self) -> bool:
        """Whether there is anything to draft with."""
        return bool(self.drafters)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return len(self.model.prompt_tokens(messages))

    def prompt(self, messages: Sequence[Message], thinking: bool | None = None) -> Prompt:
        """Raises SpecfitError if it has no tokens, or too many for the context."""
        prompt = self.model.prompt(messages, thinking, room=self.ctx)
        if not prompt.tokens:
            raise SpecfitError("the prompt is empty")
        if len(prompt.tokens) >= self.ctx:
            raise SpecfitError(
                f"the prompt has {len(prompt.tokens)} tokens and the context holds {self.ctx}; "
                "shorten it or raise -c"
            )
        return prompt

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of `prompt`."""
        return self.prompt(messages).tokens

    def generate(
        self,
        messages: Sequence[Message],
        *,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        spec: Spec | None = None,
        stop: Sequence[str] = (),
        thinking: bool | None = None,
    ) -> Generation:
        """An answer to `messages`, to be iterated over; see `Generation`.

        sampling: None takes the model's recommended values. max_tokens: None goes on until the
        context ends. spec: None means specfit. stop: strings that end the answer before them.
        thinking: whether the model is to think first; None leaves it to the chat template.
        Raises SpecfitError if the prompt does not fit the context.
        """
        prompt = self.prompt(messages, thinking)
        policy = self.policy(spec or Spec.parse("specfit"))
        sampling = sampling or self.recommended_sampling
        policy.beliefs.acceptance.heat(sampling.temp)
        sampler = Sampler(sampling)
        return Generation(self, prompt, policy, sampler, max_tokens, stop)

    @property
    def prompt_token_ms(self) -> float:
        """What processing a prompt takes a token."""
        return self._prompt_ms / self._prompt_tokens

    def learn_prompt(self, tokens: int, ms: float) -> None:
        """Learns from a prompt of which so many tokens were processed."""
        if self._held is not None:
            self._held.skip()
        self._prompt_tokens = 0.7 * self._prompt_tokens + tokens
        self._prompt_ms = 0.7 * self._prompt_ms + ms

    def forget(self) -> None:
        """Drops the KV cache, so that the next prompts are processed whole."""
        for line in self.lines:
            line.truncate(0)

    def cycle(self, turns: Sequence[Turn], policy: Policy) -> Cycle:
        """Commits at least one token behind the root of every turn; turns are of different lines.

        All of them are verified in one decode.
        """
        begun = time.perf_counter()
        lines = [turn.line for turn in turns]
        for line in lines:
            line.remember_prompt()
        context = sum(line.n_past for line in lines) // len(lines)
        if self._held is not None:
            self._costs[policy].resident = self._held.sets
        room = min(line.room for line in lines)
        roots = [turn.root for turn in turns]
        found = self._look_up(turns, policy, room, context)
        drafting, waiting = room > 0 and all(line.tracking for line in lines), 0
        if drafting:
            waiting = sum(line.drafter.waiting for line in lines if line.drafter is not None)
            drafting = policy.begin(context, roots, waiting)
        if len(turns) == 1 and not drafting and not found.taken:
            return self._plain_cycle(begun, turns[0], policy, found)
        for turn in turns:
            turn.line.tokens.append(turn.root)
        tree = found.tree or DraftTree.of_roots(roots)
        draft = self._draft(lines, policy, room, tree) if drafting else Draft(tree)
        choice = policy.choose(draft.tree)
        tree = draft.tree.subtree(choice.keep)
        observing = self._arm(tree, policy)

        planned = time.perf_counter()
        self.context.decode_tree(tree, [line.number for line in lines])
        verified = time.perf_counter()

        walks = [
            walk(tree, turn.sampled_by(self.context), turn.take, root)
            for root, turn in enumerate(turns)
        ]
        paths, committed = [path for path, _ in walks], [tokens for _, tokens in walks]
        self.context.commit(paths)
        used = self._turn_cache(sum(map(len, committed)))
        for line, path in zip(lines, paths, strict=True):
            line.commit(tree.tokens[path[1:]].tolist(), path)

        walked = time.perf_counter()
        experts = self.observed_experts(len(tree)) if observing else None
        observe_ms = self._overheads.observe_ms if observing else 0.0
        head_ms = draft.head_ms + draft.catch_up_ms
        plan_ms = self._learning_ms + (planned - begun) * 1e3 - head_ms
        accepted = [node for path in paths for node in path]
        outcome = Outcome(
            tree=tree,
            path=accepted,
            choice=choice,
            levels=draft.levels,
            context=context,
            experts=experts,
            draft_ms=draft.head_ms,
            plan_ms=plan_ms,
            verify_ms=(walked - planned) * 1e3 - observe_ms,
            catch_up_ms=draft.catch_up_ms,
            paid_union=self._paid(used),
            looked_up=found.taken,
        )
        waited_ms = waiting * self._overheads.position_ms if draft.levels else 0.0
        predicted_ms = waited_ms + observe_ms + found.taken * policy.planning_ms
        predicted_ms += self._costs[policy].cycle_ms(
            len(tree), choice.union, context, self._rows_before, draft.levels, policy.planning_ms
        )
        predicted_union = policy.beliefs.per_layer(choice.union, len(tree))
        union = self._learn(outcome, policy)
        ended = time.perf_counter()
        self._learning_ms = (ended - walked) * 1e3
        report = CycleReport(
            context=context,
            rows=len(tree),
            accepted=len(accepted) - len(turns),
            committed=sum(map(len, committed)),
            union_per_layer=union,
            union_observed=experts is not None or self._held is not None,
            predicted_union=predicted_union,
            draft_ms=head_ms,
            plan_ms=plan_ms,
            verify_ms=(verified - planned) * 1e3,
            observe_ms=observe_ms,
            predicted_cycle_ms=predicted_ms,
            measured_cycle_ms=(ended - begun) * 1e3,
            predicted_committed=choice.committed,
            lines=len(turns),
            accepted_by=tuple(
                int((tree.source[accepted] >> bit & 1).sum()) for bit in range(len(DRAFTERS))
            ),
            hits=used.hits,
            misses=used.misses,
            uploaded=used.uploaded,
        )
        saw = drafting or found.taken
        drafted = Drafted(draft.tree, choice, accepted, experts) if saw else None
        return Cycle(committed, report, drafted)

    def _look_up(self, turns: Sequence[Turn], policy: Policy, room: int, context: int) -> Found:
        """What the lookups of the turns' texts find, before anything else is drafted."""
        if DRAFTERS[LOOKUP] not in self.drafters or room <= 0:
            return NOTHING_FOUND
        roots = [turn.root for turn in turns]
        if policy.looks_up:
            lookups = [turn.line.looked_up() for turn in turns]
            return looked_up(lookups, roots, policy, room, context)
        if DRAFTERS[HEAD] in self.drafters or not policy.begin(context, roots):
            return NOTHING_FOUND
        return drafted_by_lookup([turn.line.looked_up() for turn in turns], roots, policy, room)

    def _draft(self, lines: Sequence[Line], policy: Policy, room: int, found: DraftTree) -> Draft:
        drafters = [line.drafter for line in lines if line.drafter is not None]
        # Of the texts without their roots, as they were when these looked first.
        lookups = [line.lookup for line in lines if line.lookup is not None and policy.looks_up]
        return draft(drafters, [line.tokens for line in lines], policy, room, found, lookups)

    def _plain_cycle(self, begun: float, turn: Turn, policy: Policy, found: Found) -> Cycle:
        """The cycle of a root alone, without the machinery of trees: on a small model that costs
        a tenth of the time (LOG.md). found: what was not worth verifying, to learn from."""
        line, planned = turn.line, time.perf_counter()
        context, before = line.n_past, self._rows_before
        self.context.decode_token(turn.root, line.number)
        verified = time.perf_counter()
        token = turn.sampler.sample(self.context, 0)
        turn.take(token)
        line.tokens.append(turn.root)
        used = self._turn_cache(1)
        union = predicted_union = self._plain_union
        # Without a drafter nothing is planned, so nothing was measured to predict from.
        predicted_ms = 0.0
        if self.drafts:
            line.commit((), _FIRST_ROW)
            cost, paid = self._costs[policy], self._paid(used)
            weighted = expected = self._plain_weighted
            if paid is not None:
                weighted, expected = paid, float(policy.beliefs.expected_unions[1])
                union = policy.beliefs.per_layer(weighted, 1)
                predicted_union = policy.beliefs.per_layer(expected, 1)
            predicted_ms = cost.verify_ms(1, expected, context, before)
            ms = (time.perf_counter() - begun) * 1e3
            cost.learn_verify(1, weighted, context, before, ms)
            policy.learn_plain(context, paid)
            if found.first:
                spent_ms = 0.0 if found.tree is None else (planned - begun) * 1e3
                policy.learn_found(found.first, token, spent_ms)
            self._rows_before = 1
        ended = time.perf_counter()
        report = CycleReport(
            context=context,
            rows=1,
            accepted=0,
            committed=1,
            union_per_layer=union,
            union_observed=True,
            predicted_union=predicted_union,
            draft_ms=0.0,
            plan_ms=0.0,
            verify_ms=(verified - begun) * 1e3,
            observe_ms=0.0,
            predicted_cycle_ms=predicted_ms,
            measured_cycle_ms=(ended - begun) * 1e3,
            predicted_committed=1.0,
            hits=used.hits,
            misses=used.misses,
            uploaded=used.uploaded,
        )
        return Cycle([[token]], report)

    def _turn_cache(self, committed: int) -> CacheUse:
        """Has the cache of experts follow a decode that committed so many tokens."""
        return NOT_CACHED if self._held is None else self._held.turn(committed)

    def _paid(self, used: CacheUse) -> float | None:
        """What the decode paid for, in weighted experts; None without a cache."""
        cost = self._own_cost
        return None if self._held is None else used.paid(cost.layer_weights, cost.use_share)

    def _learn(self, outcome: Outcome, policy: Policy) -> float:
        """Has costs and policy learn from a cycle; returns its mean union per layer, as
        expected where it was not observed."""
        rows, beliefs = outcome.rows, policy.beliefs
        weighted = outcome.choice.union
        union = beliefs.per_layer(weighted, rows)
        if outcome.paid_union is not None:
            weighted = outcome.paid_union
            union = beliefs.per_layer(weighted, rows)
        elif outcome.experts is not None:
            per_layer = union_per_layer(outcome.experts)
            weighted = float(per_layer @ beliefs.layer_weights)
            union = weighted / beliefs.weight if beliefs.weight else float(per_layer.mean())
        if self.drafts:  # else nothing was measured
            cost = self._costs[policy]
            cost.learn_draft(outcome.levels, outcome.draft_ms)
            cost.learn_verify(rows, weighted, outcome.context, self._rows_before, outcome.verify_ms)
            policy.learn(outcome)
        self._rows_before = rows
        return union

    def _arm(self, tree: DraftTree, policy: Policy) -> bool:
        """Has the experts of the coming decode copied, if there is something to learn from them."""
        observer = self.context.observer
        if observer is None or not policy.looks(tree):
            return False
        observer.arm()
        return True

    def observed_experts(self, rows: int) -> Bitsets | None:
        """uint64 [row, layer, word] of the observed decode; None if a layer was not seen."""
        observer = self.context.observer
        if observer is None:
            return None
        observer.disarm()
        ids = observer.selections(rows)
        return None if ids is None else pack(np.maximum(ids, 0), self.model.info.n_experts)

    def policy(self, spec: Spec) -> Policy:
        """The policy of a mode, with what it has learned; modes learn apart from each other, costs
        too: a mode of large trees tells little of what one row takes, and may mislead."""
        known = self._policies.get(spec.text)
        if known is None:
            own = steering = LiveCost(self._own_cost, follows=True)
            if self._steering_cost is not None:
                steering = LiveCost(self._steering_cost, follows=False)
            known = make_policy(
                spec, self._new_beliefs(), steering, TREE_LIMIT, self._overheads, self.drafters
            )
            self._policies[spec.text] = known
            self._costs[known] = own
        return known
