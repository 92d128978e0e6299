"""What specfit-batch writes: forms of answers, several at once, failures, progress."""

from __future__ import annotations

import json
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_batch import lines_of

from specfit.app import batch, batch_progress
from specfit.app.batch_parameters import Parameters
from specfit.app.batch_progress import Counts, begin, in_words, shown
from specfit.app.batch_records import Answer
from specfit.app.batch_run import Line, Worker
from specfit.app.interrupts import Interrupts
from specfit.backend import Engine, LoadOptions, Spec, SpecfitError

QUICK = ("-n", "6", "--spec", "off", "-c", "512", "-t", "1")
ALONE = (*QUICK, "-np", "1")
ROOT = Path(__file__).parent.parent


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def put(tmp_path: Path) -> Any:
    def write(*lines: object) -> Path:
        path = tmp_path / "in.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path

    return write


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": text}], **more}


def test_openais_own_types_parse_answers_and_errors(command, put, out):
    from openai.types.chat import ChatCompletion

    source = put(
        {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": body("Hi")},
        {"custom_id": "r2", "body": body("Name a fruit.", n=2, max_tokens=4, seed=5)},
        {"custom_id": "r3", "body": body("Hi", tools=[1])},
        {"id": 4, "prompt": "Hello"},
    )
    outcome = command(batch.main, source, "-o", out, "--format", "openai", *ALONE)
    assert outcome.code == 2
    first, second, wrong, own = lines_of(out)
    assert [r["custom_id"] for r in (first, second, wrong, own)] == ["r1", "r2", "r3", "4"]
    for record, n in ((first, 1), (second, 2), (own, 1)):
        assert record["error"] is None
        assert record["id"].startswith("batch_req_")
        assert record["response"]["status_code"] == 200
        completion = ChatCompletion.model_validate(record["response"]["body"], strict=True)
        assert completion.model == "specfit-tiny-q4_0.gguf"
        assert completion.created > 1.7e9
        assert [choice.index for choice in completion.choices] == list(range(n))
        for choice in completion.choices:
            assert choice.finish_reason in ("stop", "length")
            assert choice.message.role == "assistant"
            assert choice.message.content
        usage = completion.usage
        assert usage is not None
        assert usage.prompt_tokens + usage.completion_tokens == usage.total_tokens
    assert second["specfit"]["seeds"][0] == 5
    assert wrong["response"] is None
    assert '"tools" is not supported' in wrong["error"]["message"]


def test_a_deterministic_record_says_nothing_of_the_time(command, put, out, tmp_path):
    source = put({"custom_id": "r1", "body": body("Hi")})
    for target in (out, tmp_path / "again"):
        flags = ("--format", "openai", "--deterministic")
        assert command(batch.main, source, "-o", target, *QUICK, *flags).code == 0
    assert out.read_bytes() == (tmp_path / "again").read_bytes()


def test_what_a_line_says_goes_before_the_options(command, put, out):
    prompt = {"prompt": "Tell me a story."}
    source = put(
        {"id": "flags", **prompt},
        {"id": "own", **prompt, "max_tokens": 3, "temperature": 0},
        {"id": "stop", **prompt, "stop": ["a"], "max_tokens": -1},
        {"id": "n", **prompt, "n": 3, "seed": 9},
        {"id": "seed", **prompt, "seed": 9},
    )
    assert command(batch.main, source, "-o", out, *ALONE, "-s", 1, "--temp", 1).code == 0
    flags, own, stop, several, seed = lines_of(out)
    assert flags["usage"]["completion_tokens"] <= 6
    assert own["usage"]["completion_tokens"] == 3
    assert stop["finish_reason"] == "stop"
    assert "a" not in stop["text"]
    choices = several["choices"]
    assert choices[0]["seed"] == 9
    assert len({choice["seed"] for choice in choices}) == 3
    assert len({choice["text"] for choice in choices}) > 1
    assert choices[0]["text"] == seed["text"]
    assert several["usage"]["prompt_tokens"] == seed["usage"]["prompt_tokens"]


def test_options_hold_where_a_line_says_nothing(command, put, out):
    source = put({"id": 1, "fruit": "plum"})
    flags = ("--template", "Name a {fruit}.", "--completions", 2, "--stop", "e", "--stop", "a")
    assert command(batch.main, source, "-o", out, *ALONE, *flags).code == 0
    (record,) = lines_of(out)
    assert len(record["choices"]) == 2
    assert not any(set("ae") & set(choice["text"]) for choice in record["choices"])


def test_lines_at_once_are_all_there_and_each_is_itself(command, put, out):
    source = put(*[{"id": i, "prompt": f"Say {i}.", "max_tokens": 2 + i} for i in range(9)])
    assert command(batch.main, source, "-o", out, *QUICK, "-np", 4).code == 0
    records = {record["id"]: record for record in lines_of(out)}
    assert sorted(records) == list(range(9))
    for i, record in records.items():
        usage, speculation = record["usage"], record["speculation"]
        assert usage["completion_tokens"] <= 2 + i
        assert speculation["cycles"] == usage["completion_tokens"] - 1
        assert speculation["accepted"] == 0
    assert max(record["speculation"]["lines_per_cycle"] for record in records.values()) > 2


def test_an_answer_alone_needs_no_memory_for_others(command, put, out, monkeypatch):
    asked, load = [], Engine.load

    def loaded(options, progress):
        asked.append(options.lines)
        return load(options, progress)

    monkeypatch.setattr(Engine, "load", loaded)
    source = put({"id": "a", "prompt": "Name a fruit."})
    assert command(batch.main, source, "-o", out, *QUICK).code == 0
    assert command(batch.main, source, "-o", out, *QUICK, "--completions", 2).code == 0
    assert command(batch.main, source, "-o", out, *QUICK, "-n", 2, "-np", 2).code == 0
    assert asked == [1, None, 2]


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("flags", [(), ("--completions", 2)])
def test_of_lines_under_way_when_a_decode_fails_only_the_guilty_fail(
    command, put, out, monkeypatch, parallel, flags
):
    cycle = Engine.cycle

    def failing(self: Engine, turns: Any, policy: Any) -> Any:
        for turn in turns:
            text = b"".join(map(self.model.piece, turn.line.tokens))
            if b"poison" in text and len(turn.line.tokens) > 14:
                raise SpecfitError("llama.cpp failed")
        return cycle(self, turns, policy)

    monkeypatch.setattr(Engine, "cycle", failing)
    prompts = ["Hi", "Take poison", "Name a fruit", "More poison", "Bye", "Say no", "Say yes"]
    source = put(*[{"id": i, "prompt": prompt} for i, prompt in enumerate(prompts)])
    outcome = command(batch.main, source, "-o", out, *QUICK, "-np", parallel, *flags)
    assert outcome.code == 2
    records = {record["id"]: record for record in lines_of(out)}
    assert sorted(records) == list(range(7)) and len(lines_of(out)) == 7
    assert {i for i, record in records.items() if "error" in record} == {1, 3}
    assert records[1]["error"] == "llama.cpp failed"


def test_whatever_a_template_does_to_a_line_the_others_are_answered(command, put, out, monkeypatch):
    generate = Engine.generate

    def failing(self: Engine, messages: Any, **rest: Any) -> Any:
        if "Hi" in str(messages):
            raise ZeroDivisionError("of the template")
        return generate(self, messages, **rest)

    monkeypatch.setattr(Engine, "generate", failing)
    source = put({"id": 1, "prompt": "Hi"}, {"id": 2, "prompt": "Hello"})
    assert command(batch.main, source, "-o", out, *ALONE).code == 2
    failed, answered = lines_of(out)
    assert failed["error"] == "ZeroDivisionError: of the template"
    assert answered["text"]


def test_lines_that_are_all_unsound_need_no_model(command, put, out, monkeypatch):
    monkeypatch.setattr("specfit.app.loading.loaded_engine", None)
    source = put({"id": 1}, {"prompt": "Hi"})
    assert command(batch.main, source, "-o", out, *QUICK).code == 2
    assert [record["error"][:6] for record in lines_of(out)] == ["line 1", "line 2"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--deterministic", "-np", 2), "one line at a time"),
        (("-np", 0), "-np"),
        (("-np", "many"), "-np"),
        (("--stop", ""), "--stop"),
        (("--completions", 0), "--completions"),
        (("--format", "xml"), "--format"),
        (("--input", "xml"), "--input"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(command, put, out, flags, said):
    source = put({"id": 1, "prompt": "Hi"})
    outcome = command(batch.main, source, "-o", out, "-m", "/nowhere.gguf", *flags)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert said in outcome.err
    assert not out.exists()


def test_progress_for_scripts_is_lines_of_json(command, put, out):
    source = put({"id": 1, "prompt": "Hi"}, {"id": 2}, {"id": 3, "prompt": "Hello"})
    outcome = command(batch.main, source, "-o", out, *ALONE, "--json-progress")
    *progress, sentence = outcome.err.splitlines()
    assert sentence.startswith("specfit-batch: 1 of 3 lines failed")
    first, *_, last = map(json.loads, progress)
    assert (first["done"], first["total"], first["eta_seconds"]) == (0, 3, None)
    assert (last["done"], last["failed"], last["skipped"], last["eta_seconds"]) == (3, 1, 0, 0.0)
    assert last["tokens_per_second"] > 0
    assert last["tokens"] == sum(
        record["usage"]["completion_tokens"] for record in lines_of(out) if "usage" in record
    )


@pytest.mark.parametrize("steady", [False, True])
def test_tokens_of_a_lines_finished_completions_stay_in_its_progress(
    bundled_engine, monkeypatch, steady
):
    """Of a line of three completions, on an engine that answers one at a time."""
    seen = []
    cycle = Engine.cycle

    def watched(self: Engine, turns: Any, policy: Any) -> Any:
        seen.append(worker.running_tokens())
        return cycle(self, turns, policy)

    monkeypatch.setattr(Engine, "cycle", watched)
    asked = Parameters(max_tokens=5, stop=(), temp=1.0)
    messages = ({"role": "user", "content": "Tell me a story."},)
    line = Line("key", "a", messages, asked, seeds=(1, 2, 3))
    with Interrupts() as interrupts:
        worker = Worker(bundled_engine, Spec.parse("off"), interrupts, steady=steady)
        ((_, answer),) = worker.answers([line])
    assert isinstance(answer, Answer)
    written = sum(len(one.tokens) for one in answer.generations)
    assert seen == sorted(seen)
    assert seen[-1] == written - 1
    assert worker.running_tokens() == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_progress_is_told_while_no_line_is_finished(capsys, monkeypatch, as_json):
    monkeypatch.setattr(batch_progress, "EVERY", 0.01)
    monkeypatch.setattr(batch_progress, "JSON_EVERY", 0.01)
    asked = threading.Semaphore(0)
    counts = Counts(10, skipped=2)

    def running() -> int:
        asked.release()
        return 7

    counts.begin(running)
    with shown(counts, as_json=as_json):
        assert all(asked.acquire(timeout=10) for _ in range(8))
    *told, last = capsys.readouterr().err.splitlines()
    assert len(told) >= 3
    if as_json:
        assert all(json.loads(line)["tokens"] == 7 for line in [*told, last])
    else:
        assert all(re.fullmatch(r"2 of 10 lines, \d+\.\d tokens/s", line) for line in told)
        assert re.fullmatch(r"2 of 10 lines, 7 tokens in \d+ s, \d+\.\d tokens/s", last)


def test_progress_counts_what_was_done_and_what_is_under_way(capsys):
    now = 0.0
    counts = Counts(10, skipped=2, clock=lambda: now)
    begin(counts, as_json=False)
    assert capsys.readouterr().err == "8 lines to answer; 2 were done before\n"
    counts.begin(lambda: 7)
    now, counts.done, counts.tokens = 40, 2, 100
    assert counts.in_words() == "4 of 10 lines, 2.7 tokens/s, 2 min left"
    counts.failed = 1
    assert counts.in_the_end() == "4 of 10 lines, 1 failed, 107 tokens in 40 s, 2.7 tokens/s"
    assert json.loads(counts.as_json()) == {
        **{"done": 2, "failed": 1, "skipped": 2, "total": 10, "tokens": 107},
        **{"tokens_per_second": 2.67, "eta_seconds": 120.0},
    }


def test_times_are_said_in_two_units():
    said = [in_words(s) for s in (0.4, 59, 60, 3599, 3600, 90061)]
    assert said == ["0 s", "59 s", "1 min", "59 min 59 s", "1 h", "1 d 1 h"]


def test_the_readmes_python_example_prints_an_answer(monkeypatch, capsys):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(example.replace("\n\n", "\n").splitlines()) <= 5
    small = partial(LoadOptions, ctx=256, threads=1)  # as small as the suite's machines
    monkeypatch.setattr("specfit.backend.LoadOptions", small)
    exec(example, {})
    assert capsys.readouterr().out.strip()
