"""The decision of `planner/residency.py` in numpy, to check the compiled one by."""

from __future__ import annotations

import numpy as np

from specfit.planner.residency import Residency, Rule, Uploads


def after(
    held: Residency, used: np.ndarray, rule: Rule, committed: int = 1
) -> tuple[Residency, Uploads]:
    uses = np.add(held.uses * rule.decay**committed, used, dtype=np.float64)
    worth = uses * rule.saved_ms[:, None]
    resident = held.resident.copy()
    groups = len(rule.slots)
    worths = worth.reshape(groups, -1)
    inside = resident.reshape(groups, -1)
    free = rule.slots - np.count_nonzero(inside, axis=1)
    # What is inside is defended by its worth. What has just come in is not put out again.
    defence = np.where(inside, worths, np.inf)
    lowest = np.where(free > 0, 0.0, defence.min(axis=1))
    eager = np.flatnonzero((worths > lowest[:, None] + rule.upload_ms) & ~inside)
    eager = eager[np.argsort(-worth.reshape(-1)[eager], kind="stable")]
    left = np.inf if rule.cycle_bytes is None else rule.cycle_bytes
    n_experts, width = worth.shape[1], worths.shape[1]
    loads, victims = [], []
    for expert in eager.tolist():
        layer, group = expert // n_experts, expert // width
        if rule.bytes_each[layer] > left:
            break
        victim = -1
        if free[group] > 0:
            free[group] -= 1
        else:
            place = int(defence[group].argmin())
            if not worths[group, expert % width] > defence[group, place] + rule.upload_ms:
                continue
            defence[group, place] = np.inf
            victim = group * width + place
            resident.reshape(-1)[victim] = False
        left -= rule.bytes_each[layer]
        resident.reshape(-1)[expert] = True
        loads.append(divmod(expert, n_experts))
        victims.append(divmod(victim, n_experts) if victim >= 0 else (-1, -1))
    pairs = (np.array(places, np.int32).reshape(-1, 2) for places in (loads, victims))
    return Residency(uses, resident), Uploads(*pairs)
