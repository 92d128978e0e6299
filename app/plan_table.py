"""Where a model goes, as a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specfit.backend.plan import Plan

_GIB = 1 << 30
_THERE = " on the GPU"


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


def plan_line(plan: Plan) -> str:
    """The same in a line that 80 columns hold: what is on the GPU, if anything, and what is not."""
    host = f"host memory {_gib(plan.host)}"
    if not plan.gpu:
        return host
    there = [
        f"{part.name} {part.note.removesuffix(_THERE).removesuffix(' layers')}"
        for part in plan.parts
        if part.gpu and part.note.endswith(_THERE)
    ]
    gpus = "GPU" if len(plan.machine.gpus) == 1 else f"{len(plan.machine.gpus)} GPUs"
    return f"{gpus} {_gib(plan.gpu)}: {', '.join(there)} · {host}"


def _gib(n_bytes: int) -> str:
    gib = n_bytes / _GIB
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib:.2f} GiB"
