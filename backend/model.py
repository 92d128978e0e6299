"""A GGUF model in llama.cpp: loading and placement, vocabulary, chat template."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from specfit.models.gguf_info import GgufInfo

from . import last_words, library, templates
from .errors import SpecfitError
from .expert_cache.cache import BufferOverride, ExpertCache
from .plan import Placement
from .rope import make_room
from .runtime import Runtime

Message = dict[str, str]
Progress = Callable[[float], bool]

# What every engine falls back to for a model that brings no template of its own.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# Draws of tokens, of which a vocabulary may hold few that texts are made of.
DRAWS = 200
# Characters, at most and about; vocabularies have tokens of up to 256 spaces.
LONGEST_TOKEN, USUAL_TOKEN = 512, 4


@dataclass(frozen=True)
class Prompt:
    """opens_thinking: the template has written "<think>", so that the answer begins behind it."""

    tokens: list[int]
    opens_thinking: bool = False


class Model:
    """Loaded weights and vocabulary. Close it, or let it be collected, to free them."""

    def __init__(
        self,
        info: GgufInfo,
        placement: Placement,
        progress: Progress | None = None,
        runtime: Runtime | None = None,
        cache: ExpertCache | None = None,
    ) -> None:
        """Loads the file of `info`; `progress` is told 0..1 and may return False to cancel.

        cache: of experts, through which all of them are then used.
        Raises SpecfitError if llama.cpp refuses it.
        """
        path = info.path
        self.info = info
        self.placement = placement
        self.runtime = runtime or Runtime()
        self.runtime.prepare()
        templates.process.start()
        params, kept = model_params(placement, self.runtime, cache)
        cancelled = False

        def on_progress(fraction: float, _user_data: object) -> bool:
            nonlocal cancelled
            cancelled = progress is not None and not progress(fraction)
            return not cancelled

        callback = llama.llama_progress_callback(on_progress)
        params.progress_callback = callback
        library.take_errors()
        last_words.about(path)
        handle = llama.llama_model_load_from_file(str(path).encode(), params)
        del kept
        if handle is None:
            if cancelled:
                raise SpecfitError(f"loading {path.name} was cancelled")
            raise SpecfitError(f"llama.cpp cannot load {path}: {library.take_errors()}")
        self.handle = handle
        self._finalizer = weakref.finalize(self, llama.llama_model_free, handle)
        vocab = llama.llama_model_get_vocab(handle)
        assert vocab is not None
        self.vocab = vocab
        self.n_vocab = int(llama.llama_vocab_n_tokens(vocab))
        self.n_embd = int(llama.llama_model_n_embd(handle))
        self._pieces: dict[int, bytes] = {}
        self._template: bytes = llama.llama_model_chat_template(handle, None) or b""
        self._bos = self._special_text(llama.llama_vocab_bos(vocab))
        self._eos = self._special_text(llama.llama_vocab_eos(vocab))
        # The chat counts tokens beside its engine, and may be counting when a model is closed.
        self._tokenizing = threading.Lock()

    def close(self) -> None:
        with self._tokenizing:
            self._finalizer()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """May be called from any thread. Raises SpecfitError if the model was closed."""
        with self._tokenizing:
            if not self._finalizer.alive:
                raise SpecfitError("the model is not loaded any more")
            return self._tokens(text.encode(), add_special, parse_special)

    def _tokens(self, data: bytes, add_special: bool, parse_special: bool) -> list[int]:
        room = len(data) + 8
        while True:
            buffer = (llama.llama_token * room)()
            n = llama.llama_tokenize(
                self.vocab, data, len(data), buffer, room, add_special, parse_special
            )
            if n >= 0:
                return list(buffer[:n])
            room = -n

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; nothing for control tokens."""
        known = self._pieces.get(token)
        if known is None:
            buffer = ctypes.create_string_buffer(256)
            n = llama.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                n = llama.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
            known = self._pieces[token] = buffer.raw[:n]
        return known

    def ends(self, token: int) -> bool:
        """Whether `token` ends a generation (EOS, end of turn …)."""
        return bool(llama.llama_vocab_is_eog(self.vocab, token))

    def made_up(self, rng: np.random.Generator, n: int) -> NDArray[np.int32]:
        """So many tokens at random of those that texts are made of: others, that only fill up a
        vocabulary, choose experts as no text does. Of all, if it does not tell them apart."""
        found: list[int] = []
        for _ in range(DRAWS):
            drawn = rng.integers(0, self.n_vocab, n).tolist()
            found += [token for token in drawn if self._is_written(token)]
            if len(found) >= n:
                return np.array(found[:n], np.int32)
        return rng.integers(0, self.n_vocab, n, dtype=np.int32)

    def _is_written(self, token: int) -> bool:
        attributes = llama.llama_vocab_get_attr(self.vocab, token)
        return bool(attributes & llama.LLAMA_TOKEN_ATTR_NORMAL)

    @property
    def knows_thinking(self) -> bool:
        """Whether the chat template asks `enable_thinking`."""
        return b"enable_thinking" in self._template

    def prompt(
        self, messages: Sequence[Message], thinking: bool | None = None, room: int | None = None
    ) -> Prompt:
        """The conversation as the model's own chat template writes it, ready to be answered.

        thinking: the template's `enable_thinking`; None leaves it to the template. room: tokens
        that there is room for. Raises SpecfitError if the template refuses the messages, or makes
        so much of them that there is no need to count its tokens.
        """
        _check_length(sum(len(message["content"]) for message in messages), room, self.info)
        text = self._render(messages, thinking)
        _check_length(len(text), room, self.info)
        add_special = not (self._bos and text.startswith(self._bos))
        tokens = self.tokenize(text, add_special=add_special, parse_special=True)
        return Prompt(tokens, text.rstrip().endswith("<think>"))

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of `prompt`, as the template likes it best."""
        return self.prompt(messages).tokens

    def _render(self, messages: Sequence[Message], thinking: bool | None) -> str:
        values: dict[str, Any] = {
            "messages": list(messages),
            "add_generation_prompt": True,
            "bos_token": self._bos,
            "eos_token": self._eos,
            **dict.fromkeys(("tools", "tool_choice", "functions", "function_call")),
        }
        if thinking is not None:
            values["enable_thinking"] = thinking
        return templates.follow(self._template.decode("utf-8", "replace") or CHATML, values)

    def _special_text(self, token: int) -> str:
        if token < 0:
            return ""
        return (llama.llama_vocab_get_text(self.vocab, token) or b"").decode("utf-8", "replace")


def _check_length(characters: int, room: int | None, info: GgufInfo) -> None:
    if room is not None and characters > room * LONGEST_TOKEN:
        raise SpecfitError(
            f"the prompt has {characters:,} characters, and the context holds {room} tokens; "
            + make_room(characters // USUAL_TOKEN, room, info)
        )


def model_params(
    placement: Placement, runtime: Runtime, cache: ExpertCache | None = None
) -> tuple[Any, object]:
    """llama_model_params, and what has to live as long as they are used."""
    params = llama.llama_model_default_params()
    params.n_gpu_layers = placement.gpu_layers
    overrides = _expert_overrides(placement) if cache is None else cache.override()
    if overrides is not None:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return params, (overrides, runtime.set_model(params, placement.split))


def _expert_overrides(placement: Placement) -> ctypes.Array[BufferOverride] | None:
    """Keeps the experts of the first `n_cpu_moe` layers in host memory; None if nothing is moved.

    Without GPU layers there is nothing to keep back, and naming the plain CPU buffer would forgo
    the weights that llama.cpp repacks for the processor.
    """
    if placement.gpu_layers == 0 or placement.n_cpu_moe == 0:
        return None
    host_buffer = library.symbol(
        "ggml_backend_cpu_buffer_type", restype=ctypes.c_void_p, argtypes=[]
    )()
    experts = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    rows = [
        BufferOverride(experts.format(layer).encode(), host_buffer)
        for layer in range(placement.n_cpu_moe)
    ]
    return (BufferOverride * (len(rows) + 1))(*rows, BufferOverride(None, None))
