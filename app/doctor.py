"""specfit-doctor: what this machine is, what fits it, what is wrong and how to cure it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from .doctor_advice import CONTEXT, Advice, advise, best, vram
from .doctor_checks import Problem, Surroundings, best_backend, build_command, problems
from .doctor_llama import Llama
from .doctor_machine import Machine
from .entry import run
from .library import size

_MODELS = "Recommended: Qwen3-30B-A3B"

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Report:
    """All that was found."""

    machine: Machine
    llama: Llama
    here: Surroundings
    advice: tuple[Advice, ...]
    problems: tuple[Problem, ...]

    @property
    def chosen(self) -> Advice | None:
        return best(self.advice)

    def as_json(self) -> dict[str, Any]:
        chosen = self.chosen
        return {
            "healthy": not self.problems,
            "machine": asdict(self.machine),
            "llama_cpp": asdict(self.llama) | {"rebuild": _rebuild(self)},
            "disk": {"folder": str(self.here.disk), "free": self.here.disk_free},
            "recommended": [_as_json(one, self.here) for one in self.advice],
            "begin_with": chosen and chosen.model.name,
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
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=1, ensure_ascii=False))
    else:
        _print(report)
    return 1 if report.problems else 0


def examine() -> Report:
    """Looks at everything; takes some seconds, most of them for loading llama.cpp."""
    from . import doctor_here, doctor_llama, doctor_machine

    machine = doctor_machine.examine()
    llama = doctor_llama.examine()
    here = doctor_here.examine()
    advice = advise(machine, llama)
    return Report(machine, llama, here, advice, problems(machine, llama, here, best(advice)))


def machine_rows(report: Report) -> Rows:
    """What the machine is."""
    machine, llama = report.machine, report.llama
    bandwidth = f"{machine.bandwidth / 1e9:.0f} GB/s read by its cores now"
    rows = [
        ("System", machine.system),
        ("Processor", f"{machine.processor}, {machine.cores} cores"),
        ("Instructions", " ".join(machine.instructions) or "unknown"),
        ("Memory", f"{size(machine.ram)}, {size(machine.ram_free)} free, {bandwidth}"),
    ]
    for gpu in machine.gpus:
        rows.append(("GPU", f"{gpu.name}, {size(gpu.vram)}" if gpu.vram else gpu.name))
    if not machine.gpus:
        rows.append(("GPU", "none found"))
    rows.append(("Disk for models", f"{size(report.here.disk_free)} free in {report.here.disk}"))
    if llama.problem:
        return [*rows, ("llama.cpp", llama.problem)]
    built = " and ".join(llama.built_for) or "the CPU alone"
    rows.append(("llama.cpp", f"llama-cpp-python {llama.version}, built for {built}"))
    rows.append(("built with", " ".join(llama.features)))
    for device in llama.gpus:
        seen = f"{size(device.total)}, {size(device.free)} free"
        rows.append(("it sees", f"{device.name}: {device.description}, {seen}"))
    rows.append(("to rebuild it", _rebuild(report)))
    return rows


def advice_rows(report: Report) -> Rows:
    """Which quantisations fit, and how fast they may be; the same ones of all repositories."""
    by_quant = {one.model.quant: one for one in reversed(report.advice)}
    return [(quant, _words(one)) for quant, one in reversed(by_quant.items())]


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


def _words(one: Advice) -> str:
    if not one.fits:
        return f"does not fit: {one.why}"
    speed = "speed unknown"
    if one.speed is not None:
        low, high = one.speed
        speed = f"about {low:.0f} to {high:.0f} tokens/s"
        if one.gain > 1:
            speed += f", with drafts up to {one.gain:.2f} times that"
    return f"{size(one.model.size)}, {one.why}: {speed}"


def _as_json(one: Advice, here: Surroundings) -> dict[str, Any]:
    return {
        "model": one.model.name,
        "bytes": one.model.size,
        "heads": one.model.heads,
        "downloaded": one.model.name in here.downloaded,
        "fits": one.fits,
        "where": one.where or None,
        "experts_on_gpu": one.experts_on_gpu,
        "estimated_tokens_per_second": one.speed,
        "drafts_at_most": one.gain,
        "why": one.why,
    }


def _rebuild(report: Report) -> str:
    backend, _, first = best_backend(report.machine)
    command = build_command(backend, report.llama, report.here.project)
    return f"{first}, then: {command}" if first else command


def _estimate(report: Report) -> str:
    later = (
        ", once llama.cpp is built for it"
        if vram(report.machine, report.llama) and not report.llama.gpus
        else ""
    )
    return (
        f"Estimates for a context of {CONTEXT} tokens, not measurements: from the weights that a "
        "token reads, the memory's speed as measured just now, and cards of 200 to 1000 GB/s"
        f"{later}. Whether drafts pay depends on the machine; specfit-bench measures it."
    )


def _print(report: Report) -> None:
    if not sys.stdout.isatty():
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
    console.print(Padding(Text(_estimate(report), "dim"), (0, 0, 1, 2)))
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
    click.echo(f"{_estimate(report)}\n\nTo begin")
    for line in start_lines(report):
        click.echo(f"  {line}")
    click.echo("\nNo problems found" if not report.problems else "\nProblems")
    for problem in report.problems:
        click.echo(f"  problem: {problem.what}\n  cure: {problem.cure}")


def main() -> None:
    """Entry point of `specfit-doctor`."""
    run(doctor, "specfit-doctor")
