"""Which lines specfit-batch takes, and what it reads from them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit.app import batch
from specfit.app.batch_lines import Reading, Request, Template, Unsound
from specfit.app.batch_parameters import Parameters, derived_seed, seeds_of

HI = {"role": "user", "content": "Hi"}
BRIEF = {"role": "system", "content": "Be brief."}


def read(line: object, reading: Reading | None = None) -> Request | Unsound:
    return (reading or Reading()).json_line(json.dumps(line).encode(), 3)


def openai(**body: Any) -> dict[str, Any]:
    return {"custom_id": "r", "method": "POST", "url": "/v1/chat/completions", "body": body}


@pytest.mark.parametrize(
    ("asked", "read_as"),
    [
        ({}, Parameters()),
        ({"temperature": 0, "top_p": 0.5}, Parameters(temp=0.0, top_p=0.5)),
        ({"temp": 1.5, "top_k": 3, "min_p": 0.1}, Parameters(temp=1.5, top_k=3, min_p=0.1)),
        ({"seed": 4, "n": 2, "max_tokens": 9}, Parameters(seed=4, n=2, max_tokens=9)),
        ({"max_completion_tokens": 9, "stop": "x"}, Parameters(max_tokens=9, stop=("x",))),
        ({"logprobs": True}, Parameters(top_logprobs=0)),
        ({"logprobs": True, "top_logprobs": 2}, Parameters(top_logprobs=2)),
        ({"logprobs": False}, Parameters(top_logprobs=-1)),
        ({"grammar": "root ::= [a]"}, Parameters(grammar="root ::= [a]")),
        ({"response_format": {"type": "text"}}, Parameters()),
        ({"stop": ["x", "\n"], "seed": None}, Parameters(stop=("x", "\n"))),
    ],
)
def test_a_line_says_how_it_is_to_be_answered(asked, read_as):
    own = read({"id": 1, "prompt": "Hi", "note": [], **asked})
    theirs = read(openai(model="x", messages=[HI], user="me", **asked))
    assert own == Request(3, 1, (HI,), read_as)
    assert theirs == Request(3, "r", (HI,), read_as)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"temperature": "hot"}, '"temperature" must be a number from 0'),
        ({"temperature": -1}, '"temperature" must be a number from 0'),
        ({"temperature": float("nan")}, '"temperature" must be a number'),
        ({"temperature": float("inf")}, '"temperature" must be a number'),
        ({"temperature": 10**400}, '"temperature" must be a number'),
        ({"temp": 1, "temperature": 1}, "give one"),
        ({"top_p": 2}, '"top_p" must be a number from 0 to 1'),
        ({"top_k": 1.5}, '"top_k" must be a whole number'),
        ({"max_tokens": True}, '"max_tokens" must be a whole number'),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "give one"),
        ({"seed": -1}, '"seed" must be a whole number from 0 to 4294967295'),
        ({"n": 0}, '"n" must be a whole number from 1'),
        ({"n": 10**9}, '"n" must be a whole number from 1'),
        ({"logprobs": 1}, '"logprobs" must be true or false'),
        ({"top_logprobs": 1}, '"logprobs": true'),
        ({"logprobs": True, "top_logprobs": 21}, '"top_logprobs" must be a whole number'),
        ({"grammar": "root ::= foo"}, '"grammar": not a GBNF grammar: Undefined rule'),
        ({"grammar": "root ::= ("}, "\"grammar\": not a GBNF grammar: expecting ')' at its end"),
        ({"grammar": 5}, '"grammar" must be a text'),
        ({"json_schema": {"type": "nonsense"}}, '"json_schema": the JSON schema cannot'),
        ({"json_schema": {}, "grammar": "root ::= [a]"}, "give one"),
        ({"stop": 5}, '"stop" must be a text'),
        ({"stop": [""]}, '"stop" must be a text'),
        ({"stop": ["\ud800"]}, "surrogate"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_named(asked, why):
    for line in ({"id": 1, "prompt": "Hi", **asked}, openai(messages=[HI], **asked)):
        found = read(line)
        assert isinstance(found, Unsound)
        assert found.error.startswith("line 3: ")
        assert why in found.error.replace('"body": ', "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"body": {}}, '"custom_id" must be a text'),
        ({"custom_id": 5, "body": {}}, '"custom_id" must be a text'),
        ({"custom_id": "r"}, '"body" must be an object'),
        (openai(), '"messages" is missing'),
        (openai(messages=[]), "at least one"),
        (openai(messages="Hi"), "at least one"),
        (openai(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), '"content"'),
        (openai(messages=[HI], stream=True), '"stream" is not supported'),
        (openai(messages=[HI], frequency_penalty=0.5), '"frequency_penalty" is not supported'),
        (openai(messages=[HI], response_format={"type": "xml"}), '"response_format" must be of'),
        (openai(messages=[HI], response_format={"type": "json_schema"}), "must be of type"),
        (openai(messages=[HI], response_format=5), "must be of type"),
        (openai(messages=[HI], tools=[{"type": "function"}]), '"tools" is not supported'),
        (openai(messages=[HI], temprature=1), '"temprature" is no parameter known here'),
        (openai(messages=[HI]) | {"url": "/v1/embeddings"}, '"url" must be'),
        (openai(messages=[HI]) | {"method": "GET"}, '"method" must be'),
        ({"id": 1, "messages": [BRIEF, HI], "system": "x"}, "give one"),
        ({"id": 1, "prompt": "x", "system": 5}, '"system" must be a text'),
    ],
)
def test_a_line_that_cannot_be_answered_says_why(line, why):
    found = read(line)
    assert isinstance(found, Unsound)
    assert why in found.error


def test_what_asks_for_nothing_in_an_openai_request_is_passed_over():
    neutral = {"stream": False, "n": None, "presence_penalty": 0, "tools": [], "logit_bias": {}}
    formats = {
        "response_format": {"type": "text"},
        "top_p": None,
        "tool_choice": "auto",
        "metadata": {"a": 1},
    }
    assert read(openai(messages=[HI], **neutral, **formats)) == Request(3, "r", (HI,))


def test_developers_are_the_system_and_parts_are_one_text():
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    messages = [{**BRIEF, "role": "developer"}, {"role": "user", "content": parts}]
    assert read(openai(messages=messages)).messages == (BRIEF, HI)


def test_the_system_message_of_a_line_goes_before_the_options():
    reading = Reading(system="Be brief.")
    assert read({"id": 1, "prompt": "Hi"}, reading).messages == (BRIEF, HI)
    assert read(openai(messages=[HI]), reading).messages == (BRIEF, HI)
    own = {"role": "system", "content": "Be kind."}
    assert read({"id": 1, "prompt": "Hi", "system": "Be kind."}, reading).messages == (own, HI)
    assert read({"id": 1, "messages": [own, HI]}, reading).messages == (own, HI)


def test_a_template_is_filled_from_the_fields_of_a_line():
    reading = Reading(template=Template("{{{word}}} in {to}: {n}, {a.b} {list}"))
    line = {"id": 1, "word": "Bo{ok}", "to": "fr", "n": 5, "a.b": None, "list": ["ä"], "top_k": 2}
    found = read(line, reading)
    assert found.messages[0]["content"] == '{Bo{ok}} in fr: 5, null ["ä"]'
    assert found.asked == Parameters(top_k=2)  # a field that is in the prompt is no parameter


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"id": 1}, 'has no "word"'),
        ({"id": 1, "messages": [HI]}, "a template cannot be filled into"),
        (openai(messages=[HI]), "a template cannot be filled into"),
        ({"id": 1, "word": "\ud800"}, "surrogate"),
    ],
)
def test_a_line_that_does_not_fit_the_template_says_why(line, why):
    found = read(line, Reading(template=Template("Say {word}")))
    assert isinstance(found, Unsound)
    assert why in found.error


@pytest.mark.parametrize(
    "text", ["no field", "{{word}}", "open {word", "close word}", "{}", "{a}}", "{nobody has it}"]
)
def test_a_template_that_cannot_be_meant_is_refused_before_any_work(command, tmp_path, text):
    source = tmp_path / "in"
    source.write_text("Hi\n")
    arguments = (source, "-o", tmp_path / "out", "--template", text, "-m", "/nowhere.gguf")
    outcome = command(batch.main, *arguments)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith("specfit-batch: --template")
    assert not (tmp_path / "out").exists()


def test_lines_without_braces_are_prompts_named_by_their_number(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b'\xef\xbb\xbfName a fruit.\r\n\n[1, 2]\n\xff\n "quoted" \n')
    fruit, brackets, broken, quoted = Reading().lines(path)
    assert fruit == Request(1, 1, ({"role": "user", "content": "Name a fruit."},))
    assert brackets.messages[0]["content"] == "[1, 2]"
    assert (broken.id, broken.error) == (4, "line 4: not UTF-8 text")
    assert (quoted.id, quoted.messages[0]["content"]) == (5, '"quoted"')
    assert isinstance(Reading(kind="json").lines(path)[0], Unsound)


def test_one_line_with_a_brace_makes_all_of_them_json(tmp_path):
    path = tmp_path / "in"
    path.write_text('Name a fruit.\n {"id": 1, "prompt": "Hi"}\n')
    wrong, sound = Reading().lines(path)
    assert "not JSON" in wrong.error
    assert sound.id == 1
    assert [line.id for line in Reading(kind="text").lines(path)] == [1, 2]


def test_plain_text_comes_from_a_pipe_too(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo")))
    reading = Reading(template=Template("Say {prompt}."))
    found = reading.lines(Path("-"))
    assert [line.messages[0]["content"] for line in found] == ["Say one.", "Say two."]


def test_seeds_are_what_the_readme_says():
    import hashlib

    digest = hashlib.sha256(b'[7, "na\\u00efve", 0]').digest()
    assert derived_seed(7, "naïve", 0) == int.from_bytes(digest[:4], "big")
    assert seeds_of("naïve", None, 7, 2) == [derived_seed(7, "naïve", k) for k in (0, 1)]
    assert seeds_of("naïve", 5, 7, 2) == [5, derived_seed(5, "naïve", 1)]
    assert derived_seed(7, 1, 0) != derived_seed(7, "1", 0)


KEYS = st.sampled_from(
    [
        *("id", "prompt", "messages", "system", "role", "content", "type", "text", "custom_id"),
        *("body", "url", "method", "temperature", "top_k", "seed", "stop", "n", "max_tokens"),
        *("logprobs", "top_logprobs", "tools", "model"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**20)
    | st.floats()
    | st.sampled_from(["", "user", "system", "text", "POST", "/v1/chat/completions", "\ud800"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=6) | VALUES, st.sampled_from([None, "a {prompt}"]))
def test_no_line_of_json_is_more_than_an_error(line, template):
    reading = Reading(template=None if template is None else Template(template))
    found = read(line, reading)
    assert isinstance(found, Request | Unsound)
    if isinstance(found, Request):
        assert found.messages
        json.dumps(found.messages, ensure_ascii=False).encode()  # can be written to any file


@given(st.binary(max_size=40))
def test_no_line_of_bytes_is_more_than_an_error(line):
    for read_as in (Reading().json_line, Reading().text_line):
        assert isinstance(read_as(line, 1), Request | Unsound)
