"""Runs the engine while writing down every verified batch, to be held against plain decoding."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit.backend import Engine, LoadOptions, Sampling, Spec
from specfit.backend.rope import Rope
from specfit.backend.runtime import Runtime
from specfit.planner import DraftTree

Logits = NDArray[np.float32]
Experts = NDArray[np.int32]


def exact_engine(
    pair: tuple[Path, Path],
    rope: Rope | None = None,
    cost_profile: str | Path = "streamed",
    **options: Any,
) -> Engine:
    """A float32 model whose experts are all used, planned for a machine where drafts pay.

    Its KV cache is float32 too, and attention keeps it so: in float16, to which flash attention
    casts, the last bit of a key can round to another value.
    """
    model, head = pair
    runtime = Runtime("f32", "f32", flash_attn="off", rope=rope or Rope())
    return Engine.load(
        LoadOptions(
            model=model,
            head=head,
            cost_profile=str(cost_profile),
            threads=1,
            runtime=runtime,
            **options,
        )
    )


def falling_profile(path: Path) -> Path:
    """Writes the costs of a machine on which many rows are cheaper than some, to be padded for."""
    ms = {1: 10.0, 2: 18.0, 4: 30.0, 31: 60.0, 32: 12.0, 64: 13.0}
    points = [{"rows": rows, "union": 8, "ms": of_rows} for rows, of_rows in ms.items()]
    path.write_text(json.dumps({"points": points, "draft_level_ms": 0.1}))
    return path


@dataclass(frozen=True)
class Step:
    """One cycle. rows: that were decoded. logits, experts: of the accepted path's, [row, vocab]
    and [row, layer, k] with the experts of a layer in ascending order."""

    tree: DraftTree
    rows: int
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


def observed_decode(engine: Engine, tree: DraftTree, padding: int = 0) -> tuple[Logits, Experts]:
    """Logits and experts of all nodes of a tree that is decoded behind the committed text."""
    context, n = engine.context, len(tree)
    logits, experts = _observed(
        engine,
        n + padding,
        lambda: type(context).decode_tree(context, tree, padding=padding),
    )
    return logits[:n], experts[:n]


def _observed(engine: Engine, rows: int, decode: Callable[[], None]) -> tuple[Logits, Experts]:
    observer = engine.context.observer
    assert observer is not None
    observer.arm()
    decode()
    observer.disarm()
    experts = observer.selections(rows)
    assert experts is not None
    logits = np.stack([engine.context.logits(row) for row in range(rows)])
    return logits, np.sort(experts, axis=-1)


def record(engine: Engine, text: str, spec: str, sampling: Sampling, n: int) -> Run:
    """Generates `n` tokens in mode `spec` through the real engine, watching its context."""
    steps: list[Step] = []
    seen: list[tuple[DraftTree, int, tuple[Logits, Experts]]] = []
    context = engine.context

    def decode_tree(tree: DraftTree, _lines: Sequence[int], padding: int) -> None:
        seen.append((tree, len(tree) + padding, observed_decode(engine, tree, padding)))

    def commit(paths: Sequence[Sequence[int]]) -> None:
        (path,) = paths
        tree, rows, (logits, experts) = seen[-1]
        steps.append(Step(tree, rows, list(path), logits[path], experts[path]))
        type(context).commit(context, paths)

    def decode_token(token: int, line: int) -> None:
        """A cycle in which nothing was worth drafting."""
        seen = _observed(engine, 1, lambda: type(context).decode_token(context, token, line))
        steps.append(Step(DraftTree.of_root(token), 1, [0], *seen))

    context.decode_tree, context.commit = decode_tree, commit  # type: ignore[method-assign]
    context.decode_token = decode_token  # type: ignore[method-assign]
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
        del context.decode_tree, context.commit, context.decode_token
    return Run(list(generation.prompt_tokens), generation.tokens, steps)


def plain_rows(engine: Engine, prompt: list[int], tokens: list[int]) -> tuple[Logits, Experts]:
    """Logits and experts of the tokens' rows when decoded one by one behind the prompt."""
    context = engine.context
    engine.forget()
    context.decode_prompt(prompt)
    rows = []
    for token in tokens:
        root = DraftTree.of_root(token)
        rows.append(observed_decode(engine, root))
        context.commit([[0]])
    engine.forget()
    return np.concatenate([r[0] for r in rows]), np.concatenate([r[1] for r in rows])


def flips(a: Experts, b: Experts) -> NDArray[np.bool_]:
    """bool [row]: some expert of some layer differs between two runs."""
    flipped: NDArray[np.bool_] = (a != b).any(axis=(1, 2))
    return flipped


def replayed_steps(engine: Engine, run: Run) -> list[tuple[Logits, Experts]]:
    """Every committed path again, as a chain in a batch of as many rows as it was verified in."""
    context = engine.context
    engine.forget()
    context.decode_prompt(run.prompt)
    out = []
    for step in run.steps:
        tokens = step.tree.tokens[step.path]
        n = step.rows
        chain = DraftTree(
            np.arange(-1, n - 1, dtype=np.int32),
            np.concatenate([tokens, np.full(n - len(tokens), tokens[-1], np.int32)]),
            np.ones(n),
        )
        logits, experts = observed_decode(engine, chain)
        context.commit([list(range(len(tokens)))])
        out.append((logits[: len(tokens)], experts[: len(tokens)]))
    engine.forget()
    return out
