"""specfit-bench --replay FILE --residency SHARE,…: a cache of experts on the GPU.

How often the experts in use lie in a cache that holds a share of all, by which policy; and the
machine that modes are compared under with such a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from specfit.planner import CycleCost, FloatArray
from specfit.planner.caching import (
    BELADY,
    LFU,
    LRU,
    Hits,
    Uses,
    hits_of_classic,
    hits_of_rule,
    uses_of_chains,
)
from specfit.planner.residency import UPLOAD_USES, Rule
from specfit.planner.trace import Trace

from .bench_table import headed
from .entry import AppError

# A model of Qwen3-30B-A3B's shape (48 layers, Q4_K), a part of its experts on an H200 through a
# prototype of the cache, the others on 16 vCPUs: ms of a decode of so many rows whose experts are
# all cached, and for every missing expert and every use of one. They give what was measured with no
# hits and with 77 % at 1, 2, 4 and 8 rows within 4 %, with 52 % within 8 %.
# Beyond 8 rows they follow what the same machine takes with all experts on the GPU, and with none.
# From 32 rows on llama.cpp copies all experts to the GPU.
ROWS = (1, 2, 4, 8, 16, 31)
HIT_MS = (5.5, 5.7, 7.4, 10.8, 15.6, 20.0)
MISSING_MS = (0.0308, 0.0272, 0.0258, 0.0257, 0.0195, 0.0175)
MEASURED_LAYERS, STREAMED_ROWS, STREAMED_MS, LEVEL_MS = 48, 32, 711.0, 0.7
# Drafts of the chains whose decodes are looked up in the cache.
CHAINS = (0, 3)
OURS = "ours"


@dataclass(frozen=True)
class PolicyHits:
    """Of one policy at one share: hits among pairs of row and expert, and among the experts of a
    decode; loads: experts uploaded a token. even: with as many slots in every layer."""

    share: float
    drafts: int
    policy: str
    even: bool
    pairs: float
    unique: float
    loads: float


def parse_shares(text: str) -> tuple[float, ...]:
    """Shares of all experts; raises AppError for anything else."""
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = (-1.0,)
    if not all(0 <= share <= 1 for share in shares) or len(set(shares)) < len(shares):
        raise AppError(f"--residency {text!r}: write shares of all experts like 0.4,0.77")
    return shares


def name_of(share: float) -> str:
    """Of the machine whose cache holds this share of all experts."""
    return f"cached {share:.0%}"


def cached_machine(layer_weights: FloatArray, max_rows: int) -> CycleCost:
    """The measured machine's costs; a model of other layers is taken to cost as much in all."""
    rows = np.arange(max_rows + 1)
    streamed = rows >= STREAMED_ROWS
    missing_ms = np.interp(rows, ROWS, MISSING_MS) * MEASURED_LAYERS / layer_weights.sum()
    return CycleCost(
        rows_ms=np.where(streamed, STREAMED_MS, np.interp(rows, ROWS, HIT_MS)),
        expert_ms=np.where(streamed, 0.0, missing_ms),
        layer_weights=layer_weights,
        level_ms=np.array([LEVEL_MS]),
        use_share=1.0,
    )


def rule_of(share: float, cost: CycleCost, n_experts: int, *, even: bool = False) -> Rule:
    """A cache that holds this share of all experts; even: as many of every layer."""
    layers = len(cost.layer_weights)
    slots = [round(share * n_experts)] * layers if even else [round(share * n_experts * layers)]
    saved_ms = cost.layer_weights * cost.expert_ms[1] * (1 + cost.use_share)
    return Rule(
        slots=np.array(slots, np.int32),
        saved_ms=saved_ms,
        upload_ms=UPLOAD_USES * float(saved_ms.mean()),
        bytes_each=np.ones(layers, np.int64),
    )


def hits_of_trace(trace: Trace, shares: Sequence[float]) -> list[PolicyHits]:
    """Of every policy at every share, in plain decoding and in chains; all begin with nothing.

    Raises AppError for a dense model.
    """
    if not trace.n_experts:
        raise AppError("the recorded model has no experts to cache")
    found = []
    cost = cached_machine(np.ones(trace.n_layers), 1)
    for drafts in CHAINS:
        uses = uses_of_chains(trace.texts, drafts, trace.n_experts)
        for share in shares:
            rule = rule_of(share, cost, trace.n_experts)
            even = rule_of(share, cost, trace.n_experts, even=True)
            for policy in (LRU, LFU, OURS, BELADY):
                hits = _hits(uses, rule, policy)
                found.append(_of_policy(share, drafts, policy, hits, even=False))
            for policy in (OURS, BELADY):
                hits = _hits(uses, even, policy)
                found.append(_of_policy(share, drafts, policy, hits, even=True))
    return found


def _hits(uses: Uses, rule: Rule, policy: str) -> Hits:
    return hits_of_rule(uses, rule) if policy == OURS else hits_of_classic(uses, rule.slots, policy)


def _of_policy(share: float, drafts: int, policy: str, hits: Hits, *, even: bool) -> PolicyHits:
    loads = float(hits.uploads.sum()) / hits.tokens
    return PolicyHits(share, drafts, policy, even, hits.pairs, hits.unique, loads)


def hits_table(found: Sequence[PolicyHits]) -> Table:
    """One row a share and kind of decode; of chains a second one, by the experts of a decode. Of
    Bel.: our share of Belady's hits. even: with as many slots in every layer."""
    headings = (
        *("\nLRU", "\nLFU", "\nours", "\nBelady", "of\nBel."),
        *("even:\nours", "\nBelady", "of\nBel."),
        *("loads a\ntok.: LRU", "\nours", "\nBelady"),
    )
    table = headed(("experts\ncached", "\nhits among"), headings)
    by_place = {(one.share, one.drafts, one.policy, one.even): one for one in found}
    places = dict.fromkeys((one.share, one.drafts) for one in found)
    for share, drafts in sorted(places):
        kinds = ("pairs", "unique") if drafts else ("unique",)
        for kind in kinds:
            rate = {
                (policy, even): getattr(one, kind)
                for (at, of, policy, even), one in by_place.items()
                if (at, of) == (share, drafts)
            }
            loads = [by_place[share, drafts, policy, False].loads for policy in (LRU, OURS, BELADY)]
            table.add_row(
                f"{share:.0%}",
                f"chain:{drafts} {'pairs' if kind == 'pairs' else 'union'}" if drafts else "off",
                *(f"{rate[policy, False]:.3f}" for policy in (LRU, LFU, OURS, BELADY)),
                _of(rate[OURS, False], rate[BELADY, False]),
                *(f"{rate[policy, True]:.3f}" for policy in (OURS, BELADY)),
                _of(rate[OURS, True], rate[BELADY, True]),
                *(f"{load:.1f}" for load in loads),
            )
    return table


def _of(rate: float, best: float) -> str:
    return f"{rate / best:.3f}" if best else "-"
