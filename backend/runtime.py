"""How llama.cpp is to load and run a model: its own options, by its own names and values."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import gguf
import llama_cpp.llama_cpp as llama

from . import library
from .errors import SpecfitError
from .rope import Rope

LOAD_MODES = {
    "auto": llama.LLAMA_LOAD_MODE_AUTO,
    "none": llama.LLAMA_LOAD_MODE_NONE,
    "mmap": llama.LLAMA_LOAD_MODE_MMAP,
    "mlock": llama.LLAMA_LOAD_MODE_MLOCK,
    "mmap+mlock": llama.LLAMA_LOAD_MODE_MMAP_MLOCK,
    "dio": llama.LLAMA_LOAD_MODE_DIRECT_IO,
}
SPLIT_MODES = {
    "none": llama.LLAMA_SPLIT_MODE_NONE,
    "layer": llama.LLAMA_SPLIT_MODE_LAYER,
    "row": llama.LLAMA_SPLIT_MODE_ROW,
    "tensor": llama.LLAMA_SPLIT_MODE_TENSOR,
}
NUMA = {
    "distribute": llama.GGML_NUMA_STRATEGY_DISTRIBUTE,
    "isolate": llama.GGML_NUMA_STRATEGY_ISOLATE,
    "numactl": llama.GGML_NUMA_STRATEGY_NUMACTL,
}
FLASH = {
    "auto": llama.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "off": llama.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "on": llama.LLAMA_FLASH_ATTN_TYPE_ENABLED,
}


@dataclass(frozen=True)
class Runtime:
    """Values as llama.cpp's options take them.

    tensor_split: proportions of the GPUs; empty is by their memory. rpc: servers as host:port, with
    commas between. What llama.cpp refuses, it refuses when it loads.
    """

    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    load_mode: str = "auto"
    numa: str | None = None
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    rpc: str | None = None
    rope: Rope = field(default_factory=Rope)

    @property
    def resident(self) -> bool:
        """Whether weights in host memory have to stay there, not being mapped, or locked."""
        return self.load_mode not in ("auto", "mmap")

    def prepare(self) -> None:
        """What has to be said before a model is loaded. Raises SpecfitError for servers that this
        build cannot use, or that do not answer."""
        library.start()
        if self.numa is not None:
            library.init_numa(NUMA[self.numa])
        if self.rpc is not None:
            library.add_rpc_servers(self.rpc)

    def set_model(self, params: Any, split: tuple[float, ...]) -> object:
        """Writes into llama_model_params; what is returned has to live as long as those.

        split: of the layers, where it was planned; the user's own else.
        """
        params.load_mode = LOAD_MODES[self.load_mode]
        params.split_mode = SPLIT_MODES[self.split_mode]
        params.main_gpu = self.main_gpu
        shares = split or self.tensor_split
        if len(shares) > llama.LLAMA_MAX_DEVICES:
            raise SpecfitError(
                f"--tensor-split has {len(shares)} values; llama.cpp takes "
                f"{llama.LLAMA_MAX_DEVICES} devices at most"
            )
        if not shares:
            return None
        array = (ctypes.c_float * llama.LLAMA_MAX_DEVICES)(*shares)
        params.tensor_split = ctypes.cast(array, ctypes.POINTER(ctypes.c_float))
        return array

    def set_context(self, params: Any) -> None:
        """Writes into llama_context_params."""
        params.type_k = gguf.GGMLQuantizationType[self.cache_type_k.upper()].value
        params.type_v = gguf.GGMLQuantizationType[self.cache_type_v.upper()].value
        params.flash_attn_type = FLASH[self.flash_attn]
        self.rope.set_context(params)
