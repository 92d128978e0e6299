"""Files that are no good: how each is made, at the time of the test, and what must be said of it.

Those of models are in badgguf, badheads and badtemplates. Databases that are damaged are in
test_store_trouble and test_store_rescue.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracecases import made_up_trace, write_trace

# Writes a file to the path, or changes the one that is there. The pattern is what must be said.
Writes = Callable[[Path], object]
Bad = tuple[Writes, str]


def content(data: bytes) -> Writes:
    return lambda path: path.write_bytes(data)


def sparse(size: int, start: bytes = b"") -> Writes:
    """A file of zeros, which takes no space."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.write(start)
            file.truncate(size)

    return write


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(path)


BRACKETS = b"[" * 100_000


def line(number: int, rest: str) -> bytes:
    return f'{{"id": {number}, {rest}}}'.encode()


def asking(number: int, **more: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": "Hi"}], **more}
    return json.dumps({"custom_id": str(number), "body": body}).encode()


# Of one file of prompts, between lines that are answered: the error of each line.
LINES: list[tuple[bytes, str]] = [
    (b'{"id": 1, "prompt": "Hi"', "not JSON: Expecting ',' delimiter at column"),
    (b'{"id": 1, "prompt": "H\0i"}', "not JSON: Invalid control character"),
    (b"\0\0\0\0", "not JSON: Expecting value"),
    (b'{"id": 1, "prompt": "\xff\xfe"}', "not UTF-8 text"),
    ('{"id": 1, "prompt": "Hi"}'.encode("utf-16"), "not UTF-8 text"),
    (line(1, r'"prompt": "\ud800"'), '"prompt" holds half of a surrogate pair'),
    (b'{"id": 1, "prompt": ' + BRACKETS + b"}", "not JSON that can be read: .*recursion"),
    (b'{"id": 1, "a": ' + BRACKETS + b"]" * 100_000 + b', "prompt": "Hi"}', "recursion"),
    (b'{"a":' * 100_000, "recursion"),
    (b'{"id": 1e400, "prompt": "Hi"}', '"id" must be a text or a whole number'),
    (b'{"id": ' + b"9" * 5000 + b', "prompt": "Hi"}', "4300 digits"),
    (b'{"id": [1], "prompt": "Hi"}', '"id" must be a text or a whole number'),
    (b'{"prompt": "Hi"}', '"id" is missing'),
    (b"[]", "not a JSON object"),
    (b'"Hi"', "not a JSON object"),
    (line(1, '"prompt": {"a": 1}'), '"prompt" must be a text'),
    (line(1, '"prompt": ""'), '"prompt" must be a text that is not empty'),
    (line(1, '"messages": {"role": "user"}'), '"messages" must be a list'),
    (line(1, '"messages": [null]'), r'"messages"\[0\] must be an object'),
    (line(1, '"messages": [{"role": ["user"], "content": "a"}]'), '"role" must be one of'),
    (line(1, '"messages": [{"role": "user", "content": null}]'), '"content" must be a text'),
    (line(1, '"prompt": "Hi", "temperature": 1e400'), '"temperature" must be a number from 0'),
    (line(1, '"prompt": "Hi", "temperature": NaN'), '"temperature" must be a number from 0'),
    (line(1, '"prompt": "Hi", "seed": 1e300'), '"seed" must be a whole number'),
    (line(1, f'"prompt": "Hi", "max_tokens": {"9" * 4000}'), '"max_tokens" must be a whole'),
    (line(1, '"prompt": "Hi", "logprobs": "yes"'), '"logprobs" must be true or false'),
    (line(1, f'"prompt": "{"a" * (10 << 20)}"'), "the prompt has 10,485,760 characters"),
    (line(1, '"prompt": "Hi", "grammar": "root ::= root"'), "left recursion"),
    (line(1, r'"prompt": "Hi", "grammar": "root ::= \"a\"{9999}"'), "number of repetitions"),
    (line(1, r'"prompt": "Hi", "grammar": "root ::= \"a\"{5,2}"'), "make it simpler|memory"),
    (line(1, r'"prompt": "Hi", "grammar": "root ::= \"a\"' + "+" * 20 + '"'), "takes more than"),
    (line(1, f'"prompt": "Hi", "grammar": "root ::= {"(" * 9999}"'), "nested deeper than 2000"),
    (line(1, '"prompt": "Hi", "grammar": "root ::= <[99999999]>"'), "lets no token"),
    (
        line(
            1, '"prompt": "Hi", "json_schema": {"items": {"type": "null"}, "minItems": 1000000000}'
        ),
        '"json_schema": the JSON schema asks for more memory',
    ),
    (
        line(1, f'"prompt": "Hi", "json_schema": {"{" + chr(34) + "items" + chr(34) + ":"}'),
        "not JSON",
    ),
    (
        line(1, '"prompt": "Hi", "json_schema": ' + '{"not": ' * 900 + "{}" + "}" * 900),
        "JSON schema (is nested too deeply|cannot be followed)",
    ),
    (asking(1, n=10**9), '"n" must be a whole number from 1 to 128'),
    (asking(1, messages=[{"role": "user", "content": [{"type": "image_url"}]}]), '"content" must'),
    (asking(1, tools=[{"type": "function"}]), '"tools" is not supported'),
    (asking(1, **{"a" * 100_000: 1}), r'"body": "a{79} is no parameter known here'),
    (asking(1, response_format={"type": "xml"}), '"response_format" must be of type'),
    (b'{"custom_id": "1", "body": []}', '"body" must be an object'),
    (b'{"custom_id": "1", "url": "file:///etc/passwd", "body": {}}', '"url" must be "/v1'),
]

# Files of prompts that end the run, or whose lines fail all.
INPUTS: dict[str, Bad] = {
    "nothing": (content(b""), "holds no line to answer"),
    "blanks": (content(b"\xef\xbb\xbf\n \n\t\r\n"), "holds no line to answer"),
    "UTF-16": (content("Hi\n".encode("utf-16")), "is UTF-16 text; write it in UTF-8"),
    "no text": (content(gzip.compress(b"Hi")), "1 of 1 line failed; .* says why"),
    "a line of zeros": (sparse(100 << 20), "1 of 1 line failed; .* says why"),
    "JSON over lines": (content(b'{\n"id": 1,\n"prompt": "Hi"\n}'), "4 of 4 lines failed"),
    "a folder": (folder, "Is a directory"),
    "a link to itself": (link, "symbolic links"),
    "no file": (lambda _path: None, "No such file"),
}

NOT_OURS = "was not written by specfit-batch; move the file away or name another"
OUTPUTS: dict[str, Bad] = {
    "notes": (content(b"Dear diary,\n"), f"line 1 {NOT_OURS}"),
    "other JSON": (content(b'{"a": 1}\n'), f"line 1 {NOT_OURS}"),
    "ours, and notes": (content(b'{"key": "a", "id": 1}\nDear diary,\n'), f"line 2 {NOT_OURS}"),
    "a key of numbers": (content(b'{"key": "a"}\n{"key": 5}\n'), f"line 2 {NOT_OURS}"),
    "brackets": (content(b'{"key": "a", "id": ' + BRACKETS + b"\n"), f"line 1 {NOT_OURS}"),
    "a folder": (folder, "Is a directory"),
    "a link to itself": (link, "symbolic links"),
}

NO_MANIFEST = "is no manifest of specfit-batch; move it away"
MANIFESTS: dict[str, Bad] = {
    "nothing": (content(b""), NO_MANIFEST),
    "a list": (content(b"[]"), NO_MANIFEST),
    "runs that are a number": (content(b'{"runs": 5}'), NO_MANIFEST),
    "brackets": (content(BRACKETS), NO_MANIFEST),
    "no text": (content(b"\xff\xfe"), NO_MANIFEST),
    "a folder": (folder, "Is a directory"),
}


def trace(number: int, **changes: object) -> Writes:
    """A trace whose line of that number is changed."""

    def write(path: Path) -> None:
        good = made_up_trace(3)
        write_trace(path, good)
        lines = path.read_text().splitlines()
        lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | changes)
        path.write_text("\n".join(lines) + "\n")

    return write


def compressed(write: Callable[[bytes], bytes], data: bytes) -> Writes:
    return lambda path: path.write_bytes(write(gzip.compress(data, 1)))


# Their names end in .gz if that of the case does.
TRACES: dict[str, Bad] = {
    "nothing": (content(b""), "is not a trace that specfit-bench --trace wrote"),
    "notes": (content(b"Dear diary,\n"), "line 1 is not JSON"),
    "brackets": (content(BRACKETS + b"\n"), "line 1 is nested too deeply"),
    "another version": (trace(1, specfit_trace=2), "is not a trace"),
    "10^9 layers": (trace(1, layers=10**9), r"line 3 is damaged$"),
    "10^30 layers": (trace(1, layers=10**30), "line 3 is damaged"),
    "more experts used than there are": (trace(1, used=10**9), "header makes no sense"),
    "parents that are texts": (trace(3, parents="many"), "line 3 is damaged"),
    "a million parents": (trace(3, parents=[-1] * 10**6), "line 3 is damaged: .* differ in length"),
    "tokens beyond": (trace(3, tokens=[2**40]), r"line 3 is damaged$"),
    "a context without end": (trace(3, context=10**300), "line 3 is damaged: .* out of range"),
    "states cut short": (trace(3, hidden="AAAA"), "line 3 is damaged"),
    "a prompt of brackets": (trace(2, prompt=[[[[5]], 1]]), "line 2 is damaged"),
    "a folder": (folder, "Is a directory"),
    "what is not compressed.gz": (content(b"Dear diary,\n"), "cannot be read: Not a gzipped"),
    "what is cut.gz": (compressed(lambda data: data[:-9], b"[]" * 99), "is not a trace"),
    "a line of 80 MB.gz": (compressed(bytes, bytes(80 << 20)), "line 1 is longer than any"),
}


def points(text: str, rest: str = '"draft_level_ms": 1') -> Writes:
    return content(f'{{{rest}, "points": {text}}}'.encode())


NO_PROFILE = r"is not a cost profile .* it needs \"points\" of rows, union and ms"
ROW = '{"rows": 1, "union": 8, "ms": 5}'
PROFILES: dict[str, Bad] = {
    "nothing": (content(b""), NO_PROFILE),
    "brackets": (content(BRACKETS), NO_PROFILE),
    "a list": (content(b"[]"), NO_PROFILE),
    "no points": (points("[]"), NO_PROFILE),
    "points that are a number": (points("5"), NO_PROFILE),
    "10^12 rows": (points('[{"rows": 1000000000000, "union": 8, "ms": 1}]'), NO_PROFILE),
    "rows below nothing": (points('[{"rows": -1, "union": 8, "ms": 1}]'), NO_PROFILE),
    "no time": (points('[{"rows": 1, "union": 8, "ms": 0}]'), NO_PROFILE),
    "a time that is no number": (points(f"[{ROW}]", '"draft_level_ms": NaN'), NO_PROFILE),
    "a context of no rows": (
        points(f"[{ROW}]", '"draft_level_ms": 1, "context_ms": [1], "context_rows": []'),
        NO_PROFILE,
    ),
    "a folder": (folder, "no such file, and the shipped profiles are"),
    "no file": (lambda _path: None, "no such file, and the shipped profiles are"),
}

SETTINGS: dict[str, Bad] = {
    "no text": (content(b"\xff\xfe"), r"config\.toml is not UTF-8 text"),
    "a NUL": (content(b"theme = '\0'"), "line 1: not TOML: Found invalid character"),
    "brackets": (content(b"a = " + BRACKETS), "not TOML that can be read: .* nested too deeply"),
    "dots": (content(b"a" + b".a" * 100_000 + b" = 1"), "a line of more than 1000 dots"),
    "5000 digits": (content(b"a = " + b"9" * 5000), "not TOML that can be read: .*4300 digits"),
    "zeros": (sparse(200 << 20), "is no file of settings, but something else or too large"),
    "a key twice": (content(b"theme = 'a'\ntheme = 'b'"), "not TOML: Cannot overwrite a value"),
    "a table as list": (content(b"[[chat]]"), r"chat: is a table; write \[chat\]"),
    "a model as number": (content(b"[chat]\nmodel = 5"), "line 2: model: give a text in quotes"),
    "a temperature that is none": (content(b"[chat]\ntemp = nan"), "line 2: temp: nan is not a"),
    "an unknown name": (content(b"[chat]\nmodle = ''"), "line 2: modle: no option .* mean model"),
    "a folder": (folder, "Is a directory"),
    "a pipe": (pipe, "is no file of settings"),
}

# 40 rules, of which each names the next one twice.
DOUBLING = b"root ::= a0\na40 ::= [a]\n" + b"\n".join(
    b"a%d ::= a%d a%d | a%d" % (n, n + 1, n + 1, n + 1) for n in range(40)
)
# Grammars and JSON schemas that options name.
OPTIONS: dict[str, tuple[str, Writes, str]] = {
    "a grammar that is no text": ("--grammar-file", content(b"\xff\xfe"), "is not UTF-8 text"),
    "a grammar of NULs": ("--grammar-file", content(bytes(100)), "NUL character"),
    "a grammar without end": ("--grammar-file", content(DOUBLING), "takes more than 1 s"),
    "a grammar that is a folder": ("--grammar-file", folder, "Is a directory"),
    "a schema of brackets": ("--json-schema-file", content(BRACKETS), "not JSON"),
    "a schema that is a number": ("--json-schema-file", content(b"5"), "cannot be followed"),
    "a schema elsewhere": (
        "--json-schema-file",
        content(b'{"$ref": "https://localhost/a"}'),
        "cannot be followed",
    ),
}

PROMPTS: dict[str, Bad] = {
    "nothing": (content(b""), "holds no prompts"),
    "notes": (content(b"Dear diary,\n"), "line 1: not JSON"),
    "brackets": (content(BRACKETS), "line 1: not JSON that can be read"),
    "no prompt": (content(b'{"id": 1}\n'), 'line 1: has neither "prompt" nor "messages"'),
}
