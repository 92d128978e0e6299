"""Made-up machines, and what the doctor finds on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specfit.app.doctor_advice import advise, best
from specfit.app.doctor_checks import Problem, Surroundings, problems
from specfit.app.doctor_llama import Device, Llama
from specfit.app.doctor_machine import Gpu, Machine
from specfit.app.doctor_packages import Packages

GIB = 1 << 30
MACHINE = Machine(
    processor="A processor",
    system="Linux x86_64",
    cores=8,
    ram=64 * GIB,
    ram_free=60 * GIB,
    bandwidth=50e9,
    instructions=("AVX", "AVX2", "FMA", "F16C"),
    gpus=(),
    tools=("cc", "c++", "make"),
    python=(3, 12),
)
LLAMA = Llama("0.3.36", "0.3.36", features=("AVX", "AVX2", "FMA", "F16C", "REPACK"))
PACKAGES = Packages({})
HERE = Surroundings(project=Path("/specfit"), disk=Path("/models"), disk_free=900 * 10**9)
RTX = Gpu("NVIDIA GeForce RTX 4070", "nvidia", 12 * GIB, 11 * GIB)


def on_gpu(gibibytes: float, kind: str = "gpu") -> Llama:
    free = int(gibibytes * GIB)
    device = Device("CUDA0", "A card", kind, free, free)
    return replace(
        LLAMA,
        built_for=("cuda",),
        devices=(device,),
        used=(("CUDA0", free),),
        shared=kind == "igpu",
    )


def found(
    machine: Machine = MACHINE,
    llama: Llama = LLAMA,
    here: Surroundings = HERE,
    packages: Packages = PACKAGES,
):
    advice = advise(machine, llama)
    return problems(machine, llama, packages, here, advice, best(advice))


def chosen(machine: Machine, llama: Llama):
    one = best(advise(machine, llama))
    assert one is not None
    return one


def of_quant(quant: str, machine: Machine, llama: Llama):
    return next(a for a in advise(machine, llama) if a.model.quant == quant)


def only(problems: tuple[Problem, ...]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]
