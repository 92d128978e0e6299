"""Records what any plan could have met: at every token the whole candidate tree, verified.

Each token costs a draft of the widest tree and a decode of all of it, of which one token is kept:
slow, and independent of plans, which is the point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specfit.planner import DraftTree, Policy, Spec
from specfit.planner.policies import Eagle3
from specfit.planner.trace import TracedStep, TracedText
from specfit.planner.tree import BoolArray, FloatArray, IntArray, best_nodes

from .context import TREE_LIMIT, Context
from .drafter import Drafter, draft
from .engine import Engine
from .errors import SpecfitError
from .model import Message
from .sampling import Sampler, Sampling

# EAGLE-3's published tree; chains of this length are in the candidates whatever their probability.
DEPTH, BRANCHING = 7, 10
CHAIN = 4


class _Candidates(Eagle3):
    """EAGLE-3's tree as large as a decode allows, with the head's likeliest chain in it."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.beliefs, TREE_LIMIT, TREE_LIMIT, DEPTH, BRANCHING)
        self.expanded = [0]  # in the order of the head's slots

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        nodes, branching = super().expand(tree, room)
        chain = likeliest_chain(tree)
        if len(nodes) and len(chain) <= CHAIN and chain[-1] not in nodes:
            nodes = np.sort(np.append(nodes, np.int32(chain[-1]))).astype(np.int32)
        if len(tree) > 1:
            self.expanded += nodes.tolist()
        return nodes, branching

    def kept(self, tree: DraftTree) -> BoolArray:
        scores = tree.path_probs.copy()
        scores[likeliest_chain(tree)[: CHAIN + 1]] = 2.0
        return best_nodes(scores, TREE_LIMIT)


def likeliest_chain(tree: DraftTree) -> list[int]:
    """The nodes from the root on, each the most probable child of the one before."""
    chain = [0]
    while len(children := np.flatnonzero(tree.parents == chain[-1])):
        chain.append(int(children[tree.probs[children].argmax()]))
    return chain


def record(
    engine: Engine,
    name: str,
    messages: Sequence[Message],
    sampling: Sampling,
    max_tokens: int,
    goes_on: Callable[[], bool] = lambda: True,
) -> TracedText:
    """The trace of an answer to `messages`, of at most `max_tokens` tokens.

    goes_on: asked before every token. Raises SpecfitError without a head or without a look at
    the experts of a model that has them, or if the prompt does not fit.
    """
    line, context = engine.lines[0], engine.context
    drafter = line.drafter
    if drafter is None or (engine.model.info.n_experts and context.observer is None):
        raise SpecfitError("only a model with a draft head, whose experts can be seen, is traced")
    prompt = engine.prompt_tokens(messages)
    policy = engine.policy(Spec.parse("specfit"))
    engine.forget()
    line.prefill(prompt, True, lambda: True)
    line.remember_prompt()
    sampler = Sampler(sampling)
    probabilities = Sampler(sampling if sampling.temp > 0 else Sampling(temp=1.0, min_p=0.0))
    text, root = list(prompt), sampler.sample(context, -1)
    steps: list[TracedStep] = []
    for _ in range(min(max_tokens, engine.ctx - 1 - len(prompt))):
        if engine.model.ends(root) or not goes_on():
            break
        text.append(root)
        step = _step(engine, drafter, policy, text, sampler, probabilities)
        steps.append(step)
        root = step.next
    engine.forget()
    return TracedText(name, np.array(prompt, np.int32), tuple(steps))


def _step(
    engine: Engine,
    drafter: Drafter,
    policy: Policy,
    text: Sequence[int],
    sampler: Sampler,
    probabilities: Sampler,
) -> TracedStep:
    context, forecast = engine.context, policy.beliefs.forecast
    before = context.n_past[0]
    candidates = _Candidates(policy)
    drafted = draft([drafter], [text], candidates, engine.ctx - 1 - before)
    states = drafter.head.states(0, len(candidates.expanded))
    keep = candidates.kept(drafted.tree)
    tree = drafted.tree.subtree(keep)
    expected = None if forecast is None else forecast.of(tree)
    if context.observer is not None:
        context.observer.arm()
    context.decode_tree(tree)
    seen = engine.observed_experts(len(tree))
    target = _target(context, tree, probabilities)
    following = sampler.sample(context, 0)
    context.commit([[0]])
    drafter.remember(context.features(1))
    experts = np.zeros((len(tree), 0, 0), np.uint64) if seen is None else seen
    if seen is not None and forecast is not None:
        # Of what it sees here, a planner would see the committed tokens for certain.
        forecast.learn(DraftTree.of_root(text[-1]), None, experts[:1])
    kept_slots = [slot for slot, node in enumerate(candidates.expanded) if keep[node]]
    new_index = np.cumsum(keep) - 1
    return TracedStep(
        context=before,
        tree=tree,
        next=following,
        target=target,
        experts=experts,
        forecast=None if expected is None else expected.sets,
        hidden=states[kept_slots].astype(np.float16),
        expanded=new_index[np.array(candidates.expanded)[kept_slots]].astype(np.int32),
    )


def _target(context: Context, tree: DraftTree, probabilities: Sampler) -> FloatArray:
    """float64 [n]: the target's probability of each node given its parent; 1 for the root."""
    target = np.ones(len(tree))
    for parent in range(len(tree)):
        children = np.flatnonzero(tree.parents == parent)
        if len(children):
            of = probabilities.probabilities(context, parent)
            target[children] = [of.get(token, 0.0) for token in tree.tokens[children].tolist()]
    return target
