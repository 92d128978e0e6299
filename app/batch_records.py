"""The lines that `specfit-batch` writes, in our words or in OpenAI's.

Every record begins with its "key", by which a rerun knows it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .prompts import Id

if TYPE_CHECKING:
    from specfit.backend import Generation, Report
    from specfit.backend.guided import Noted
    from specfit.backend.model import Model

Format = Literal["specfit", "openai"]
Record = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What came of a line. Of its completions, one each: seeds; logprobs, if they are wanted."""

    key: str
    id: Id
    generations: Sequence[Generation]
    seeds: Sequence[int]
    logprobs: Sequence[Record | None]


@dataclass(frozen=True)
class Writing:
    """How records are written. model: its name. mode: of speculation. timeless: leave out the time
    of day, so that the same answer is the same record."""

    format: Format
    model: str
    mode: str
    timeless: bool

    def answer(self, answer: Answer) -> Record:
        reports = [generation.report for generation in answer.generations]
        usage, speculation = _usage(reports), _speculation(answer.generations, self.mode)
        if self.format == "openai":
            choices = [
                _openai_choice(index, report, logprobs)
                for index, (report, logprobs) in enumerate(
                    zip(reports, answer.logprobs, strict=True)
                )
            ]
            body = {
                "id": f"chatcmpl-{answer.key}",
                "object": "chat.completion",
                "created": 0 if self.timeless else int(time.time()),
                "model": self.model,
                "choices": choices,
                "usage": usage,
            }
            response = {"status_code": 200, "request_id": answer.key, "body": body}
            ours = {"seeds": list(answer.seeds), "speculation": speculation}
            return _openai(answer.key, answer.id, response, None) | {"specfit": ours}
        choices = [
            {"text": report.text, "finish_reason": report.finish_reason, "seed": seed}
            | ({} if logprobs is None else {"logprobs": logprobs})
            for report, seed, logprobs in zip(reports, answer.seeds, answer.logprobs, strict=True)
        ]
        what = choices[0] if len(choices) == 1 else {"choices": choices}
        counts = {"usage": usage, "speculation": speculation}
        return {"key": answer.key, "id": answer.id, **what, **counts}

    def failure(self, key: str, line: Id | None, error: str) -> Record:
        if self.format == "openai":
            return _openai(key, line, None, {"code": "failed", "message": error})
        return {"key": key, "id": line, "error": error}


def format_of(record: Record) -> Format:
    return "openai" if "custom_id" in record else "specfit"


def has_failed(record: Record) -> bool:
    return record.get("error") is not None


def _openai(key: str, line: Id | None, response: Record | None, error: Record | None) -> Record:
    custom_id = line if line is None or isinstance(line, str) else json.dumps(line)
    return {
        "key": key,
        "id": f"batch_req_{key}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }


def _openai_choice(index: int, report: Report, logprobs: Record | None) -> Record:
    return {
        "index": index,
        "message": {"role": "assistant", "content": report.text, "refusal": None},
        "logprobs": logprobs,
        "finish_reason": report.finish_reason,
    }


def logprobs_of(noted: Sequence[Noted], model: Model) -> Record:
    """OpenAI's log probabilities: of every token but the one that ends the answer. A token whose
    bytes are half a character has a replacement character for text."""

    def entry(token: int, logprob: float) -> Record:
        piece = model.piece(token)
        text = piece.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(piece)}

    content = [
        {**entry(one.token, one.logprob), "top_logprobs": [entry(*best) for best in one.top]}
        for one in noted
        if not model.ends(one.token)
    ]
    return {"content": content, "refusal": None}


def _usage(reports: Sequence[Report]) -> Record:
    """The prompt counts once, as OpenAI counts it."""
    prompt = reports[0].prompt_tokens
    completion = sum(report.completion_tokens for report in reports)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _speculation(generations: Sequence[Generation], mode: str) -> Record:
    """Of a cycle that several lines shared, the drafted rows count by the line's equal share."""
    cycles = [cycle for generation in generations for cycle in generation.cycles]
    n = len(cycles)
    # The first token is the prompt's; of a cycle all but one were drafts.
    committed = sum(max(0, len(generation.tokens) - 1) for generation in generations)
    drafted = sum(cycle.drafted / cycle.lines for cycle in cycles)
    return {
        "mode": mode,
        "cycles": n,
        "drafted": int(drafted) if drafted == int(drafted) else round(drafted, 3),
        "accepted": committed - n,
        "mean_acceptance_length": committed / n if n else 0.0,
        "rows_per_cycle": 1 + drafted / n if n else 0.0,
        "lines_per_cycle": sum(cycle.lines for cycle in cycles) / n if n else 0.0,
    }
