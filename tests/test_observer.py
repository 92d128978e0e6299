"""The experts that the callback reports are those that the router chose."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import gguf
import llama_cpp.llama_cpp as llama
import numpy as np
import pytest

from specfit.backend import library, native, observer
from specfit.backend.context import TREE_LIMIT, Context
from specfit.backend.errors import SpecfitError
from specfit.backend.model import Model, Placement
from specfit.backend.observer import Observer
from specfit.models import bundled_model
from specfit.models.gguf_info import read_gguf_info
from specfit.planner import DraftTree

get_name = library.symbol("ggml_get_name", restype=ctypes.c_char_p, argtypes=[ctypes.c_void_p])
n_bytes = library.symbol("ggml_nbytes", restype=ctypes.c_size_t, argtypes=[ctypes.c_void_p])
tensor_get = library.symbol(
    "ggml_backend_tensor_get",
    restype=None,
    argtypes=[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t],
)


class RouterInputs:
    """Copies `ffn_norm-<layer>`, what the routers see, and passes every question on."""

    def __init__(self, inner: Observer) -> None:
        self.inputs: dict[int, np.ndarray] = {}
        self._inner = inner
        self.callback = llama.ggml_backend_sched_eval_callback(self._on_tensor)
        self.address = None

    def _on_tensor(self, tensor: int, ask: bool, _user: object) -> bool:
        wanted = self._inner.callback(tensor, ask, self._inner.address)
        match = re.fullmatch(rb"ffn_norm-(\d+)", get_name(tensor))
        if match is None:
            return bool(wanted)
        if not ask:
            data = np.empty(n_bytes(tensor) // 4, np.float32)
            tensor_get(tensor, data.ctypes.data, 0, data.nbytes)
            self.inputs[int(match[1])] = data
        return True

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_selections_equal_the_top_8_of_the_router_recomputed() -> None:
    model = Model(read_gguf_info(bundled_model()), Placement(0, 0))
    info = model.info
    watched = RouterInputs(
        Observer(model.info.n_layers, info.n_experts, info.n_experts_used, TREE_LIMIT)
    )
    context = Context(model, ctx=256, threads=1, observer=watched, drafting=True)  # type: ignore[arg-type]
    context.decode_prompt(model.prompt_tokens([{"role": "user", "content": "What is a tree?"}]))
    tree = DraftTree(
        np.array([-1, 0, 0, 1, 1, 2], np.int32),
        np.array([300, 500, 700, 900, 1100, 1300], np.int32),
        np.ones(6),
    )
    watched.arm()  # type: ignore[operator]
    context.decode_tree(tree)
    selections = watched.selections(len(tree))  # type: ignore[operator]
    tensors = {t.name: t for t in gguf.GGUFReader(bundled_model()).tensors}
    for layer in range(model.info.n_layers):
        router = tensors[f"blk.{layer}.ffn_gate_inp.weight"].data
        scores = watched.inputs[layer].reshape(len(tree), -1) @ router.T
        best = np.argsort(-scores, axis=-1)[:, : info.n_experts_used]
        assert (np.sort(best) == np.sort(selections[:, layer])).all()
    context.close()
    model.close()


def test_unarmed_nothing_is_copied() -> None:
    model = Model(read_gguf_info(bundled_model()), Placement(0, 0))
    watching = Observer(model.info.n_layers, 128, 8, TREE_LIMIT)
    context = Context(model, ctx=256, threads=1, observer=watching)
    context.decode_prompt([1, 2, 3])
    assert watching.selections(3) is None
    context.close()
    model.close()


def test_without_a_compiler_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native.platformdirs, "user_cache_path", lambda _name: tmp_path)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(native.shutil, "which", lambda _name: None)
    with pytest.raises(SpecfitError, match="no C compiler"):
        native.compiled(observer.NATIVE)


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native.platformdirs, "user_cache_path", lambda _name: tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(SpecfitError, match=r"false failed on observer\.c"):
        native.compiled(observer.NATIVE)


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_a_damaged_file_in_the_cache_is_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: float
) -> None:
    monkeypatch.setattr(native.platformdirs, "user_cache_path", lambda _name: tmp_path)
    library = native.compiled(observer.NATIVE)
    whole = library.read_bytes()
    # Not in place: this process may have the file mapped.
    library.unlink()
    library.write_bytes(whole[: int(part * len(whole))])
    assert Observer(1, 8, 2, 4).callback
    assert len(library.read_bytes()) == len(whole)


def test_a_folder_in_the_place_of_the_file_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native.platformdirs, "user_cache_path", lambda _name: tmp_path)
    library = native.compiled(observer.NATIVE)
    library.unlink()
    library.mkdir()
    with pytest.raises(SpecfitError, match="experts cannot be observed"):
        Observer(1, 8, 2, 4)
