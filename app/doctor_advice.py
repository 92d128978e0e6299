"""Which recommended model fits a machine, and how fast it may be: an estimate, and no more.

A token reads its share of the weights once. What lies in host memory is read at a part of the
bandwidth that was measured here; what lies on the GPU takes the time that the shipped profile `gpu`
has for a row (launches, mostly, as its GPU is far faster than any card this is for) and the time
that reading takes at the bandwidth of usual cards. Both ends of each range are told.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from .doctor_llama import Llama
from .doctor_machine import Machine
from .recommended import DRAFT_GAIN, HEAD_BYTES, RECOMMENDED, Recommended

CONTEXT = 4096
# llama.cpp's buffers and CUDA's own; what desktops take of a card; what else runs in host memory.
_BUFFERS, _OF_VRAM, _OF_RAM, _OF_SHARED = 800_000_000, 0.93, 0.85, 0.7
# Read by matrix products, against what the bare loop of `read_bandwidth` reads.
_HOST_SHARE = (0.35, 0.7)
# Bytes a second of cards of 8 to 24 GB: from a GTX 1660 or RX 6600 to an RTX 4090 or RX 7900 XTX.
_CARD_BANDWIDTH = (200e9, 1000e9)
_SHARED_SHARE = (0.5, 1.0)


@dataclass(frozen=True)
class Advice:
    """where: "gpu", "cpu-experts" (attention on the GPU), "cpu", or "" if it does not fit.

    experts_on_gpu: share of them. speed: tokens per second without drafts, from and to; None if it
    is not known. gain: the most that drafts make of that. why: in words.
    """

    model: Recommended
    where: str
    experts_on_gpu: float
    speed: tuple[float, float] | None
    gain: float
    why: str

    @property
    def fits(self) -> bool:
        return bool(self.where)


def advise(machine: Machine, llama: Llama) -> tuple[Advice, ...]:
    """One for each recommended model, in their order."""
    row_s = _row_seconds()
    return tuple(_advice(model, machine, llama, row_s) for model in RECOMMENDED)


def best(advice: Sequence[Advice]) -> Advice | None:
    """The one to begin with: what is wholly on the GPU; else four bits, the usual choice, since
    each further bit is read from host memory; else the largest that fits."""
    fitting = [one for one in advice if one.fits]
    on_gpu = (one for one in fitting if one.where == "gpu")
    usual = (one for one in fitting if one.model.quant == "Q4_K_M")
    return next(on_gpu, None) or next(usual, None) or next(iter(fitting), None)


def vram(machine: Machine, llama: Llama) -> int:
    """Bytes of all GPUs of their own memory: as llama.cpp sees them, else as the system does."""
    seen = sum(device.total for device in llama.devices if device.kind == "gpu")
    return seen or sum(gpu.vram for gpu in machine.gpus)


def _advice(model: Recommended, machine: Machine, llama: Llama, row_s: float) -> Advice:
    beside = CONTEXT * model.shape.kv_bytes + HEAD_BYTES + _BUFFERS
    experts, dense = model.expert_bytes, model.size - model.expert_bytes
    per_weight = model.size / model.shape.parameters
    read_experts = per_weight * model.shape.active_experts
    read_dense = per_weight * model.shape.active_dense
    card = _OF_VRAM * vram(machine, llama)
    host = _OF_RAM * machine.ram

    def told(
        where: str, share: float, on_gpu: float, on_host: float, shared: bool = False
    ) -> Advice:
        speed = _speed(machine, row_s, on_gpu, on_host, shared)
        profile = "half-layers" if where == "cpu-experts" and share > 0.25 else where
        words = {
            "gpu": "wholly on the GPU",
            "cpu": "on the CPU",
            "cpu-experts": f"{share:.0%} of the experts on the GPU, the others in host memory"
            if share >= 0.01
            else "experts in host memory, the rest on the GPU",
        }
        return Advice(model, where, share, speed, DRAFT_GAIN[profile], words[where])

    if _shares_memory(machine) and model.size + beside <= _OF_SHARED * machine.ram:
        return told("gpu", 1.0, read_experts + read_dense, 0.0, shared=True)
    if card >= model.size + beside:
        return told("gpu", 1.0, read_experts + read_dense, 0.0)
    share = max(0.0, (card - dense - beside) / experts)
    if card >= dense + beside and experts * (1 - share) <= host:
        on_gpu = read_dense + share * read_experts
        return told("cpu-experts", share, on_gpu, (1 - share) * read_experts)
    if model.size + beside <= host:
        return told("cpu", 0.0, 0.0, read_experts + read_dense)
    need, have = model.size + beside, host + (card if card >= dense + beside else 0.0)
    why = f"needs {need / 1e9:.0f} GB of memory, {have / 1e9:.0f} GB of this machine's are usable"
    return Advice(model, "", 0.0, None, 1.0, why)


def _shares_memory(machine: Machine) -> bool:
    return any(gpu.vendor == "apple" for gpu in machine.gpus)


def _speed(
    machine: Machine, row_s: float, on_gpu: float, on_host: float, shared: bool
) -> tuple[float, float] | None:
    """Tokens per second, from and to. on_gpu, on_host: bytes that a token reads there."""
    if not machine.bandwidth:
        return None
    speeds = []
    for end in (0, 1):
        bandwidth = machine.bandwidth * _SHARED_SHARE[end] if shared else _CARD_BANDWIDTH[end]
        seconds = on_host / (machine.bandwidth * _HOST_SHARE[end])
        if on_gpu:
            seconds += row_s + on_gpu / bandwidth
        speeds.append(1 / seconds)
    return speeds[0], speeds[1]


def _row_seconds() -> float:
    """One row of Qwen3-30B-A3B's shape all on the GPU, as the shipped profile has it."""
    from specfit.backend.profiles import FOLDER

    profile = json.loads((FOLDER / "gpu.json").read_text(encoding="utf-8"))
    return min(float(point["ms"]) for point in profile["points"] if point["rows"] == 1) / 1000
