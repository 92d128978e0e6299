"""Grammars, JSON schemas and log probabilities."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai.types.chat import ChatCompletion
from test_batch import lines_of

from specfit.app import batch
from specfit.backend import Engine, Sampling, Spec, SpecfitError
from specfit.backend.grammars import check_grammar, grammar_of_schema
from specfit.backend.guided import guided

ASK = [{"role": "user", "content": "Give me a fruit as JSON."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "ripe": {"type": "boolean"}},
    "required": ["name", "ripe"],
}


def answer(engine: Engine, mode: str, temp: float, **wanted: Any) -> tuple[Any, Any]:
    engine.forget()
    generation, sampler = guided(
        engine,
        ASK,
        **{
            "sampling": Sampling(temp=temp, seed=4),
            "max_tokens": 48,
            "spec": Spec.parse(mode),
            "stop": (),
            "grammar": None,
            "top": None,
            **wanted,
        },
    )
    for _ in generation:
        pass
    return generation, sampler


@pytest.mark.parametrize("mode", ["off", "chain:3", "eagle3:16"])
@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_an_answer_keeps_to_its_schema_under_any_mode(bundled_engine, mode, temp):
    grammar = grammar_of_schema(SCHEMA)
    generation, _ = answer(bundled_engine, mode, temp, grammar=grammar)
    assert generation.report.finish_reason == "stop"
    fruit = json.loads(generation.report.text)
    assert set(fruit) == {"name", "ripe"}
    assert isinstance(fruit["ripe"], bool)
    assert len(fruit["name"]) <= 12
    if mode != "off":
        assert generation.report.accepted > 0


def test_a_grammar_leaves_nothing_else(bundled_engine):
    generation, _ = answer(bundled_engine, "off", 1.0, grammar='root ::= "y"+ "e" [s-t]')
    assert re.fullmatch("y+e[st]", generation.report.text)


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ("root ::= foo", "Undefined rule identifier 'foo'"),
        ("root ::= [a-", "unexpected end of input"),
        ('foo ::= "a"', "does not contain a 'root' symbol"),
        ('root ::= root "a"', "left recursion"),
        ("", "empty"),
        (" \n", "empty"),
        ('root ::= "\0"', "NUL"),
        ("root ::= " + "(" * 100_000, "nested deeper"),
        ('root ::= "' + "a" * 300_000 + '"', "longer than"),
        ('root ::= "a"{100000}', "number of repetitions"),
    ],
)
def test_a_grammar_that_is_none_is_one_sentence(grammar, why, capfd):
    with pytest.raises(SpecfitError, match=re.escape(why)) as raised:
        check_grammar(grammar)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#/nowhere"},
        {"type": "nonsense"},
        {"type": 5},
        7,
    ],
)
def test_a_schema_that_cannot_be_followed_is_named(schema):
    with pytest.raises(SpecfitError, match="the JSON schema cannot be followed"):
        grammar_of_schema(schema)


@pytest.mark.parametrize("mode", ["off", "chain:3"])
def test_every_token_is_noted_with_what_the_model_made_of_it(bundled_engine, mode):
    generation, sampler = answer(bundled_engine, mode, 0.8, top=3)
    assert [noted.token for noted in sampler.noted] == generation.tokens
    for noted in sampler.noted:
        assert len(noted.top) == 3
        chances = [logprob for _, logprob in noted.top]
        assert chances == sorted(chances, reverse=True)
        assert noted.logprob <= chances[0] <= 0
        assert sum(np.exp(chances)) <= 1 + 1e-9
        of_top = dict(noted.top)
        if noted.token in of_top:
            assert noted.logprob == of_top[noted.token]


def test_the_noted_chances_are_those_of_the_logits(bundled_engine):
    generation, sampler = answer(bundled_engine, "off", 0.0, top=0, max_tokens=1)
    logits = bundled_engine.context.logits(-1).astype(np.float64)
    expected = logits[generation.tokens[0]] - np.log(np.exp(logits).sum())
    assert sampler.noted[0].logprob == pytest.approx(expected, abs=1e-5)
    assert sampler.noted[0].top == ()


def test_noting_changes_no_text(bundled_engine):
    plain = "".join(_texts(bundled_engine))
    generation, _ = answer(bundled_engine, "off", 0.7, top=5)
    assert generation.report.text == plain


def put(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


QUICK = ("-n", 40, "-c", 512, "-t", 1, "-np", 2, "-s", 1)


def test_a_batch_keeps_to_the_grammars_of_its_lines_and_options(command, tmp_path):
    prompt = {"prompt": "Give me a fruit."}
    formats = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": SCHEMA}}
    request = {"messages": ASK, "response_format": formats, "logprobs": True, "top_logprobs": 2}
    source = put(
        tmp_path / "in",
        {"id": "option", **prompt, "n": 2},
        {"id": "own", **prompt, "grammar": 'root ::= "pl" "um"'},
        {"id": "schema", **prompt, "json_schema": SCHEMA},
        {"custom_id": "openai", "body": request},
    )
    out = tmp_path / "out.jsonl"
    (tmp_path / "grammar").write_text('root ::= "yes" | "no"')
    flags = ("--grammar-file", tmp_path / "grammar", "--format", "openai")
    assert command(batch.main, source, "-o", out, *QUICK, *flags).code == 0
    choices = {r["custom_id"]: r["response"]["body"]["choices"] for r in lines_of(out)}
    texts = {name: [one["message"]["content"] for one in of] for name, of in choices.items()}
    assert len(texts["option"]) == 2 and set(texts["option"]) <= {"yes", "no"}
    assert texts["own"] == ["plum"]
    assert json.loads(texts["schema"][0]).keys() == json.loads(texts["openai"][0]).keys()
    assert choices["own"][0]["logprobs"] is None
    answered = {r["custom_id"]: r["response"]["body"] for r in lines_of(out)}
    completion = ChatCompletion.model_validate(answered["openai"], strict=True)
    content = completion.choices[0].logprobs.content
    assert "".join(one.token for one in content) == texts["openai"][0]
    assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in content)


def test_log_probabilities_are_told_where_they_are_asked_for(command, tmp_path):
    lines = [{"id": 1, "prompt": "Hi"}, {"id": 2, "prompt": "Hi", "logprobs": False}]
    source, out = put(tmp_path / "in", *lines), tmp_path / "out.jsonl"
    assert command(batch.main, source, "-o", out, *QUICK, "--logprobs", 1).code == 0
    told, silent = sorted(lines_of(out), key=lambda record: record["id"])
    assert "logprobs" not in silent
    content = told["logprobs"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in content).decode() == told["text"]
    assert all(len(one["top_logprobs"]) == 1 for one in content)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--grammar", "root ::= foo"), "--grammar: not a GBNF grammar"),
        (("--json-schema", "{"), "--json-schema: not JSON"),
        (("-j", '{"type": "nonsense"}'), "--json-schema: the JSON schema cannot be followed"),
        (("-j", "[" * 100_000), "--json-schema: not JSON"),
        (("--grammar", 'root ::= "a"', "-j", "{}"), "give one"),
        (("--grammar-file", "/nowhere"), "/nowhere: No such file"),
        (("--logprobs", 21), "--logprobs"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_named_before_any_work(command, tmp_path, flags, said):
    source, out = put(tmp_path / "in", {"id": 1, "prompt": "Hi"}), tmp_path / "out.jsonl"
    outcome = command(batch.main, source, "-o", out, "-m", "/nowhere.gguf", *flags)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert said in outcome.err
    assert not out.exists()


def _texts(engine: Engine) -> Any:
    engine.forget()
    return engine.generate(
        ASK, sampling=Sampling(temp=0.7, seed=4), max_tokens=48, spec=Spec.parse("off")
    )
