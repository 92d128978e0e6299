"""A linear probe from the head's states to the experts of all layers, of low rank.

A draft is forecast by the state behind its parent, the one that proposed it, which is there when
the draft is; its own state, there once it was expanded, told hardly more (LOG.md). States are
projected to codes of RANK numbers; one matrix product takes the codes of all new drafts to the
experts of all layers. What the probe predicts is what the token table leaves open: the difference
between what a token uses here and what it uses on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .experts import unpack
from .tokentable import Floats, TokenTable
from .trace import TracedStep, TracedText

RANK = 16
# Candidates of a step that are trained on, the likeliest; others are hardly ever verified.
LIKELIEST = 8
RIDGE = 30.0


@dataclass(frozen=True)
class Probe:
    """projection: float32 [width, rank]. basis: float32 [rank, output], an output being an expert
    of a layer. usual: float32 [output], shares of rows that use each expert.
    """

    projection: Floats
    basis: Floats
    usual: Floats


def random_projection(states: Floats) -> Floats:
    """float32 [width, rank] that takes `states` [m, width] to codes of mean square 1 or so."""
    random = np.random.default_rng(0).standard_normal((states.shape[1], RANK))
    return (random / max(float(np.linalg.norm(states)), 1e-6) * len(states) ** 0.5).astype(
        np.float32
    )


def fit_probe(texts: Sequence[TracedText], n_experts: int, table: TokenTable) -> Probe:
    """Fits what `table` leaves open of each text, which then fills `table` with its candidates.

    Ridge regression, cut to RANK in the metric of what it predicts (reduced-rank regression,
    Izenman 1975), by normal equations: memory is that of one text. Raises ValueError if no text has
    drafts.
    """
    outputs, rows, drafts = table.shares.shape[1], 0, 0
    usual = np.zeros(outputs, np.float32)
    gram = moments = np.zeros((0, outputs), np.float32)
    for text in texts:
        if not text.steps:
            continue
        parts = zip(*(_samples(step) for step in text.steps), strict=True)
        tokens, states, is_draft, experts = (np.concatenate(part) for part in parts)
        used = unpack(experts, n_experts)
        rows += len(used)
        usual += (used.mean(axis=0, dtype=np.float32) - usual) * np.float32(len(used) / rows)
        left = (used - table.expected(table.slots(tokens), usual))[is_draft]
        inputs = states[is_draft]
        if not drafts:
            gram = (
                RIDGE * float(np.square(inputs).mean()) * np.eye(inputs.shape[1], dtype=np.float32)
            )
            moments = np.zeros((inputs.shape[1], outputs), np.float32)
        drafts += len(inputs)
        gram += inputs.T @ inputs
        moments += inputs.T @ left
        table.learn(tokens, used)
    if not drafts:
        raise ValueError("there are no drafts to train on")
    full = np.linalg.solve(gram.astype(np.float64), moments)
    predicted = np.linalg.cholesky(gram.astype(np.float64)).T @ full
    energies, directions = np.linalg.eigh(predicted @ predicted.T)
    rank = min(RANK, len(energies))
    size = np.sqrt(np.maximum(energies[: -rank - 1 : -1], 1e-9))
    basis = directions[:, : -rank - 1 : -1].T @ predicted / size[:, None]
    # Codes of mean square 1: every direction learns at the same speed later.
    size /= np.sqrt(drafts)
    projection = np.zeros((full.shape[0], RANK), np.float32)
    projection[:, :rank] = full @ basis.T / size
    whole = np.zeros((RANK, outputs), np.float32)
    whole[:rank] = basis * size[:, None]
    return Probe(projection, whole, usual)


def _samples(step: TracedStep) -> tuple[NDArray[np.generic], ...]:
    """Tokens, states behind their parents, which are drafts with such a state, and experts."""
    tree = step.tree
    states = np.zeros((len(tree), step.hidden.shape[1]), np.float32)
    states[step.expanded] = step.hidden
    is_draft = np.isin(tree.parents, step.expanded)
    nodes = np.argsort(-tree.path_probs, kind="stable")[:LIKELIEST]
    parents = tree.parents[nodes]
    return tree.tokens[nodes], states[parents], is_draft[nodes], step.experts[nodes]
