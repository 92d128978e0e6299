"""Made-up traces: what a model pair of a few dozen tokens could have been recorded saying."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from specfit.backend.trace_file import TraceWriter
from specfit.planner import DraftTree, pack
from specfit.planner.trace import Trace, TracedStep, TracedText
from specfit.planner.tree import FloatArray

VOCABULARY, LAYERS, EXPERTS, USED, WIDTH = 40, 3, 32, 4, 4
# Children of each of the nodes that are expanded, level by level, and how many of those there are.
BRANCHING, EXPANDED = 3, (1, 3, 2, 2)


def made_up_trace(steps: int, texts: int = 1, *, seed: int = 0, sureness: float = 2.5) -> Trace:
    """A trace whose target is a Markov chain and whose head knows it but roughly.

    sureness: how peaked the target's probabilities are.
    """
    rng = np.random.default_rng(seed)
    scores = sureness * rng.normal(size=(VOCABULARY, VOCABULARY))
    target = _softmax(scores)
    head = _softmax(scores + rng.normal(size=scores.shape))
    usual = np.array([[_chosen(rng) for _ in range(LAYERS)] for _ in range(VOCABULARY)])
    made = []
    for number in range(texts):
        root, traced = int(rng.integers(VOCABULARY)), []
        for at in range(steps):
            tree, expanded = _candidates(root, head)
            following = int(rng.choice(VOCABULARY, p=target[root]))
            traced.append(
                TracedStep(
                    context=10 + at,
                    tree=tree,
                    next=following,
                    target=np.append(1.0, target[tree.tokens[tree.parents[1:]], tree.tokens[1:]]),
                    experts=pack(_used(rng, usual[tree.tokens]), EXPERTS),
                    forecast=None,
                    hidden=rng.normal(size=(len(expanded), WIDTH)).astype(np.float16),
                    expanded=expanded,
                )
            )
            root = following
        prompt = rng.integers(VOCABULARY, size=10).astype(np.int32)
        made.append(TracedText(f"text-{number}", prompt, tuple(traced)))
    return Trace(LAYERS, EXPERTS, USED, {"model": "made up"}, tuple(made))


def repeating() -> Trace:
    """A made-up text whose second half is its first one again."""
    trace = made_up_trace(30)
    (text,) = trace.texts
    roots = [int(step.tree.tokens[0]) for step in text.steps]
    steps = [
        replace(step, context=at, next=roots[(at + 1) % 30])
        for at, step in enumerate([*text.steps, *text.steps])
    ]
    return replace(trace, texts=(replace(text, steps=tuple(steps)),))


def write_trace(path: Path, trace: Trace) -> None:
    """The file of a recording."""
    with TraceWriter(path, trace) as writer:
        for text in trace.texts:
            writer.add(text)


def _candidates(root: int, head: FloatArray) -> tuple[DraftTree, np.ndarray]:
    """The tree behind `root`, and its nodes that were expanded."""
    tree, expanded, newest = DraftTree.of_root(root), [], np.zeros(1, np.int32)
    for count in EXPANDED:
        scores = tree.path_probs[newest]
        best = np.sort(newest[np.argsort(-scores, kind="stable")[:count]])
        expanded += best.tolist()
        children = np.argsort(-head[tree.tokens[best]], axis=1, kind="stable")[:, :BRANCHING]
        parents = np.repeat(best, BRANCHING)
        tokens = children.reshape(-1)
        newest = np.arange(len(tree), len(tree) + len(parents), dtype=np.int32)
        tree = tree.grown(parents, tokens, head[tree.tokens[parents], tokens])
    return tree, np.array(expanded, np.int32)


def _used(rng: np.random.Generator, usual: np.ndarray) -> np.ndarray:
    """int [n, layer, USED]: mostly the usual experts of a token."""
    used = usual.copy()
    for node, layer in np.argwhere(rng.random(usual.shape[:2]) < 0.3):
        used[node, layer] = _chosen(rng)
    return used


def _chosen(rng: np.random.Generator) -> np.ndarray:
    return rng.choice(EXPERTS, USED, replace=False)


def _softmax(scores: FloatArray) -> FloatArray:
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return chances / chances.sum(axis=1, keepdims=True)
