"""Tokenizers: a new one from text, and those that GGUF files hold, both as `tokenizers` has them.

Both kinds are byte-level BPE. Reading the teacher's from its file keeps training free of a second
inference engine: where the recipe runs there may be no llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from specfit.models.errors import ModelFileError
from specfit.models.gguf_info import read_gguf_info

__all__ = [
    "END_OF_TEXT",
    "END_OF_TURN",
    "SPECIAL",
    "START_OF_TURN",
    "end_of_turn",
    "read",
    "trained",
]

END_OF_TEXT = "<|endoftext|>"
START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
# Their ids are 0, 1, 2, …; those of thinking are there for chat templates and untrained.
SPECIAL = (END_OF_TEXT, START_OF_TURN, END_OF_TURN, "<think>", "</think>")

# Qwen2's words (tokenizer.ggml.pre = qwen2): each digit alone, which makes arithmetic learnable.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL_TOKEN = 3


def trained(texts: Iterable[str], size: int) -> Tokenizer:
    """A tokenizer of `size` tokens, special ones included, from texts without special tokens."""
    tokenizer = _byte_level(models.BPE(), "qwen2")
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def read(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file. Raises ModelFileError if it has none of a kind known here."""
    read_gguf_info(path)  # says in one sentence what is wrong with a file that cannot be read
    fields = GGUFReader(path).fields

    def value(key: str) -> Any:
        if f"tokenizer.ggml.{key}" not in fields:
            raise ModelFileError(f"{path} lacks tokenizer.ggml.{key}.")
        return fields[f"tokenizer.ggml.{key}"].contents()

    pre = value("pre")
    tokens: list[str] = value("tokens")
    merges = [tuple(merge.split(" ")) for merge in value("merges")]
    tokenizer = _byte_level(models.BPE({t: i for i, t in enumerate(tokens)}, merges), pre)
    kinds = value("token_type")
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return tokenizer


def end_of_turn(tokenizer: Tokenizer) -> int:
    """Its id. Raises ModelFileError for a tokenizer of models that do not chat in ChatML."""
    token = tokenizer.token_to_id(END_OF_TURN)
    if token is None:
        raise ModelFileError(f"the model has no token {END_OF_TURN}: it does not chat in ChatML.")
    return int(token)


def _byte_level(model: models.BPE, pre: str) -> Tokenizer:
    words = {
        "qwen2": pre_tokenizers.Split(Regex(_QWEN2), "isolated"),
        "smollm": pre_tokenizers.Digits(individual_digits=True),
    }
    if pre not in words:
        raise ModelFileError(f"the tokenizer's words are split as {pre!r} says, which is not known")
    tokenizer = Tokenizer(model)
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words[pre], as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
