"""The two heads over one pair: PyTorch's, which is the reference, and llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gguf
import numpy as np
from publishedheads import LAYERS, VOCAB, Published

from specfit.backend.context import Context
from specfit.backend.gguf_head import GgufHead
from specfit.backend.head import Head
from specfit.backend.head_context import HeadContext, HeadModel
from specfit.backend.head_file import read_head_file
from specfit.backend.runtime import Runtime
from specfit.models.convert_head import convert_head
from specfit.models.gguf_info import GgufInfo, read_gguf_info


def in_llama(
    folder: Path, target: GgufInfo, context: Context, out: Path, file_type: str = "F32"
) -> GgufHead:
    """The head in `folder`, converted to `out`, for a context of its target."""
    convert_head(folder, target, out, file_type)
    runtime = Runtime()
    runtime.prepare()
    model = HeadModel(read_head_file(out, target), runtime, on_gpu=False)
    return GgufHead(HeadContext(model, context, threads=1))


@contextmanager
def published_in_llama(
    head: Published, folder: Path, *, lines: int = 1, ctx: int = 256
) -> Iterator[GgufHead]:
    """A published head, which is given its target's embeddings, so that there need be no target."""
    head.tensors.setdefault("embed_tokens.weight", head.embeddings.float())
    folder.mkdir(exist_ok=True)
    target = target_of(head, folder / "target.gguf")
    context = SimpleNamespace(lines=lines, ctx=ctx, handle=None, model=SimpleNamespace(info=target))
    head.save(folder / "head")
    loaded = in_llama(folder / "head", target, cast(Any, context), folder / "head.gguf")
    yield loaded
    loaded.close()


def target_of(head: Published, path: Path) -> GgufInfo:
    """A file that says what a converter wants to know of a target."""
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(head.target_width)
    writer.add_tokenizer_model("no_vocab")
    writer.add_tensor("token_embd.weight", np.zeros((VOCAB, head.target_width), np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    return read_gguf_info(path)


Heads = Sequence[Any]
Asked = Callable[[Any], tuple[np.ndarray, ...]]


def assert_alike(
    one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...], rtol: float = 1e-3
) -> None:
    """Tokens and probabilities, the last two of each, agree but for near ties."""
    for tokens, others, probs, wanted in zip(
        *map(np.atleast_2d, (one[-2], other[-2], one[-1], other[-1])), strict=True
    ):
        np.testing.assert_allclose(probs, wanted, rtol=rtol, atol=1e-7)
        for at in np.flatnonzero(tokens != others):
            near = np.isclose(wanted, wanted[at], rtol=2 * rtol)
            assert near.sum() > 1 or at == len(wanted) - 1, (tokens, others, wanted)


def matching_chain(head: Head, truth: list[int]) -> int:
    """How many of three greedy drafts are what the target wrote."""
    token, slot = int(head.propose(1)[0][0]), 0
    for depth in range(3):
        if token != truth[depth]:
            return depth
        slots, children, _ = head.expand([slot], [token], depth + 1, 1)
        slot, token = int(slots[0]), int(children[0, 0])
    return 3
