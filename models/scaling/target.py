"""The tensors of the larger model, made so that it computes the small one's function.

The small model lives in the first channels; all others stay zero, but for the last one, the
constant channel. With E channels of E', norm weights times sqrt(E / E') give the same normalised
values. The constant channel holds sqrt(E * epsilon) for every token, which takes exactly the place
of the norms' epsilon: that is zero in the larger model. It also gives tokens that pad the
vocabulary logits that are never chosen, and silent layers' routers a bias.

The small model's layers are spread over the larger one's. The others are silent: they attend, route
and compute, but the matrices that write to the hidden state are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from specfit.models.scaling.routing import Router
from specfit.models.scaling.shape import Shape, place_heads
from specfit.models.scaling.source import Floats, SourceModel
from specfit.models.scaling.storage import Bytes, Noise, n_bytes, stored, tensor_type

# Two factors of the logit of a padding token, which is minus their product over the size of the
# hidden state.
REFUSAL = 128.0
_EMBEDDING_ROWS = 1024


@dataclass(frozen=True)
class Tensor:
    """shape: outermost dimension first. chunks: its bytes, in order, a part at a time."""

    name: str
    shape: tuple[int, ...]
    kind: Type
    chunks: Callable[[], Iterator[Bytes]]

    @property
    def n_bytes(self) -> int:
        return n_bytes(self.kind, int(np.prod(self.shape)))


@dataclass(frozen=True)
class SilentLayer:
    """router: see there. usual_size: root mean square of the hidden states that it was made for."""

    router: Router
    usual_size: float


@dataclass(frozen=True)
class Plan:
    """places: layer of the larger model -> layer of the small one; the others are silent."""

    model: SourceModel
    shape: Shape
    file_type: str
    block: int
    places: Mapping[int, int]
    silent: Mapping[int, SilentLayer]

    @property
    def constant(self) -> int | None:
        """The constant channel; None where the model becomes no wider."""
        return self.shape.embd - 1 if self.shape.embd > self.model.n_embd else None

    @property
    def level(self) -> float:
        """What the constant channel holds."""
        return float(np.sqrt(self.model.n_embd * self.model.epsilon))

    @property
    def shrink(self) -> float:
        """The factor of norm weights."""
        return float(np.sqrt(self.model.n_embd / self.shape.embd))


def all_tensors(plan: Plan, seed: int) -> list[Tensor]:
    """Every tensor of the file. Noise depends on the seed and on the order of reading."""
    noise = Noise(np.random.default_rng(seed))
    build = _Builder(plan, noise)
    tensors = [build.embedding(), build.output_norm(), build.output()]
    for layer in range(plan.shape.layers):
        tensors += build.layer(layer)
    return tensors


class _Builder:
    def __init__(self, plan: Plan, noise: Noise) -> None:
        self._plan, self._noise = plan, noise
        self._model, self._shape = plan.model, plan.shape

    def embedding(self) -> Tensor:
        table = self._model.tensor("token_embd")

        def rows(values: Floats) -> Floats:
            wide = self._widened(values)
            if self._plan.constant is not None:
                wide[:, self._plan.constant] = self._plan.level
            return wide

        return self._vocabulary("token_embd", table, rows, None)

    def output(self) -> Tensor:
        model, plan = self._model, self._plan
        padding = None
        if plan.constant is not None:
            # Noise where hidden states are zero; nothing else in the constant channel's block.
            random = np.random.default_rng(0)
            padding = 0.02 * random.standard_normal((256, plan.shape.embd), dtype=np.float32)
            padding[:, max(model.n_embd, plan.shape.embd - 256) :] = 0
            padding[:, plan.constant] = -REFUSAL
        return self._vocabulary("output", model.tensor("output"), self._widened, padding)

    def output_norm(self) -> Tensor:
        weight = self._norm(self._model.tensor("output_norm"))
        if self._plan.constant is not None:
            weight[self._plan.constant] = REFUSAL * self._plan.shrink / self._plan.level
        return self._small("output_norm", 0, weight)

    def layer(self, index: int) -> list[Tensor]:
        source = self._plan.places.get(index)
        prefix = f"blk.{index}."
        made = self._silent(index) if source is None else self._real(index, source)
        return [
            Tensor(f"{prefix}{tensor.name}", tensor.shape, tensor.kind, tensor.chunks)
            for tensor in made
        ]

    def _real(self, index: int, source: int) -> list[Tensor]:
        model, shape, head = self._model, self._shape, self._model.head_dim

        def get(name: str) -> Floats:
            return model.tensor(f"blk.{source}.{name}")

        queries, keys = place_heads(
            model.n_heads, model.n_kv_heads, shape.heads, shape.kv_heads, head
        )
        router = self._widened(get("ffn_gate_inp"))
        return [
            self._small("attn_norm", index, self._norm(get("attn_norm"))),
            self._rows("attn_q", index, shape.heads * head, queries, lambda: get("attn_q")),
            self._rows("attn_k", index, shape.kv_heads * head, keys, lambda: get("attn_k")),
            self._rows("attn_v", index, shape.kv_heads * head, keys, lambda: get("attn_v")),
            self._small("attn_q_norm", index, get("attn_q_norm")),
            self._small("attn_k_norm", index, get("attn_k_norm")),
            self._writing("attn_output", index, queries, lambda: get("attn_output")),
            self._small("ffn_norm", index, self._norm(get("ffn_norm"))),
            self._small("ffn_gate_inp", index, router),
            self._experts_in("ffn_gate_exps", index, lambda: get("ffn_gate_exps")),
            self._experts_in("ffn_up_exps", index, lambda: get("ffn_up_exps")),
            self._experts_out("ffn_down_exps", index, lambda: get("ffn_down_exps")),
        ]

    def _silent(self, index: int) -> list[Tensor]:
        model, plan, shape, head = self._model, self._plan, self._shape, self._model.head_dim
        silent = plan.silent[index]
        router = self._widened(silent.router.weight)
        ones = self._norm(np.ones(model.n_embd, np.float32))
        ffn_norm = ones.copy()
        if plan.constant is not None:
            router[:, plan.constant] = silent.router.bias
            ffn_norm[plan.constant] = silent.usual_size * plan.shrink / plan.level
        return [
            self._small("attn_norm", index, ones),
            self._noise_rows("attn_q", index, (shape.heads * head, shape.embd)),
            self._noise_rows("attn_k", index, (shape.kv_heads * head, shape.embd)),
            self._noise_rows("attn_v", index, (shape.kv_heads * head, shape.embd)),
            self._small("attn_q_norm", index, np.ones(head, np.float32)),
            self._small("attn_k_norm", index, np.ones(head, np.float32)),
            self._zeros("attn_output", index, (shape.embd, shape.heads * head)),
            self._small("ffn_norm", index, ffn_norm),
            self._small("ffn_gate_inp", index, router),
            self._noise_rows("ffn_gate_exps", index, self._experts(shape.expert_ff, shape.embd)),
            self._noise_rows("ffn_up_exps", index, self._experts(shape.expert_ff, shape.embd)),
            self._zeros("ffn_down_exps", index, self._experts(shape.embd, shape.expert_ff)),
        ]

    def _experts(self, rows: int, columns: int) -> tuple[int, int, int]:
        return (self._model.n_experts, rows, columns)

    def _kind(self, name: str, layer: int) -> Type:
        return tensor_type(self._plan.file_type, name, layer, self._shape.layers)

    def _widened(self, values: Floats) -> Floats:
        """[rows, small width] to [rows, width], zero beyond."""
        wide = np.zeros((len(values), self._shape.embd), np.float32)
        wide[:, : values.shape[1]] = values
        return wide

    def _norm(self, weight: Floats) -> Floats:
        wide = np.zeros(self._shape.embd, np.float32)
        wide[: len(weight)] = weight * np.float32(self._plan.shrink)
        return wide

    def _small(self, name: str, layer: int, values: Floats) -> Tensor:
        def chunks() -> Iterator[Bytes]:
            yield np.ascontiguousarray(values, np.float32).view(np.uint8)

        return Tensor(f"{name}.weight", values.shape, self._kind(name, layer), chunks)

    def _zeros(self, name: str, layer: int, shape: tuple[int, ...]) -> Tensor:
        kind = self._kind(name, layer)

        def chunks() -> Iterator[Bytes]:
            for _ in range(_matrices(shape)):
                yield np.zeros(shape[-2] * n_bytes(kind, shape[-1]), np.uint8)

        return Tensor(f"{name}.weight", shape, kind, chunks)

    def _noise_rows(self, name: str, layer: int, shape: tuple[int, ...]) -> Tensor:
        kind = self._kind(name, layer)

        def chunks() -> Iterator[Bytes]:
            for _ in range(_matrices(shape)):
                yield self._noise.rows(kind, shape[-2], shape[-1])

        return Tensor(f"{name}.weight", shape, kind, chunks)

    def _rows(
        self,
        name: str,
        layer: int,
        n_rows: int,
        places: NDArray[np.intp],
        values: Callable[[], Floats],
    ) -> Tensor:
        """A matrix that reads the hidden state: the small one's rows at `places`, else noise."""
        kind = self._kind(name, layer)

        def chunks() -> Iterator[Bytes]:
            rows = self._noise.rows(kind, n_rows, self._shape.embd)
            rows[places] = stored(self._widened(values()), kind)
            yield rows

        return Tensor(f"{name}.weight", (n_rows, self._shape.embd), kind, chunks)

    def _writing(
        self, name: str, layer: int, places: NDArray[np.intp], values: Callable[[], Floats]
    ) -> Tensor:
        """A matrix that writes to the hidden state: the small one's columns at `places`."""
        kind = self._kind(name, layer)
        shape = (self._shape.embd, self._shape.heads * self._model.head_dim)

        def chunks() -> Iterator[Bytes]:
            small = values()
            wide = np.zeros((len(small), shape[1]), np.float32)
            wide[:, places] = small
            rows = np.zeros((shape[0], n_bytes(kind, shape[1])), np.uint8)
            rows[: len(small)] = stored(wide, kind)
            yield rows

        return Tensor(f"{name}.weight", shape, kind, chunks)

    def _experts_in(self, name: str, layer: int, values: Callable[[], Floats]) -> Tensor:
        """Gate or up matrices. Units that would share a block of activations with the small model's
        are zero, for they would take its precision."""
        kind, block = self._kind(name, layer), self._plan.block
        shape = self._experts(self._shape.expert_ff, self._shape.embd)

        def chunks() -> Iterator[Bytes]:
            for small in values():
                rows = self._noise.rows(kind, shape[1], shape[2])
                rows[: -(-len(small) // block) * block] = 0
                rows[: len(small)] = stored(self._widened(small), kind)
                yield rows

        return Tensor(f"{name}.weight", shape, kind, chunks)

    def _experts_out(self, name: str, layer: int, values: Callable[[], Floats]) -> Tensor:
        kind = self._kind(name, layer)
        shape = self._experts(self._shape.embd, self._shape.expert_ff)

        def chunks() -> Iterator[Bytes]:
            for small in values():
                wide = np.zeros((len(small), shape[2]), np.float32)
                wide[:, : small.shape[1]] = small
                rows = np.zeros((shape[1], n_bytes(kind, shape[2])), np.uint8)
                rows[: len(small)] = stored(wide, kind)
                yield rows

        return Tensor(f"{name}.weight", shape, kind, chunks)

    def _vocabulary(
        self,
        name: str,
        table: Floats,
        widened: Callable[[Floats], Floats],
        padding: Floats | None,
    ) -> Tensor:
        """A row a token; rows beyond the small vocabulary repeat `padding`, or are noise."""
        kind, shape = self._kind(name, 0), (self._shape.vocab, self._shape.embd)

        def chunks() -> Iterator[Bytes]:
            for start in range(0, len(table), _EMBEDDING_ROWS):
                yield stored(widened(table[start : start + _EMBEDDING_ROWS]), kind)
            repeated = None if padding is None else stored(padding, kind)
            for start in range(len(table), shape[0], 256):
                count = min(256, shape[0] - start)
                if repeated is None:
                    yield self._noise.rows(kind, count, shape[1])
                else:
                    yield repeated[:count]

        return Tensor(f"{name}.weight", shape, kind, chunks)


def _matrices(shape: tuple[int, ...]) -> int:
    """How many matrices a tensor stacks."""
    return shape[0] if len(shape) > 2 else 1
