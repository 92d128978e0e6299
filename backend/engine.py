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
    NO_OVERHEADS,
    NOTHING_FOUND,
    PROMPT,
    Beliefs,
    Bitsets,
    DraftTree,
    Found,
    LiveCost,
    Policy,
    Spec,
    found_by,
    make_policy,
    pack,
)

from .context import BATCH, TREE_LIMIT, Context
from .drafter import PENDING, Draft, Drafter, draft
from .errors import SpecfitError
from .generation import Generation
from .held import uses_path
from .ledger import Ledger, Times, Verified
from .line import Line, Turn
from .loading import Loaded, LoadOptions, load
from .memory import keep
from .model import Message, Progress, Prompt
from .report import CycleReport
from .rope import make_room
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
        self.measured = loaded.measured
        self._new_beliefs: Callable[[], Beliefs] = loaded.new_beliefs
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
        self._memory = loaded.memory
        self._held = loaded.held
        self._ledger = Ledger(
            loaded.own_cost,
            loaded.overheads,
            n_used=self.model.info.n_experts_used,
            measured=bool(loaded.drafters),
        )
        self._prompt_tokens, self._prompt_ms = 1.0, 0.0  # of the last few prompts

    @classmethod
    def load(cls, options: LoadOptions, progress: Progress | None = None) -> Engine:
        """Loads model, head and costs; `progress` is told 0..1 and returns False to cancel. From
        then on numpy's matrix products take one thread in this process: more would slow llama.cpp.

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
                + make_room(len(prompt.tokens), self.ctx, self.model.info)
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
        self._ledger.decoded(PROMPT)
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
            self._ledger.costs[policy].resident = self._held.sets
        policy.behind(self._ledger.before)
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
        self.context.decode_tree(tree, [line.number for line in lines], choice.padding)
        verified = time.perf_counter()

        walks = [
            walk(tree, turn.sampled_by(self.context), turn.take, root)
            for root, turn in enumerate(turns)
        ]
        paths, committed = [path for path, _ in walks], [tokens for _, tokens in walks]
        self.context.commit(paths)
        used = None if self._held is None else self._held.turn(sum(map(len, committed)))
        for line, path, tokens in zip(lines, paths, committed, strict=True):
            line.commit(tokens[:-1], path)

        times = Times(begun, planned, verified, time.perf_counter())
        accepted = [node for path in paths for node in path]
        done = Verified(
            tree=tree,
            path=accepted,
            choice=choice,
            draft=draft,
            looked_up=found.taken,
            waiting=waiting,
            context=context,
            committed=sum(map(len, committed)),
            experts=self.observed_experts(len(tree), choice.padding) if observing else None,
            observed=observing,
            used=used,
        )
        report = self._ledger.enter(done, policy, times)
        saw = drafting or found.taken
        drafted = Drafted(draft.tree, choice, accepted, done.experts) if saw else None
        return Cycle(committed, report, drafted)

    def settle(self, line: Line, token: int, rows: int) -> None:
        """Decodes so many rows behind a line's text, and drops them again: as if its own cycle had
        been the last one, where another line's was."""
        before = line.n_past
        self.context.decode_tree(DraftTree.of_root(token), [line.number], padding=rows - 1)
        self.context.commit([[0]])
        line.truncate(before)
        if self._held is not None:
            self._held.skip()
        self._ledger.decoded(rows)

    def _look_up(self, turns: Sequence[Turn], policy: Policy, room: int, context: int) -> Found:
        """What the lookups of the turns' texts find, before anything else is drafted."""
        if DRAFTERS[LOOKUP] not in self.drafters or room <= 0:
            return NOTHING_FOUND
        return found_by(
            lambda: [turn.line.looked_up() for turn in turns],
            [turn.root for turn in turns],
            policy,
            room,
            context,
            has_head=DRAFTERS[HEAD] in self.drafters,
        )

    def _draft(self, lines: Sequence[Line], policy: Policy, room: int, found: DraftTree) -> Draft:
        drafters = [line.drafter for line in lines if line.drafter is not None]
        # Of the texts without their roots, as they were when these looked first.
        lookups = [line.lookup for line in lines if line.lookup is not None and policy.looks_up]
        return draft(drafters, [line.tokens for line in lines], policy, room, found, lookups)

    def _plain_cycle(self, begun: float, turn: Turn, policy: Policy, found: Found) -> Cycle:
        """The cycle of a root alone, without the machinery of trees: on a small model that costs
        a tenth of the time (LOG.md). found: what was not worth verifying, to learn from."""
        line, planned = turn.line, time.perf_counter()
        context = line.n_past
        self.context.decode_token(turn.root, line.number)
        verified = time.perf_counter()
        token = turn.sampler.sample(self.context, 0)
        turn.take(token)
        line.tokens.append(turn.root)
        used = None if self._held is None else self._held.turn(1)
        if self.drafts:
            line.commit((), _FIRST_ROW)
        times = Times(begun, planned, verified, time.perf_counter())
        report = self._ledger.enter_plain(policy, context, token, found, used, times)
        return Cycle([[token]], report)

    def _arm(self, tree: DraftTree, policy: Policy) -> bool:
        """Has the experts of the coming decode copied, if there is something to learn from them."""
        observer = self.context.observer
        if observer is None or not policy.looks(tree):
            return False
        observer.arm()
        return True

    def observed_experts(self, nodes: int, padding: int = 0) -> Bitsets | None:
        """uint64 [node, layer, word] of the observed decode; None if a layer was not seen."""
        observer = self.context.observer
        if observer is None:
            return None
        observer.disarm()
        ids = observer.selections(nodes + padding)
        return None if ids is None else pack(np.maximum(ids[:nodes], 0), self.model.info.n_experts)

    def policy(self, spec: Spec) -> Policy:
        """The policy of a mode, with what it has learned; modes learn apart from each other, costs
        too: a mode of large trees tells little of what one row takes, and may mislead."""
        known = self._policies.get(spec.text)
        if known is None:
            own = LiveCost(self._ledger.cost, follows=True)
            known = self._policy(spec, self._new_beliefs(), own)
            self._policies[spec.text] = known
            self._ledger.costs[known] = own
        return known

    def _policy(self, spec: Spec, beliefs: Beliefs, own: LiveCost) -> Policy:
        """For this machine, or for one whose costs were asked for; its overheads nobody knows."""
        steering, overheads = own, self._ledger.overheads
        if self._steering_cost is not None:
            steering, overheads = LiveCost(self._steering_cost, follows=False), NO_OVERHEADS
        return make_policy(spec, beliefs, steering, TREE_LIMIT, overheads, self.drafters)
