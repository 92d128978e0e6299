"""Which experts each verified token used, through the eval callback of llama.cpp.

The callback is a page of C (`observer.c`), compiled at first use. Without a compiler there is no
observation; the planner then works from its priors, and one line says so.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from . import library, native

NATIVE = native.Native(
    "observer", "experts cannot be observed", "C", (Path(__file__).with_name("observer.c"),)
)


class _State(ctypes.Structure):
    _fields_ = (
        ("armed", ctypes.c_int32),
        ("n_layers", ctypes.c_int32),
        ("n_used", ctypes.c_int32),
        ("max_rows", ctypes.c_int32),
        ("ids", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_int64),
        ("tensor_get", ctypes.c_void_p),
        ("spent_ns", ctypes.c_int64),
    )


class Observer:
    """Buffers that the native callback fills; hand `callback` and `address` to the context.

    Raises SpecfitError if the callback cannot be compiled or loaded.
    """

    def __init__(self, n_layers: int, n_experts: int, n_used: int, max_rows: int) -> None:
        loaded = native.loaded(NATIVE)
        self._ids = np.zeros((n_layers, max_rows, n_used), np.int32)
        self._rows = np.zeros(n_layers, np.int32)
        self._scratch = np.zeros(max_rows * n_experts, np.int32)
        self._tensor_get = library.symbol(
            "ggml_backend_tensor_get",
            restype=None,
            argtypes=[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t],
        )
        self._state = _State(
            armed=0,
            n_layers=n_layers,
            n_used=n_used,
            max_rows=max_rows,
            ids=self._ids.ctypes.data,
            rows=self._rows.ctypes.data,
            scratch=self._scratch.ctypes.data,
            scratch_bytes=self._scratch.nbytes,
            tensor_get=library.address_of(self._tensor_get),
            spent_ns=0,
        )
        self.callback = llama.ggml_backend_sched_eval_callback(("specfit_observe", loaded))
        self.address = ctypes.addressof(self._state)
        self._place = library.address_of(self.callback)

    def arm(self) -> None:
        """The next decode is observed, up to max_rows rows."""
        self._rows[:] = 0
        self._state.spent_ns = 0
        self._state.armed = 1

    @property
    def watching(self) -> tuple[int | None, int | None]:
        """The callback as long as it is armed, and what it is told."""
        return (self._place, self.address) if self._state.armed else (None, None)

    def disarm(self) -> None:
        self._state.armed = 0

    def selections(self, n_rows: int) -> NDArray[np.int32] | None:
        """int32 [row, layer, n_used] of the decode since `arm`; None if a layer shows less.

        A dense layer of a mixed model has no router and shows experts -1.
        """
        routed = self._rows > 0
        if not routed.any() or (self._rows[routed] != n_rows).any():
            return None
        ids = self._ids[:, :n_rows].transpose(1, 0, 2).copy()
        ids[:, ~routed] = -1
        return ids

    @property
    def spent_ms(self) -> float:
        """Time that the callback spent copying since `arm`."""
        return float(self._state.spent_ns) / 1e6
