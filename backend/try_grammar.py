"""Tries whether llama.cpp takes a grammar, or what it makes of a JSON schema; run by
`confined_process`.

A grammar of a few letters can branch without end when it is read, and another, such as "a"++++,
when a text is written by it. So a text is written as well, with the vocabulary of any small model.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf

WRITTEN = 64

_errors: list[str] = []
# ctypes does not keep callbacks alive; the module does.
_log = llama.llama_log_callback(lambda _level, text, _data: _errors.append(text.decode()))


def answerer(model: str) -> Callable[[Mapping[str, Any]], dict[str, str]]:
    """model: a file whose vocabulary has the bytes."""
    llama.llama_log_set(_log, ctypes.c_void_p(0))
    params = llama.llama_model_default_params()
    params.vocab_only = True
    vocab = llama.llama_model_get_vocab(llama.llama_model_load_from_file(model.encode(), params))
    letters = np.array(
        [token for token in range(llama.llama_vocab_n_tokens(vocab)) if _is_letter(vocab, token)]
    )

    def answer(request: Mapping[str, Any]) -> dict[str, str]:
        if "schema" in request:
            return _of_schema(request["schema"])
        wrong = _wrong_with(request["grammar"].encode())
        if not wrong:
            _write(vocab, letters, request["grammar"].encode())
        return {"wrong": wrong}

    return answer


def _of_schema(schema: object) -> dict[str, str]:
    """By llama.cpp's rules: remote references are not followed."""
    try:
        return {"grammar": str(json_schema_to_gbnf(json.dumps(schema)))}
    except MemoryError:
        raise
    except RecursionError:
        return {"wrong": "is nested too deeply"}
    except Exception as error:  # it is of many kinds, and no assertion of ours
        return {"wrong": f"cannot be followed: {str(error) or type(error).__name__:.300}"}


def _wrong_with(grammar: bytes) -> str:
    """The reason of llama.cpp, which it partly writes to stderr."""
    _errors.clear()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            rules = llama.llama_sampler_init_grammar(None, grammar, b"root")
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        if rules:
            llama.llama_sampler_free(rules)
            return ""
        file.seek(0)
        written = file.read(1 << 16).decode("utf-8", "replace").strip()
    first = (written.splitlines() or ["".join(_errors)])[0]
    if "bad_alloc" in first:
        raise MemoryError
    return first.rpartition("error parsing grammar: ")[2].strip() or "llama.cpp does not take it"


def _is_letter(vocab: Any, token: int) -> bool:
    piece = ctypes.create_string_buffer(8)
    return llama.llama_token_to_piece(vocab, token, piece, len(piece), 0, False) == 1


def _write(vocab: Any, letters: np.ndarray, grammar: bytes) -> None:
    """Writes a text of single letters, drawn among those that the grammar lets follow."""
    rules = llama.llama_sampler_init_grammar(vocab, grammar, b"root")
    drawn = random.Random(0)
    candidates = np.zeros(len(letters), llama.llama_token_data)
    address = candidates.ctypes.data_as(llama.llama_token_data_p)
    for _ in range(WRITTEN):
        candidates["id"], candidates["logit"] = letters, 0
        array = llama.llama_token_data_array(address, len(letters), -1, False)
        llama.llama_sampler_apply(rules, ctypes.byref(array))
        follow = candidates["id"][candidates["logit"] == 0]
        if not len(follow):
            break
        llama.llama_sampler_accept(rules, int(drawn.choice(follow)))
    llama.llama_sampler_free(rules)
