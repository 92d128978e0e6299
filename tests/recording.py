"""Runs the engine while writing down every verified batch, to be held against plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specfit.backend import Engine, Sampling, Spec
from specfit.planner import DraftTree

Logits = NDArray[np.float32]
Experts = NDArray[np.int32]


@dataclass(frozen=True)
class Step:
    """One cycle. logits, experts: of the accepted path's rows, [row, vocab] and [row, layer, k]
    with the experts of a layer in ascending order."""

    tree: DraftTree
    path: list[int]
    logits: Logits
    experts: Experts


@dataclass(frozen=True)
class Run:
    """prompt: its tokens. tokens: generated, an ending one included. steps: the cycles."""

    prompt: list[int]
    tokens: list[int]
    steps: list[Step]

    @property
    def logits(self) -> Logits:
        """[row, vocab]; row i gave token i + 1 (token 0 came from the prompt)."""
        return np.concatenate([step.logits for step in self.steps])

    @property
    def experts(self) -> Experts:
        return np.concatenate([step.experts for step in self.steps])


def observed_decode(engine: Engine, tree: DraftTree) -> tuple[Logits, Experts]:
    """Logits and experts of all rows of a tree that is decoded behind the committed text."""
    observer = engine.context.observer
    assert observer is not None
    observer.arm()
    type(engine.context).decode_tree(engine.context, tree)
    observer.disarm()
    experts = observer.selections(len(tree))
    assert experts is not None
    logits = np.stack([engine.context.logits(row) for row in range(len(tree))])
    return logits, np.sort(experts, axis=-1)


def record(engine: Engine, text: str, spec: str, sampling: Sampling, n: int) -> Run:
    """Generates `n` tokens in mode `spec` through the real engine, watching its context."""
    steps: list[Step] = []
    seen: list[tuple[Logits, Experts]] = []
    context = engine.context

    def decode_tree(tree: DraftTree) -> None:
        seen.append(observed_decode(engine, tree))

    def commit(tree: DraftTree, path: Sequence[int]) -> None:
        logits, experts = seen[-1]
        steps.append(Step(tree, list(path), logits[path], experts[path]))
        type(context).commit(context, tree, path)

    context.decode_tree, context.commit = decode_tree, commit  # type: ignore[method-assign]
    try:
        engine.forget()
        generation = engine.generate(
            [{"role": "user", "content": text}],
            sampling=sampling,
            max_tokens=n,
            spec=Spec.parse(spec),
        )
        for _ in generation:
            pass
    finally:
        del context.decode_tree, context.commit
    return Run(list(generation._prompt), generation.tokens, steps)


def plain_rows(engine: Engine, prompt: list[int], tokens: list[int]) -> tuple[Logits, Experts]:
    """Logits and experts of the tokens' rows when decoded one by one behind the prompt."""
    context = engine.context
    engine.forget()
    context.decode_prompt(prompt)
    rows = []
    for token in tokens:
        root = DraftTree.of_root(token)
        rows.append(observed_decode(engine, root))
        context.commit(root, [0])
    engine.forget()
    return np.concatenate([r[0] for r in rows]), np.concatenate([r[1] for r in rows])


def replayed_steps(engine: Engine, run: Run) -> list[tuple[Logits, Experts]]:
    """Every committed path again, as a chain in a batch of as many rows as it was verified in."""
    context = engine.context
    engine.forget()
    context.decode_prompt(run.prompt)
    out = []
    for step in run.steps:
        tokens = step.tree.tokens[step.path]
        n = len(step.tree)
        chain = DraftTree(
            np.arange(-1, n - 1, dtype=np.int32),
            np.concatenate([tokens, np.full(n - len(tokens), tokens[-1], np.int32)]),
            np.ones(n),
        )
        logits, experts = observed_decode(engine, chain)
        context.commit(chain, list(range(len(tokens))))
        out.append((logits[: len(tokens)], experts[: len(tokens)]))
    engine.forget()
    return out
