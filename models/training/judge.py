"""python -m specfit.models.training.judge MODEL.gguf: how a chat model answers our questions.

Measures what needs no reader: lengths, repetition, answers without an end, sums that are right. The
questions are from none of the generators that make the training text.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from specfit.models.errors import ModelFileError
from specfit.models.gguf_info import read_gguf_info
from specfit.models.training.cleaning import repetitive

QUESTIONS = Path(__file__).with_name("questions.jsonl")
LONGEST = 200
SEED = 1
# llama.cpp's min-p stands before its temperature.
DECODINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "0.7": {"temperature": 0.7, "min_p": 0.05, "top_p": 1.0, "top_k": 0},
}

Question = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """tokens: that were drawn. finished: by the model itself. right: None if that is not known."""

    id: str
    kind: str
    decoding: str
    text: str
    tokens: int
    finished: bool
    repetitive: bool
    right: bool | None


@dataclass(frozen=True)
class Score:
    """Of the answers of a kind under a decoding: tokens is the mean, the rest are counts."""

    kind: str
    decoding: str
    answers: int
    tokens: float
    repetitive: int
    unfinished: int
    right: int | None


def read_questions(path: Path) -> list[Question]:
    """Raises ModelFileError for a line that is no question."""
    questions = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            question = json.loads(line) if line.strip() else None
        except ValueError:
            question = {}
        if question is None:
            continue
        if not isinstance(question, dict) or not {"id", "kind", "prompt"} <= question.keys():
            raise ModelFileError(f"{path}, line {number}: not an object with id, kind and prompt.")
        questions.append(question)
    return questions


def last_number(text: str) -> str | None:
    """The last number in `text` without commas, or None."""
    found = re.findall(r"\d[\d,]*(?:\.\d+)?", text)
    return found[-1].replace(",", "").rstrip(".") if found else None


def answer(question: Question, decoding: str, text: str, tokens: int, finished: bool) -> Answer:
    """`text`, judged as the answer to `question`."""
    right = last_number(text) == str(question["answer"]) if "answer" in question else None
    loops = repetitive(text)
    return Answer(question["id"], question["kind"], decoding, text, tokens, finished, loops, right)


def scores(answers: Iterable[Answer]) -> list[Score]:
    """One of each kind and decoding, in order of appearance."""
    groups: dict[tuple[str, str], list[Answer]] = {}
    for found in answers:
        groups.setdefault((found.kind, found.decoding), []).append(found)
    return [_score(kind, decoding, group) for (kind, decoding), group in groups.items()]


def _score(kind: str, decoding: str, group: list[Answer]) -> Score:
    known = [found.right for found in group if found.right is not None]
    return Score(
        kind,
        decoding,
        len(group),
        round(sum(found.tokens for found in group) / len(group), 1),
        sum(found.repetitive for found in group),
        sum(not found.finished for found in group),
        sum(known) if known else None,
    )


def ask_all(
    model: Path, questions: list[Question], threads: int, report: Callable[[Answer], None]
) -> list[Answer]:
    """The model's answers to all questions under all decodings."""
    from llama_cpp import Llama

    llama = Llama(
        str(model), n_ctx=1024, n_threads=threads, n_threads_batch=threads, seed=SEED, verbose=False
    )
    found = []
    for decoding, sampling in DECODINGS.items():
        for question in questions:
            made: Any = llama.create_chat_completion(
                [{"role": "user", "content": question["prompt"]}],
                max_tokens=LONGEST,
                repeat_penalty=1.0,
                seed=SEED,
                **sampling,
            )
            choice, usage = made["choices"][0], made["usage"]
            finished = choice["finish_reason"] == "stop"
            text = choice["message"]["content"]
            found.append(answer(question, decoding, text, usage["completion_tokens"], finished))
            report(found[-1])
    return found


def table(found: Iterable[Score]) -> str:
    """Markdown."""
    lines = [
        "| prompts | decoding | answers | tokens each | repetitive | unfinished | right |",
        "|---|---|---|---|---|---|---|",
    ]
    for score in found:
        right = "" if score.right is None else str(score.right)
        lines.append(
            f"| {score.kind} | {score.decoding} | {score.answers} | {score.tokens:.0f} "
            f"| {score.repetitive} | {score.unfinished} | {right} |"
        )
    return "\n".join(lines)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--questions",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=QUESTIONS,
    help="Lines of id, kind, prompt, and for sums answer. Default: those that come with it.",
)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Keep the answers in a file.")
@click.option("-t", "--threads", type=click.IntRange(min=1), default=1, help="Default: 1.")
@click.option("--show", is_flag=True, help="Print every answer.")
def main(model: Path, questions: Path, out: Path | None, threads: int, show: bool) -> None:
    """Ask MODEL questions, greedily and at temperature 0.7, and count what is wrong."""
    try:
        read_gguf_info(model)
        asked = read_questions(questions)
    except ModelFileError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    prompts = {question["id"]: question["prompt"] for question in asked}

    def report(found: Answer) -> None:
        if show:
            marks = "repetitive " * found.repetitive + "unfinished " * (not found.finished)
            click.echo(f"{marks}{prompts[found.id]}\n  -> {found.text}")

    answers = ask_all(model, asked, threads, report)
    click.echo(table(scores(answers)))
    if out:
        figures = {
            "scores": [asdict(score) for score in scores(answers)],
            "answers": [asdict(found) for found in answers],
        }
        out.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
