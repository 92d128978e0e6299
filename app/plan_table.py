"""Where a model goes, as a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specfit.backend.plan import Plan

_GIB = 1 << 30


def plan_table(plan: Plan) -> str:
    """What goes where, in GiB; the last line is what was free before."""
    rows = [(part.name, part.gpu, part.host, part.note) for part in plan.parts]
    rows.append(("together", plan.gpu, plan.host, ""))
    room = sum(gpu.free for gpu in plan.machine.gpus)
    rows.append(("free", room, plan.machine.ram, ""))
    lines = [f"{'GiB':12}{'GPU':>7}{'host':>8}"]
    lines += [
        f"{name:12}{gpu / _GIB:7.2f}{host / _GIB:8.2f}  {note}".rstrip()
        for name, gpu, host, note in rows
    ]
    if len(plan.machine.gpus) > 1:
        each = (
            f"{gpu.name} {used / _GIB:.2f}"
            for gpu, used in zip(plan.machine.gpus, plan.gpus, strict=True)
        )
        lines.append(", ".join(each))
    return "\n".join(lines)
