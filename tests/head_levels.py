"""Times a drafted level of both heads, PyTorch's and llama.cpp's, interleaved.

    python tests/head_levels.py [MODEL.gguf HEAD [DEVICE]]

DEVICE: cpu (default) or cuda, for both. Without arguments: the bundled pair. Prints, for widths 1,
4 and 10 and for catching up on three committed tokens with the first drafts, the lower quartile of
each in ms. On a CPU both use one thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from specfit.backend.context import Context
from specfit.backend.gguf_head import GgufHead
from specfit.backend.head_context import HeadContext, HeadModel
from specfit.backend.head_file import read_head_file
from specfit.backend.model import Model
from specfit.backend.plan import Placement
from specfit.backend.runtime import Runtime
from specfit.models import bundled_head, bundled_model
from specfit.models.convert_head import TYPES, convert_head
from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings
from specfit.models.gguf_info import read_gguf_info

WIDTHS, ROUNDS, LEVELS, K, PAIRS = (1, 4, 10), 40, 3, 10, 300


def main(model_path: Path, head_path: Path, device: str) -> None:
    torch.set_num_threads(1)
    info, on_gpu = read_gguf_info(model_path), device != "cpu"
    runtime = Runtime()
    n = info.n_layers
    # The target is only there to be shared.
    model = Model(info, Placement(n + 1 if on_gpu else 0, n), runtime=runtime)
    context = Context(model, ctx=4096, threads=1, drafting=True)
    heads: dict[str, Any] = {
        "torch": Eagle3Head.load(
            head_path,
            embeddings=TokenEmbeddings.load(info),
            target=TargetShape.of(info),
            device=device,
        )
    }
    with TemporaryDirectory() as folder:
        for kind in TYPES[1:]:
            out = Path(folder) / f"{kind}.gguf"
            convert_head(head_path, info, out, kind)
            weights = HeadModel(read_head_file(out, info), runtime, on_gpu=on_gpu)
            heads[f"gguf {kind}"] = GgufHead(HeadContext(weights, context, threads=1))
        rng = np.random.default_rng(0)
        features = rng.standard_normal((PAIRS, 3 * info.n_embd)).astype(np.float32)
        tokens = rng.integers(0, info.n_vocab, PAIRS)
        print(f"{device}; ms, lower quartile of {ROUNDS}: {', '.join(heads)}")

        def commit(head: Any) -> None:
            head.truncate(PAIRS - 3)
            head.commit(features[head.n_pairs :], tokens[head.n_pairs :])

        def first(head: Any) -> float:
            return timed(lambda: (commit(head), head.propose(K)))

        def levels(width: int) -> Callable[[Any], float]:
            def of(head: Any) -> float:
                commit(head)
                drafts, _ = head.propose(K)
                return timed(lambda: grow(head, np.resize(drafts, width), width)) / LEVELS

            return of

        show("catching up on 3, and the root's children", heads, first)
        for width in WIDTHS:
            show(f"a level of {width}", heads, levels(width))
        for head in heads.values():
            head.close()


def grow(head: Any, drafts: np.ndarray, width: int) -> None:
    """LEVELS levels, two of whose nodes come from one parent where there is more than one."""
    slots = np.zeros(width, np.int64)
    for depth in range(1, LEVELS + 1):
        slots, children, _ = head.expand(slots, drafts, depth, K)
        parents = np.arange(width) // 2
        slots, drafts = slots[parents], children[parents, np.arange(width) % 2]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def show(what: str, heads: dict[str, Any], measure: Callable[[Any], float]) -> None:
    spent: dict[str, list[float]] = {name: [] for name in heads}
    for _ in range(ROUNDS):
        for name, head in heads.items():
            spent[name].append(measure(head))
    print(f"{what}:", *(f"{float(np.quantile(times, 0.25)):.3f}" for times in spent.values()))


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        Path(given[0]) if given else bundled_model(),
        Path(given[1]) if len(given) > 1 else bundled_head(),
        given[2] if len(given) > 2 else "cpu",
    )
