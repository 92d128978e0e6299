"""The llama.cpp library: loaded once, quiet, with the few symbols that its Python binding lacks.

llama.cpp logs to stderr, which would corrupt a terminal app; we keep the last lines instead, so
that a failed load can say why. Symbols of ggml are looked up through the libllama that is mapped:
loading a second copy of libggml-base crashes.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from . import last_words
from .errors import SpecfitError

_recent_errors: deque[str] = deque(maxlen=8)
LOG_LEVEL_ERROR = 4
# Layer inputs as outputs of a decode (llama-ext.h; C++-mangled, so spelled per compiler).
_SET_LAYER_INPUT = (
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
)
# A method of llama_context; MSVC exports none.
_SCHEDULER = ("_ZNK13llama_context9get_schedEv",)
_GET_LAYER_INPUT = (
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
    "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
)


# Of llama.cpp's errors, what they begin with, and those that come after the reason.
_SAID_BEFORE = re.compile(r"^\w+: |error loading (model|model \w+): ")
_TELLS_NOTHING = ("failed to load model", "failed to initialize the context")

_listeners: list[list[str]] = []
_rpc_servers: set[str] = set()  # that are known to ggml


def _on_log(level: int, text: bytes, _user_data: object) -> None:
    for lines in _listeners:
        lines.append(text.decode("utf-8", "replace"))
    if level == LOG_LEVEL_ERROR:
        _recent_errors.append(text.decode("utf-8", "replace").strip())


# ctypes does not keep callbacks alive; the module does.
_log_callback = llama.llama_log_callback(_on_log)


def start() -> None:
    """Makes llama.cpp quiet and ready; calling it again does nothing."""
    last_words.prepare(symbol)
    llama.llama_log_set(_log_callback, ctypes.c_void_p(0))
    llama.llama_backend_init()


@contextmanager
def listening() -> Iterator[list[str]]:
    """All that llama.cpp logs during the block, line by line."""
    lines: list[str] = []
    _listeners.append(lines)
    try:
        yield lines
    finally:
        _listeners[:] = [one for one in _listeners if one is not lines]


def take_errors() -> str:
    """llama.cpp's last error lines as one text, without the names of its functions, and forgets
    them."""
    lines = [_SAID_BEFORE.sub("", line) for line in _recent_errors]
    _recent_errors.clear()
    telling = [line for line in lines if line and line not in _TELLS_NOTHING]
    return "; ".join(dict.fromkeys(telling or filter(None, lines)))


def symbol(*names: str, restype: Any, argtypes: list[Any]) -> Callable[..., Any]:
    """The first of `names` that the mapped llama.cpp exports; AttributeError if none is."""
    for name in names:
        try:
            # Not attribute access: that would share one function object and its types.
            function = ctypes.CFUNCTYPE(restype, *argtypes)((name, llama._lib))
        except AttributeError:
            continue
        return function
    raise AttributeError(f"llama.cpp does not export {names[0]}")


def address_of(function: Any) -> int:
    """Where a `symbol` lies, to be handed to native code."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def eval_callback_of(context: Any) -> Callable[[int | None, int | None], None] | None:
    """What sets a context's eval callback, and what it is told, until llama.cpp builds its next
    graph; None where this build of llama.cpp does not export what that takes."""
    try:
        tell = symbol(*_SCHEDULER, restype=ctypes.c_void_p, argtypes=[ctypes.c_void_p])
        change = symbol(
            "ggml_backend_sched_set_eval_callback",
            restype=None,
            argtypes=[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p],
        )
    except AttributeError:
        return None

    def set_now(callback: int | None, told: int | None) -> None:
        # Planning its memory anew llama.cpp makes another scheduler.
        change(tell(context), callback, told)

    return set_now


set_layer_input = symbol(
    *_SET_LAYER_INPUT,
    restype=None,
    argtypes=[ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool],
)
get_layer_input = symbol(
    *_GET_LAYER_INPUT,
    restype=ctypes.c_void_p,
    argtypes=[ctypes.c_void_p, ctypes.c_uint32],
)
# Those of the binding give pointers, from which an array is far to go.
get_logits = symbol("llama_get_logits", restype=ctypes.c_void_p, argtypes=[ctypes.c_void_p])
get_logits_ith = symbol(
    "llama_get_logits_ith",
    restype=ctypes.c_void_p,
    argtypes=[ctypes.c_void_p, ctypes.c_int32],
)


def floats(place: int, *shape: int) -> NDArray[np.float32]:
    """llama.cpp's own floats at `place`, which its next decode may overwrite."""
    memory = (ctypes.c_float * math.prod(shape)).from_address(place)
    return np.frombuffer(memoryview(memory), np.float32).reshape(shape)


def supports_gpu() -> bool:
    """Whether this build of llama.cpp can use a GPU that is present."""
    return bool(llama.llama_supports_gpu_offload())


@functools.cache
def init_numa(strategy: int) -> None:
    """Once: told again, ggml complains on the terminal."""
    llama.llama_numa_init(strategy)


def add_rpc_servers(servers: str) -> None:
    """Makes the devices of llama.cpp's RPC servers ("host:port,host:port") devices here.

    Raises SpecfitError if this build has no RPC backend, or a server does not answer.
    """
    if not llama.llama_supports_rpc():
        raise SpecfitError(
            "--rpc: this build of llama.cpp has no RPC backend; build it with -DGGML_RPC=ON"
        )
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    by_name = symbol("ggml_backend_reg_by_name", restype=pointer, argtypes=[text])
    proc = symbol("ggml_backend_reg_get_proc_address", restype=pointer, argtypes=[pointer, text])
    register = symbol("ggml_backend_register", restype=None, argtypes=[pointer])
    add = ctypes.CFUNCTYPE(pointer, text)(proc(by_name(b"RPC"), b"ggml_backend_rpc_add_server"))
    for server in filter(None, servers.split(",")):
        if server in _rpc_servers:
            continue
        registry = add(server.encode())
        if registry is None:
            raise SpecfitError(f"--rpc {server}: no llama.cpp RPC server answers there")
        register(registry)
        _rpc_servers.add(server)
