"""Grammars, JSON schemas and log probabilities."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from specfit.backend import Engine, Sampling, Spec, SpecfitError
from specfit.backend.guided import check_grammar, grammar_of_schema, guided

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


def _texts(engine: Engine) -> Any:
    engine.forget()
    return engine.generate(
        ASK, sampling=Sampling(temp=0.7, seed=4), max_tokens=48, spec=Spec.parse("off")
    )
