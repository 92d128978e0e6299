"""The engine: one model, one context, one draft head, and the cycle that makes text.

    worth drafting at all? -> draft a level -> forecast, plan, worth another? -> (again)
    -> verify the subtree in one decode -> walk it with llama.cpp's sampler -> commit -> learn

`Engine.cycle` is that line; everything it calls is a part of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specfit.planner import (
    Beliefs,
    Bitsets,
    DraftTree,
    LiveCost,
    Outcome,
    Policy,
    Spec,
    make_policy,
    pack,
    union_per_layer,
)

from .context import BATCH, TREE_LIMIT, Context
from .drafter import Drafter
from .errors import SpecfitError
from .generation import Generation
from .loading import Loaded, LoadOptions, load
from .memory import keep
from .model import Message, Progress, Prompt
from .report import CycleReport
from .sampling import Sampler, Sampling
from .verify import walk
from .view import Drafted


@dataclass(frozen=True)
class Cycle:
    """tokens: committed, in order; the last is the next root. drafted: None if nothing was."""

    tokens: list[int]
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
        self.drafter = None if loaded.head is None else Drafter(loaded.head)
        self._policies: dict[str, Policy] = {}
        self._costs: dict[Policy, LiveCost] = {}  # of cycles here, as followed in each mode
        self._memory = loaded.memory
        # A cycle without drafts is always alike: no planner is asked about it.
        self._plain_union = float(self.model.info.n_experts_used)
        self._plain_weighted = self._plain_union * float(loaded.own_cost.layer_weights.sum())
        self._rows_before = 1
        self._tokens: list[int] = []  # in the KV cache, sequence 0
        self._observe_ms = loaded.observe_ms
        self._unremembered = 0  # positions of the last prompt batch whose features are to be kept
        self._tracking = False  # whether the head's features of the present text are kept
        self._learning_ms = 0.0  # in the last drafted cycle

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
        """Frees everything, and keeps what was learned about the pair of models."""
        learner = self._policies.get("specfit")
        if self._memory is not None and learner is not None:
            keep(learner.beliefs, self._memory)
        self._memory = None
        self.context.close()
        self.model.close()

    @property
    def ctx(self) -> int:
        """Tokens that prompt and answer may take together."""
        return self.context.ctx

    @property
    def drafts(self) -> bool:
        """Whether there is a head to draft with."""
        return self.drafter is not None

    @property
    def follows(self) -> bool:
        """Whether drafting is possible in the present text: one that was begun without hope of
        drafts has left no features to draft from."""
        return self._tracking

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return len(self.model.prompt_tokens(messages))

    def prompt(self, messages: Sequence[Message], thinking: bool | None = None) -> Prompt:
        """Raises SpecfitError if it has no tokens, or too many for the context."""
        prompt = self.model.prompt(messages, thinking)
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

    def forget(self) -> None:
        """Drops the KV cache, so that the next prompt is processed whole."""
        self._truncate(0)

    def prefill(self, prompt: Sequence[int], policy: Policy, goes_on: Callable[[], bool]) -> bool:
        """Makes the cache hold `prompt`, reusing what it shares with the text before it.

        goes_on: asked before every batch. Returns whether all of it was processed.
        """
        drafter = self.drafter if policy.may_draft else None
        self._tracking = drafter is not None
        # After an interrupt the text may be a token ahead of the cache.
        shared = min(_shared_prefix(self._tokens, prompt), self.context.n_past)
        # The last token is decoded anew for its logits, and one more for the feature that the
        # head pairs with the first new token.
        keep = max(0, min(shared, len(prompt) - 1) - (drafter is not None))
        if drafter is not None:
            keep = min(keep, drafter.n_known)
        self._truncate(keep)
        for start in range(keep, len(prompt), BATCH):
            batch = prompt[start : start + BATCH]
            self.context.decode_prompt(batch, goes_on)
            if self.context.n_past == start:
                return False
            self._tokens += batch
            self._unremembered = len(batch) if drafter is not None else 0
            if len(self._tokens) < len(prompt):
                self.remember_prompt()
        return True

    def remember_prompt(self) -> None:
        """Keeps the head's features of the batch just decoded. Of a prompt's last one that is put
        off until the first token is out."""
        if self._unremembered and self.drafter is not None:
            self.drafter.remember(self.context.features(self._unremembered), self._tokens)
        self._unremembered = 0

    def cycle(
        self, root: int, policy: Policy, sampler: Sampler, goes_on: Callable[[int], bool]
    ) -> Cycle:
        """Commits at least one token after `root`, the last sampled token.

        goes_on: told every token as it is committed; False ends the text with it.
        """
        begun = time.perf_counter()
        self.remember_prompt()
        context = self.context.n_past
        room = self.ctx - 1 - context
        drafter = self.drafter if self.follows and room > 0 else None
        if drafter is None or not policy.begin(context, [root]):
            return self._plain_cycle(begun, root, policy, sampler, goes_on)
        self._tokens.append(root)
        draft = drafter.draft(self._tokens, policy, room)
        choice = policy.choose(draft.tree)
        tree = draft.tree.subtree(choice.keep)
        observing = self._arm(tree, policy)

        planned = time.perf_counter()
        self.context.decode_tree(tree)
        verified = time.perf_counter()

        path, committed = walk(tree, lambda row: sampler.sample(self.context, row), goes_on)
        self.context.commit(tree, path)
        self._tokens += tree.tokens[path[1:]].tolist()
        drafter.remember(self.context.features(len(tree))[path])

        walked = time.perf_counter()
        experts = self.observed_experts(len(tree)) if observing else None
        observe_ms = self._observe_ms if observing else 0.0
        plan_ms = self._learning_ms + (planned - begun) * 1e3 - draft.head_ms
        outcome = Outcome(
            tree=tree,
            path=path,
            choice=choice,
            levels=draft.levels,
            context=context,
            experts=experts,
            draft_ms=draft.head_ms,
            plan_ms=plan_ms,
            verify_ms=(walked - planned) * 1e3 - observe_ms,
        )
        predicted_ms = observe_ms + self._costs[policy].cycle_ms(
            len(tree), choice.union, context, self._rows_before, draft.levels, policy.planning_ms
        )
        predicted_union = policy.beliefs.per_layer(choice.union, len(tree))
        union = self._learn(outcome, policy)
        ended = time.perf_counter()
        self._learning_ms = (ended - walked) * 1e3
        report = CycleReport(
            context=context,
            rows=len(tree),
            accepted=len(path) - 1,
            committed=len(committed),
            union_per_layer=union,
            union_observed=experts is not None,
            predicted_union=predicted_union,
            draft_ms=draft.head_ms,
            plan_ms=plan_ms,
            verify_ms=(verified - planned) * 1e3,
            observe_ms=observe_ms,
            predicted_cycle_ms=predicted_ms,
            measured_cycle_ms=(ended - begun) * 1e3,
            predicted_committed=choice.committed,
        )
        return Cycle(committed, report, Drafted(draft.tree, choice, path, experts))

    def _plain_cycle(
        self,
        begun: float,
        root: int,
        policy: Policy,
        sampler: Sampler,
        goes_on: Callable[[int], bool],
    ) -> Cycle:
        """The cycle of a root alone, without the machinery of trees: on a small model that costs
        a tenth of the time (LOG.md)."""
        context, before = self.context.n_past, self._rows_before
        self.context.decode_token(root)
        verified = time.perf_counter()
        token = sampler.sample(self.context, 0)
        goes_on(token)
        self._tokens.append(root)
        # Without a head nothing is planned, so nothing was measured to predict from.
        predicted_ms = 0.0
        if self.drafter is not None:
            if self._tracking:
                self.drafter.remember(self.context.features(1), self._tokens)
            cost = self._costs[policy]
            predicted_ms = cost.verify_ms(1, self._plain_weighted, context, before)
            ms = (time.perf_counter() - begun) * 1e3
            cost.learn_verify(1, self._plain_weighted, context, before, ms)
            policy.learn_plain(context)
            self._rows_before = 1
        ended = time.perf_counter()
        report = CycleReport(
            context=context,
            rows=1,
            accepted=0,
            committed=1,
            union_per_layer=self._plain_union,
            union_observed=True,
            predicted_union=self._plain_union,
            draft_ms=0.0,
            plan_ms=0.0,
            verify_ms=(verified - begun) * 1e3,
            observe_ms=0.0,
            predicted_cycle_ms=predicted_ms,
            measured_cycle_ms=(ended - begun) * 1e3,
            predicted_committed=1.0,
        )
        return Cycle([token], report)

    def _learn(self, outcome: Outcome, policy: Policy) -> float:
        """Has costs and policy learn from a drafted cycle; returns its mean union per layer, as
        expected where it was not observed."""
        rows, beliefs = outcome.rows, policy.beliefs
        weighted = outcome.choice.union
        union = beliefs.per_layer(weighted, rows)
        if outcome.experts is not None:
            per_layer = union_per_layer(outcome.experts)
            weighted = float(per_layer @ beliefs.layer_weights)
            union = weighted / beliefs.weight if beliefs.weight else float(per_layer.mean())
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
            known = make_policy(spec, self._new_beliefs(), steering, TREE_LIMIT, self._observe_ms)
            self._policies[spec.text] = known
            self._costs[known] = own
        return known

    def _truncate(self, n: int) -> None:
        self.context.truncate(n)
        self._unremembered = 0
        del self._tokens[n:]
        if self.drafter is not None:
            self.drafter.truncate(n)


def _shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two texts share."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
