"""A run of `specfit-batch`: which lines are left, who answers them, where the answers go."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from .batch_choice import BatchChoice
from .batch_lines import Request, Unsound, tell_shared_ids
from .batch_manifest import Entry, Manifest, environment, head_hash, model_hash
from .batch_parameters import Parameters
from .batch_progress import Counts, all_done, begin, shown
from .batch_records import Answer, Format, Record, Writing, format_of
from .batch_run import Line, Run, Worker, left
from .entry import AppError, say
from .hub_fetch import fetched
from .interrupts import Interrupts
from .lines_out import LinesOut
from .options import RANDOM_SEED, ModelChoice
from .options_context import ContextChoice

if TYPE_CHECKING:
    from specfit.backend import Spec

# Of a deterministic run without -s: what is made again is made with the same seeds.
DETERMINISTIC_SEED = 0


def answer_all(
    found: Sequence[Request | Unsound],
    source: Path,
    output: Path,
    wanted: BatchChoice,
    choice: ModelChoice,
    flags: Parameters,
    spec: Spec,
) -> int:
    """Answers what `output` has no answers to yet; returns how many of the lines have failed, now
    or before.

    Raises AppError, before long work where it can be, KeyboardInterrupt on Ctrl-C.
    """
    with Interrupts() as interrupts, LinesOut(output) as out:
        choice = fetched(choice)
        pair = _Pair.of(choice)
        run = _run(wanted, choice, flags, spec, pair)
        todo, failed = left(
            [run.line(line) for line in found],
            _records(out, wanted.form),
            retry=wanted.retry_errors,
        )
        counts = Counts(len(found), skipped=len(found) - len(todo))
        if not todo:
            all_done(counts, as_json=wanted.json_progress)
            return failed
        if not wanted.json_progress:
            tell_shared_ids(found)
        entry = {
            "input": str(source),
            "model": {"path": str(pair.model), "sha256": pair.model_hash},
            "head": pair.head and {"path": str(pair.head), "sha256": pair.head_hash},
            "parameters": _as_given(wanted, choice, flags, spec),
            "seed": run.seed,
            **environment(),
        }
        writing = Writing(wanted.form, pair.model.name, str(spec), timeless=wanted.deterministic)
        work = _Work(wanted, choice, spec, interrupts, out, writing)
        try:
            work.do(todo, counts, entry)
        except KeyboardInterrupt:
            if not wanted.json_progress:
                say(f"stopped at {counts.so_far}; the same command goes on from there")
            raise
        return failed + counts.failed


@dataclass(frozen=True)
class _Pair:
    """The model, and the head if it has one, with the SHA-256 of what they are read from."""

    model: Path
    model_hash: str
    head: Path | None
    head_hash: str | None

    @classmethod
    def of(cls, choice: ModelChoice) -> _Pair:
        """Raises AppError or ModelFileError if they cannot be read."""
        from specfit.models import bundled_head, bundled_model
        from specfit.models.gguf_info import read_gguf_info

        model, head = choice.model, choice.model_draft
        if model is None:
            model, head = bundled_model(), head or bundled_head()
        read_gguf_info(model)  # says in one sentence what is wrong with a file that cannot be read
        return cls(model, model_hash(model), head, None if head is None else head_hash(head))


def _run(
    wanted: BatchChoice, choice: ModelChoice, flags: Parameters, spec: Spec, pair: _Pair
) -> Run:
    """What all lines have in common. What drafts, and where it is computed, decides last bits: only
    a deterministic answer depends on it. Positions that are stretched make another model of it."""
    from specfit.backend.rope import Rope

    stretched = [] if choice.rope == Rope() else [asdict(choice.rope)]
    bits = None
    if wanted.deterministic:
        elsewhere = {field.name for field in fields(ContextChoice)}
        elsewhere |= {"prompt_cache", "prompt_cache_ro"}
        placed = {
            name: str(value)
            for name, value in asdict(choice).items()
            if "model" not in name and name not in elsewhere
        }
        bits = [spec.text, pair.head_hash, placed]
    chosen = flags.seed not in (None, RANDOM_SEED)
    seed = flags.seed if chosen else DETERMINISTIC_SEED
    if not chosen and not wanted.deterministic:
        seed = secrets.randbits(32)
    assert seed is not None
    return Run(flags, seed, chosen or wanted.deterministic, (pair.model_hash, bits, *stretched))


def _records(out: LinesOut, form: Format) -> Iterator[Record]:
    """What earlier runs wrote. Raises AppError if that is in another form."""
    for record in out.records():
        if (written := format_of(record)) != form:
            raise AppError(
                f"{out.path} was written with --format {written}; go on with that, or name another "
                "file"
            )
        yield record


def _as_given(wanted: BatchChoice, choice: ModelChoice, flags: Parameters, spec: Spec) -> Entry:
    """The options by their names; those that were left to the model or the engine are null."""
    given = {**asdict(wanted), **asdict(choice), **asdict(flags), "spec": spec.text}
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in given.items()
        if name not in ("n", "model", "model_draft", "retry_errors", "json_progress")
    }


@dataclass(frozen=True)
class _Work:
    wanted: BatchChoice
    choice: ModelChoice
    spec: Spec
    interrupts: Interrupts
    out: LinesOut
    writing: Writing

    def do(self, lines: Sequence[Line], counts: Counts, entry: Entry) -> None:
        """Answers and writes all `lines`. entry: what the manifest is to say of the run."""
        manifest = Manifest(self.out.path) if self.out.is_file else None
        begin(counts, as_json=self.wanted.json_progress)
        if all(line.wrong for line in lines):
            self._write(((line, line.wrong) for line in lines), counts)
            return
        from .loading import loaded_engine

        steady, drafting, most = self.wanted.deterministic, self.spec.drafts, self.wanted.lines
        if most is None and sum(len(line.seeds) for line in lines) == 1:
            most = 1  # memory for more would be taken from the experts
        with loaded_engine(
            self.choice, self.interrupts, drafting=drafting, lines=most, steady=steady
        ) as engine:
            worker = Worker(engine, self.spec, self.interrupts, steady=steady)
            if manifest is not None:
                manifest.begin({**entry, "engine": engine.description})
            try:
                counts.begin(worker.running_tokens)
                self._write(worker.answers(lines), counts)
            finally:
                if manifest is not None:
                    manifest.finish(counts.summary())

    def _write(self, outcomes: Iterable[tuple[Line, Answer | str]], counts: Counts) -> None:
        with shown(counts, as_json=self.wanted.json_progress) as changed:
            for line, outcome in outcomes:
                if isinstance(outcome, str):
                    self.out.write(self.writing.failure(line.key, line.id, outcome))
                    counts.failed += 1
                else:
                    self.out.write(self.writing.answer(outcome))
                    counts.tokens += sum(len(one.tokens) for one in outcome.generations)
                counts.done += 1
                changed()
