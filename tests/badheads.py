"""Draft heads that are no good.

What is wrong within a checkpoint has tables of its own: DAMAGES in test_eagle3_refusals, PICKLES
and INDEXES in test_eagle3_files. Some of them are taken from there, to go through a command.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from badfiles import Bad, Writes, content, folder, link, pipe, sparse
from randomhead import DRAFT_VOCAB, Checkpoint, make_checkpoint
from test_eagle3_files import INDEXES, PICKLES
from test_eagle3_refusals import DAMAGES
from tinytarget import N_EMBD, vocabulary


def fitted() -> Checkpoint:
    """A head for `write_float32_moe`."""
    checkpoint, n_vocab = make_checkpoint(width=N_EMBD), len(vocabulary().tokens)
    checkpoint.tensors["t2d"] = torch.arange(n_vocab) < DRAFT_VOCAB
    checkpoint.tensors["d2t"] = torch.zeros(DRAFT_VOCAB, dtype=torch.int64)
    checkpoint.config |= {"vocab_size": n_vocab, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    return checkpoint


def damaged(what: str) -> Bad:
    damage, said = DAMAGES[what]

    def write(folder: Path) -> None:
        checkpoint = fitted()
        damage(checkpoint)
        checkpoint.save(folder)

    return write, said


def weights(write: Writes, name: str = "model.safetensors") -> Writes:
    """Other weights in the folder of a good head."""

    def replace(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        write(folder / name)

    return replace


def pickled(what: str) -> Bad:
    write, said = PICKLES[what]
    return weights(write, "pytorch_model.bin"), said


def indexed(what: str) -> Bad:
    index, said = INDEXES[what]
    return lambda folder: (folder / "model.safetensors.index.json").write_text(
        json.dumps(index)
    ), said


def header(said: Any, length: int | None = None, data: bytes = bytes(4)) -> Writes:
    """Weights whose header is what is given, JSON or bytes of it."""
    found = said if isinstance(said, bytes) else json.dumps(said).encode()
    return weights(
        content(struct.pack("<Q", len(found) if length is None else length) + found + data)
    )


def one(shape: object, kind: str = "F32", offsets: object = (0, 4)) -> dict[str, Any]:
    return {"fc.weight": {"dtype": kind, "shape": shape, "data_offsets": offsets}}


def config(write: Writes) -> Writes:
    def replace(folder: Path) -> None:
        (folder / "config.json").unlink()
        write(folder / "config.json")

    return replace


TAKEN = (
    *("not a number", "weights that overflow", "a flat matrix", "latent attention"),
    *("d2t in floating point", "a number of 4000 digits", "a second layer"),
)
UNREADABLE = "not a readable safetensors file"
HEADS: dict[str, Bad] = {
    **{what: damaged(what) for what in TAKEN},
    "another shape": (damaged("wrong shape")[0], r"has shape \[32, 64\] instead of \[64, 32\]"),
    "d2t beyond the target": (damaged("d2t beyond 64 bits")[0], "its target has 378; it was made"),
    "another vocabulary": (damaged("another vocabulary")[0], "61 tokens, its target has 378"),
    **{f"a pickle of {what}": pickled(what) for what in ("a command", "a bomb", "nothing")},
    **{f"an index of {what}": indexed(what) for what in INDEXES if what.startswith("a part")},
    "a header of 2^60": (header(b"{}", 2**60), UNREADABLE),
    "a header of lists": (header(b"[" * 100_000), UNREADABLE),
    "a header that is a list": (header([]), UNREADABLE),
    "tensors at the same place": (header({**one([1]), "b": one([1])["fc.weight"]}), UNREADABLE),
    "a tensor beyond its file": (header(one([2**40], offsets=(0, 2**42))), UNREADABLE),
    "a type that is unknown": (header(one([1], "F7")), UNREADABLE),
    "a shape below nothing": (header(one([-1])), UNREADABLE),
    "a shape of 10^36": (header(one([10**18, 10**18])), UNREADABLE),
    "no shape": (header(one([])), "fc.weight has shape|is missing"),
    "zeros": (weights(sparse(200 << 20)), UNREADABLE),
    "weights that are a folder": (weights(folder), "is not a file"),
    "weights that are a pipe": (weights(pipe), "is not a file"),
    "weights that link to themselves": (weights(link), "is not a file"),
    "no weights": (weights(lambda _path: None), "holds no .safetensors"),
    "no config": (config(lambda _path: None), r"lacks its config\.json"),
    "a config of nothing": (config(content(b"")), "is not valid JSON"),
    "a config of brackets": (config(content(b'{"a":' * 100_000)), "nested too deeply"),
    "a config in UTF-16": (config(content('{"a": 1}'.encode("utf-16"))), "is not valid JSON"),
    "a config that is a pipe": (config(pipe), "is not an ordinary file"),
    "a config of another program": (
        config(content(b'{"transformer_layer_config": 5}')),
        "heads cannot share",
    ),
    "a head of another model": (
        lambda folder: make_checkpoint().save(folder),
        "is for hidden size 24, its target has 64",
    ),
}
