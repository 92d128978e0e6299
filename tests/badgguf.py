"""GGUF files that are no good: headers by hand, and small models with one value changed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import gguf
from badfiles import Bad, Writes, content, folder, link, pipe, sparse
from gguf import GGUFValueType as Kind
from tinymodel import write_dense, write_float32_moe
from tinytarget import vocabulary


def text(string: str, length: int | None = None) -> bytes:
    data = string.encode()
    return struct.pack("<Q", len(data) if length is None else length) + data


def value(key: str, kind: Kind, data: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + data


def number(key: str, n: int) -> bytes:
    return value(key, Kind.UINT32, struct.pack("<I", n))


def array(kind: int, length: int, data: bytes = b"") -> bytes:
    return value("a", Kind.ARRAY, struct.pack("<IQ", kind, length) + data)


def tensor(
    name: str = "a", shape: Sequence[int] = (32, 4), kind: int = 0, offset: int = 0
) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


VALUES = (
    value("general.architecture", Kind.STRING, text("qwen3")),
    number("qwen3.block_count", 1),
    number("qwen3.embedding_length", 32),
)


def made(
    *more: bytes,
    values: Sequence[bytes] = VALUES,
    tensors: Sequence[bytes] = (tensor(),),
    n_values: int | None = None,
    n_tensors: int | None = None,
    version: int = 3,
) -> Writes:
    """more: values beside the others."""
    values = (*values, *more)
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(values) if n_values is None else n_values,
    )
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join((*values, *tensors))
    return content(header + bytes(-len(header) % 32 + 512))


def sense(what: str) -> str:
    return rf"is damaged: its GGUF header makes no sense at byte \d+ \(.*{what}.*\); download or"


HEADERS: dict[str, Bad] = {
    "nothing": (content(b""), "is empty; download"),
    "zeros": (sparse(200 << 20), "not a GGUF model file"),
    "the magic, and zeros": (sparse(200 << 20, b"GGUF"), "version 0"),
    "values of zeros": (
        sparse(200 << 20, b"GGUF" + struct.pack("<IQQ", 3, 1, 60000)),
        sense("no letters"),
    ),
    "a text of zeros": (
        sparse(
            200 << 20, b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + value("a", Kind.STRING, b"\0\0\0\7")
        ),
        sense("a text of 117,440,512 bytes"),
    ),
    "texts of zeros": (
        sparse(200 << 20, b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + array(Kind.STRING, 20_000_000)),
        sense("an array of 20,000,000 texts"),
    ),
    "a letter": (content(b"Dear model,\n"), "not a GGUF model file"),
    "four bytes": (content(b"GGUF"), "cut short: it ends after 4 bytes, within its header"),
    "version 1": (made(version=1), "version 1, but only"),
    "version 99": (made(version=99), "version 99, but only"),
    "big-endian": (made(version=3 << 24), "big-endian"),
    "2^63 tensors": (made(n_tensors=2**63), sense("9,223,372,036,854,775,808 tensors")),
    "2^63 values": (made(n_values=2**63), sense("9,223,372,036,854,775,808 values")),
    "a text of 2^62": (
        made(value("a", Kind.STRING, text("x", 2**62))),
        sense("4,611,686,018,427,387,904"),
    ),
    "a key of 2^62": (made(text("x", 2**62)), sense("4,611,686,018,427,387,904")),
    "an array of 2^62": (made(array(Kind.UINT32, 2**62)), "cut short"),
    "2^62 texts": (made(array(Kind.STRING, 2**62)), "cut short"),
    "arrays in arrays": (made(array(Kind.ARRAY, 1) * 10_000), sense("array of arrays")),
    "an array of what is unknown": (made(array(77, 1)), sense("77 is not a valid")),
    "a value of what is unknown": (
        made(value("a", Kind(4), b"")[:-4] + b"\x4d\0\0\0"),
        sense("77"),
    ),
    "a key without letters": (made(number("", 1)), sense("no letters")),
    "a key twice": (made(number("a", 1), number("a", 2)), sense("'a' twice")),
    "a tensor twice": (made(tensors=(tensor(), tensor(offset=512))), sense("'a' twice")),
    "a tensor without name": (made(tensors=(tensor(""),)), sense("no letters")),
    "2^31 dimensions": (
        made(tensors=(text("a") + struct.pack("<I", 2**31),)),
        sense("2147483648 dim"),
    ),
    "a product that overflows": (
        made(tensors=(tensor(shape=(2**62, 8, 2**62, 16)),)),
        sense("absurd size"),
    ),
    "a tensor beyond any file": (
        made(tensors=(tensor(offset=2**64 - 32),)),
        sense("beyond any file"),
    ),
    "a tensor beyond its file": (
        made(tensors=(tensor(offset=2**30),)),
        "1,073,741,824 of its .* missing",
    ),
    "a tensor over another": (
        made(tensors=(tensor(), tensor("b", (4, 4), offset=64))),
        "'b' has offset 64, expected 512",
    ),
    "a type that is unknown": (made(tensors=(tensor(kind=999),)), sense("999 is not a valid")),
    "alignment 0": (made(number("general.alignment", 0)), sense("alignment 0")),
    "alignment 3": (made(number("general.alignment", 3)), sense("alignment 3")),
    "alignment as text": (made(value("general.alignment", Kind.STRING, text("32"))), sense("'32'")),
    "no architecture": (made(values=VALUES[1:]), "does not say which architecture"),
    "an architecture as number": (
        made(values=(number("general.architecture", 3), *VALUES[1:])),
        "does not say which arch",
    ),
    "an architecture of escapes": (
        made(values=(value("general.architecture", Kind.STRING, text("\x1b[31m\n")),)),
        "holds no language model: it has no \ufffd\\[31m\ufffd",
    ),
    "no layers": (made(values=(VALUES[0], VALUES[2])), r"it has no qwen3\.block_count"),
    "layers as text": (
        made(values=(VALUES[0], VALUES[2], value("qwen3.block_count", Kind.STRING, text("3")))),
        r"it has no qwen3\.block_count",
    ),
    "2^32 - 1 layers": (
        made(values=(VALUES[0], VALUES[2], number("qwen3.block_count", 2**32 - 1))),
        "4,294,967,295 layers; 512 are the most",
    ),
    "one of 65,535 parts": (
        made(value("split.count", Kind.UINT16, b"\xff\xff")),
        "a model in 65535 files; keep their names",
    ),
    "a folder": (folder, "is a folder; give the .gguf file inside"),
    "a pipe": (pipe, "not an ordinary file"),
    "a link to itself": (link, "symbolic links"),
}


def changed(key: str, new: object, kind: Kind, inner: Kind | None = None) -> Writes:
    """A whole small model, but for one value."""

    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue(new, kind, inner)

    write = write_float32_moe if key.startswith("qwen3moe") else write_dense
    return lambda path: write(path, n_layers=2, change=change)


def without(key: str) -> Writes:
    return lambda path: write_dense(path, change=lambda writer: writer.kv_data[0].pop(key))


def cut(share: float) -> Writes:
    def write(path: Path) -> None:
        write_dense(path)
        with path.open("r+b") as file:
            file.truncate(int(path.stat().st_size * share))

    return write


TOKENS = vocabulary().tokens
U32 = Kind.UINT32
# What only llama.cpp can see. Where it ends the process, the sentence is our last one.
MODELS: dict[str, Bad] = {
    "cut within the header": (cut(0.01), "cut short: it ends after .* within its header"),
    "cut within the weights": (cut(0.6), "cut short: .* bytes are missing"),
    "no context length": (without("qwen3.context_length"), "cannot load .*: .*context_length"),
    "an unknown architecture": (
        changed("general.architecture", "qwen99", Kind.STRING),
        "no language model",
    ),
    "a size as text": (
        changed("qwen3.feed_forward_length", "9", Kind.STRING),
        "feed_forward.* wrong type",
    ),
    "a size of 64 bits": (
        changed("qwen3.context_length", 2**63, Kind.UINT64),
        "context_length has wrong",
    ),
    "a width of another model": (
        changed("qwen3.embedding_length", 96, U32),
        "cannot load .* wrong shape",
    ),
    "3 heads": (changed("qwen3.attention.head_count", 3, U32), "cannot load .* wrong shape"),
    "no heads": (changed("qwen3.attention.head_count", 0, U32), "cannot load .* wrong shape"),
    "no experts": (changed("qwen3moe.expert_count", 0, U32), "uses 8 of 0 experts; download"),
    "2^31 experts": (
        changed("qwen3moe.expert_count", 2**31, U32),
        "2,147,483,648 experts a layer; 1,024",
    ),
    "no expert used": (
        changed("qwen3moe.expert_used_count", 0, U32),
        "uses 0 of 8 experts; download",
    ),
    "no expert used in one layer": (
        changed("qwen3moe.expert_used_count", [8, 0], Kind.ARRAY, U32),
        "uses 0 of 8 experts; download",
    ),
    "more experts used": (
        changed("qwen3moe.expert_used_count", 9, U32),
        "uses 9 of 8 experts; download",
    ),
    "no tokens": (without("tokenizer.ggml.tokens"), "cannot find tokenizer vocab"),
    "tokens that are numbers": (
        changed("tokenizer.ggml.tokens", [1, 2], Kind.ARRAY, U32),
        r"invalid .*type for tokenizer\.ggml\.tokens",
    ),
    "a token twice": (
        changed("tokenizer.ggml.tokens", [*TOKENS[:-1], TOKENS[-2]], Kind.ARRAY, Kind.STRING),
        r"llama.cpp gave up on .*: GGML_ASSERT\(id_to_token.*the file is damaged",
    ),
    "too few tokens": (
        changed("tokenizer.ggml.tokens", TOKENS[:50], Kind.ARRAY, Kind.STRING),
        "cannot load .* wrong shape",
    ),
    "token types that are texts": (
        changed("tokenizer.ggml.token_type", ["a"], Kind.ARRAY, Kind.STRING),
        "token_type",
    ),
    "no merges": (without("tokenizer.ggml.merges"), "cannot find tokenizer merges"),
    "another tokenizer": (
        changed("tokenizer.ggml.model", "llama", Kind.STRING),
        "llama.cpp gave up on .*: an error",
    ),
    "a norm that is no number": (
        changed("qwen3.attention.layer_norm_rms_epsilon", float("nan"), Kind.FLOAT32),
        r"llama.cpp gave up on .*: GGML_ASSERT\(eps >= 0",
    ),
    "two parts of which one is missing": (
        changed("split.count", 2, Kind.UINT16),
        "in 2 files; keep their names",
    ),
}
