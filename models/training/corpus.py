"""Conversations as ChatML, as tokens, and as rows of equal length for training."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .rows import Rows
from .vocabulary import END_OF_TEXT, END_OF_TURN, START_OF_TURN

Conversation = dict[str, Any]
Tokens = NDArray[np.uint16]

_ENCODED_AT_ONCE = 20_000
_OPEN_ROWS = 64
# Rows that the last conversations left emptier than this would waste a batch's time.
_LEAST_FILL = 0.5


def chatml(conversation: Conversation) -> str:
    turns = "".join(_turn(m["role"], m["content"]) for m in conversation["messages"])
    return turns + END_OF_TEXT


def messages(text: str) -> list[dict[str, str]]:
    """The turns of a text in ChatML, up to the first that is not whole."""
    found = []
    for part in text.split(END_OF_TURN)[:-1]:
        role, newline, content = part.lstrip("\n").removeprefix(START_OF_TURN).partition("\n")
        if not newline or role not in ("system", "user", "assistant"):
            break
        found.append({"role": role, "content": content})
    return found


def plain(conversation: Conversation) -> str:
    """Its text without special tokens, as a tokenizer is trained on."""
    return "\n".join(f"{m['role']}\n{m['content']}\n" for m in conversation["messages"])


def _turn(role: str, content: str) -> str:
    return f"{START_OF_TURN}{role}\n{content}{END_OF_TURN}\n"


def write(path: Path, conversations: Iterable[Conversation]) -> None:
    """Whole or not at all: a stage that was stopped leaves no half of a file."""
    partial = path.with_suffix(".part")
    with gzip.open(partial, "wt", encoding="utf-8", compresslevel=4) as out:
        for conversation in conversations:
            out.write(json.dumps(conversation, ensure_ascii=False) + "\n")
    partial.replace(path)


def read(path: Path) -> list[Conversation]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Tokens]:
    found: list[Tokens] = []
    for at in range(0, len(texts), _ENCODED_AT_ONCE):
        batch = tokenizer.encode_batch(texts[at : at + _ENCODED_AT_ONCE], add_special_tokens=False)
        found += [np.array(encoding.ids, np.uint16) for encoding in batch]
    return found


def packed(documents: Iterable[Tokens], length: int) -> Rows:
    """Documents one behind the other in rows of `length` tokens, cut at it; few places stay empty.

    Each goes into the fullest of some open rows that has room. There is no mask between documents:
    attention learns to pass over what does not belong to a conversation, at all distances.
    """
    rows: list[list[Tokens]] = []
    spare = np.zeros(_OPEN_ROWS, np.int64)
    row_of = np.full(_OPEN_ROWS, -1)
    for document in documents:
        document = document[:length]
        fitting = np.where(spare >= len(document), spare, length + 1)
        place = int(fitting.argmin())
        if fitting[place] > length:
            place = int(spare.argmin())
            row_of[place], spare[place] = len(rows), length
            rows.append([])
        rows[row_of[place]].append(document)
        spare[place] -= len(document)
    fill = np.array([sum(map(len, row)) for row in rows], np.int32)
    kept = np.flatnonzero(fill > _LEAST_FILL * length) if len(rows) > 1 else np.arange(len(rows))
    tokens = np.zeros((len(kept), length), np.uint16)
    for place, row in enumerate(kept):
        tokens[place, : fill[row]] = np.concatenate(rows[row])
    return Rows(tokens, fill[kept])


def answer_mask(tokens: NDArray[np.uint16], opening: Sequence[int], end: int) -> NDArray[np.uint8]:
    """1 on answers: behind `opening`, the tokens of "<|im_start|>assistant\\n", up to `end`.

    tokens: [rows, length]; `end`, <|im_end|>, belongs to the answer.
    """
    n_rows, length = tokens.shape
    opened = np.zeros((n_rows, length + len(opening)), bool)
    found = np.ones((n_rows, length), bool)
    for offset, token in enumerate(opening):
        shifted = np.zeros((n_rows, length), bool)
        shifted[:, : length - offset] = tokens[:, offset:] == token
        found &= shifted
    opened[:, len(opening) :] = found
    mask = np.zeros((n_rows, length), np.uint8)
    inside = np.zeros(n_rows, bool)
    for column in range(length):
        inside |= opened[:, column]
        mask[:, column] = inside
        inside &= tokens[:, column] != end
    return mask


def prompts(
    tokenizer: Tokenizer, conversations: Iterable[Conversation], voices: Sequence[int], seed: int
) -> Iterator[list[int]]:
    """Scripts that have a model answer conversations anew.

    voices: their numbers, of which each conversation gets one, drawn with `seed`. A script is
    without its first token, <|im_start|>, which all share.
    """
    random = np.random.default_rng(seed)
    for conversation in conversations:
        voice = -1 - int(random.choice(voices))
        script: list[int] = []
        text = ""
        for message in conversation["messages"]:
            if message["role"] == "assistant":
                opening = tokenizer.encode(f"{text}{START_OF_TURN}assistant\n").ids
                script += [*opening, voice]
                text = "\n"
            else:
                text += _turn(message["role"], message["content"])
        yield script[1:]
