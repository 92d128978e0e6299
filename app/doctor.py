"""specfit-doctor: what this machine is, what fits it, what is wrong and how to cure it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from .doctor_checks import (
    PYTHONS,
    Problem,
    Surroundings,
    best_backend,
    build_command,
    gib,
    of_packages,
    of_python,
    problems,
)
from .doctor_llama import Llama
from .doctor_machine import Machine
from .doctor_packages import Packages
from .entry import run
from .library import size

if TYPE_CHECKING:
    from .doctor_advice import Advice

_MODELS = "Recommended: Qwen3-30B-A3B"
# Packages without which the doctor sees nothing else.
_OWN = ("numpy", "psutil", "platformdirs", "huggingface-hub", "threadpoolctl")

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Report:
    """All that was found."""

    machine: Machine
    llama: Llama
    packages: Packages
    here: Surroundings
    advice: tuple[Advice, ...]
    chosen: Advice | None
    problems: tuple[Problem, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "healthy": not self.problems,
            "machine": asdict(self.machine),
            "llama_cpp": asdict(self.llama) | {"rebuild": _rebuild(self)},
            "packages": asdict(self.packages),
            "disk": {"folder": str(self.here.disk), "free": self.here.disk_free},
            "recommended": [_as_json(one, self.here) for one in self.advice],
            "begin_with": self.chosen and self.chosen.model.name,
            "problems": [asdict(problem) for problem in self.problems],
        }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON (bytes, seconds).")
def doctor(as_json: bool) -> int:
    """Say what this machine is, which models fit it, and what is wrong.

    Every problem comes with its cure. The exit code is 0 without problems, 1 with some. Nothing is
    changed, and no network is asked.
    """
    report = examine()
    if isinstance(report, Report):
        found, as_data = report.problems, report.as_json()
    else:
        found = report
        as_data = {"healthy": False, "problems": [asdict(problem) for problem in found]}
    if as_json:
        click.echo(json.dumps(as_data, indent=1, ensure_ascii=False))
    elif isinstance(report, Report):
        _print(report)
    else:
        _print_problems(found)
    return 1 if found else 0


def examine() -> Report | tuple[Problem, ...]:
    """Looks at everything; takes some seconds, most of them for loading llama.cpp.

    Only problems, where they keep the doctor itself from looking.
    """
    from . import doctor_here, doctor_llama, doctor_packages

    project = doctor_here.project()
    wrong_python = tuple(of_python(sys.version_info[:2], project))
    if sys.version_info[:2] < PYTHONS[0]:
        return wrong_python
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(doctor_packages.examine), pool.submit(doctor_llama.examine)
        packages, llama = asked[0].result(), asked[1].result()
    if set(_OWN) & set(packages.broken):
        return (*wrong_python, *of_packages(packages, project))
    return _examined(llama, packages)


def _examined(llama: Llama, packages: Packages) -> Report:
    from . import doctor_here, doctor_machine
    from .doctor_advice import advise, best, last_loads

    machine = doctor_machine.examine()
    here = doctor_here.examine()
    measured = dict(last_loads(doctor_here.costs(), here.downloaded))
    advice = advise(machine, llama, measured)
    chosen = best(advice)
    found = problems(machine, llama, packages, here, advice, chosen)
    return Report(machine, llama, packages, here, advice, chosen, found)


def machine_rows(report: Report) -> Rows:
    """What the machine is."""
    machine, llama = report.machine, report.llama
    bandwidth = f"{machine.bandwidth / 1e9:.0f} GB/s read by its cores now"
    rows = [
        ("System", machine.system),
        ("Processor", f"{machine.processor}, {machine.cores} cores"),
        ("Instructions", " ".join(machine.instructions) or "unknown"),
        ("Memory", f"{gib(machine.ram)}, {gib(machine.ram_free)} free, {bandwidth}"),
    ]
    for gpu in machine.gpus:
        rows.append(("GPU", f"{gpu.name}, {gib(gpu.vram)}" if gpu.vram else gpu.name))
    if not machine.gpus:
        rows.append(("GPU", "none found"))
    rows.append(("Disk for models", f"{size(report.here.disk_free)} free in {report.here.disk}"))
    if llama.problem:
        return [*rows, ("llama.cpp", llama.problem)]
    built = " and ".join(llama.built_for) or "the CPU alone"
    rows.append(("llama.cpp", f"llama-cpp-python {llama.version}, built for {built}"))
    rows.append(("built with", " ".join(llama.features)))
    for device in llama.gpus:
        seen = f"{gib(device.total)}, {gib(device.free)} free"
        rows.append(("it sees", f"{device.name}: {device.description}, {seen}"))
    rows.append(("to rebuild it", _rebuild(report)))
    return rows


def advice_rows(report: Report) -> Rows:
    """Where each quantisation would go, the same ones of all repositories."""
    from .doctor_advice import speed, where

    rows = {}
    for one in report.advice:
        # Of those that are the same but for the name, one that was loaded here knows more.
        if one.model.quant not in rows or one.measured is not None:
            words = f"{size(one.model.size)}, {where(one)}"
            rows[one.model.quant] = words if one.plan is None else f"{words}; {speed(one)}"
    return list(rows.items())


def start_lines(report: Report) -> Iterator[str]:
    """How to begin, with each model that there is in the quantisation that suits best."""
    chosen = report.chosen
    if chosen is None:
        yield "specfit-chat    (the bundled model)"
        return
    for one in report.advice:
        if one.model.quant == chosen.model.quant:
            first, *others = one.model.heads
            there = "    (downloaded)" if one.model.name in report.here.downloaded else ""
            yield f"specfit-chat -hf {one.model.name} -hfd {first}{there}"
            for head in others:
                yield f"    or with -hfd {head}"


def _as_json(one: Advice, here: Surroundings) -> dict[str, Any]:
    from .doctor_advice import where

    plan = one.plan
    return {
        "model": one.model.name,
        "bytes": one.model.size,
        "heads": one.model.heads,
        "downloaded": one.model.name in here.downloaded,
        "fits": plan is not None,
        "where": where(one),
        "plan": plan
        and {
            "gpu_layers": plan.placement.gpu_layers,
            "n_cpu_moe": plan.placement.n_cpu_moe,
            "gpu_bytes": plan.gpus,
            "host_bytes": plan.host,
            "notice": plan.notice,
        },
        "short": one.short,
        "tokens_per_second_when_last_loaded": one.measured,
        "tokens_per_second_at_most": one.at_most,
    }


def _rebuild(report: Report) -> str:
    backend, _, first = best_backend(report.machine)
    command = build_command(backend, report.llama, report.here.project)
    return f"{first}, then: {command}" if first else command


def sources(report: Report) -> Iterator[str]:
    """Where the numbers of `advice_rows` come from, and what else is known."""
    from .doctor_advice import measured_elsewhere, memory_of, supposes_build

    memory = memory_of(report.machine, report.llama)
    gpus = (f"{gib(gpu.free)} of {gpu.name}" for gpu in memory.gpus)
    free = " and ".join([f"{gib(memory.ram)} of host memory", *gpus])
    yield (
        "Placed as when loading, with a draft head and 4096 tokens of context, in what is free: "
        f"{free}."
    )
    if supposed := supposes_build(report.machine, report.llama):
        yield f"That is once llama.cpp is built for {supposed}."
    plans = [one.plan for one in report.advice if one.plan]
    if any(plan.notice for plan in plans):
        yield "Tightly: more than is free; some weights are read from the disk again and again."
    if any(one.at_most is not None for one in report.advice):
        yield (
            "At most, without drafts: for every token its weights are read from host memory, at "
            f"{report.machine.bandwidth / 1e9:.0f} GB/s, as the cores read just now "
            "beside whatever else runs."
        )
    yield f"Measured elsewhere, without drafts: {measured_elsewhere()}."
    yield "What a model makes here, and whether drafts pay, specfit-bench measures."


def _print(report: Report) -> None:
    if not sys.stdout.isatty() or "rich" in report.packages.broken:
        _print_plain(report)
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)

    def section(title: str, rows: Sequence[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in rows:
            table.add_row(Text(label), Text(value))
        console.print(Text(title, "bold"))
        console.print(Padding(table, (0, 0, 1, 2)))

    section("This machine", machine_rows(report))
    section(_MODELS, advice_rows(report))
    console.print(Padding(Text("\n".join(sources(report)), "dim"), (0, 0, 1, 2)))
    console.print(Text("To begin", "bold"))
    for line in start_lines(report):
        console.print(Text(f"  {line}"), soft_wrap=True)
    console.print()
    if not report.problems:
        console.print(Text("✔ No problems found", "bold green"))
    for problem in report.problems:
        console.print(Text.assemble(("✘ ", "bold red"), problem.what), soft_wrap=True)
        console.print(Text(f"  → {problem.cure}", "green"), soft_wrap=True)


def _print_plain(report: Report) -> None:
    for title, rows in (
        ("This machine", machine_rows(report)),
        (_MODELS, advice_rows(report)),
    ):
        click.echo(f"{title}\n" + "".join(f"  {label}: {value}\n" for label, value in rows))
    for line in sources(report):
        click.echo(line)
    click.echo("\nTo begin")
    for line in start_lines(report):
        click.echo(f"  {line}")
    click.echo()
    _print_problems(report.problems)


def _print_problems(found: Sequence[Problem]) -> None:
    click.echo("Problems" if found else "No problems found")
    for problem in found:
        click.echo(f"  problem: {problem.what}\n  cure: {problem.cure}")


def main() -> None:
    """Entry point of `specfit-doctor`."""
    run(doctor, "specfit-doctor")
