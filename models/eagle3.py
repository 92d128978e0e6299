"""The EAGLE-3 draft head: one decoder layer that continues the target's own features.

The pair at position i is (feature of token i, embedding of token i+1). With f = fc(feature):

    x = cat(norm_in(embedding), norm_hidden(f)); h = f + attention(x); h = h + mlp(norm_post(h))

and softmax(lm_head(norm(h))) predicts token i+2; one level further down, h takes the place of f and
the drafted token that of token i+1 (Li et al., EAGLE-3, arXiv 2503.01840). Committed pairs stay in
a key/value cache. The pairs of a draft tree lie behind them, each seeing the committed ones, its
own ancestors and itself, and are thrown away with the tree.

With one layer, keys and values of a committed pair depend on it alone: a prompt costs two matrix
products, and attention runs only for the last pair, the root of the next tree.

Heads are published with options (`headconfig` names them): features may be normalised before fc,
norm_hidden(f) may take the place of f as residual, norm(h) that of h on the next level, and
attention may see a window only.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from specfit.models.checkpoint import HeadCheckpoint, TargetShape, read_checkpoint
from specfit.models.embeddings import TokenEmbeddings, TokenIds
from specfit.models.headweights import HeadWeights, Rotations, as_torch, times
from specfit.models.slots import TreeMask
from specfit.models.stretch import Stretch, stretched

__all__ = ["Eagle3Head", "TargetShape"]

Slots = NDArray[np.int32]
Tokens = NDArray[np.int32]
Probs = NDArray[np.float64]

_COMMIT_CHUNK = 512
_FIRST_ROWS = 1024
_FIRST_SLOTS = 128


class Eagle3Head:
    """A draft head with its key/value cache and the draft tree that grows from it.

    Slot 0 stands for the last committed pair; every expanded node gets the next slot. Not safe for
    use from several threads at once.
    """

    def __init__(
        self, checkpoint: HeadCheckpoint, embeddings: TokenEmbeddings, device: str = "cpu"
    ) -> None:
        own = checkpoint.tensors.get("embed_tokens.weight")
        self._embeddings = embeddings if own is None else TokenEmbeddings.of_table(as_torch(own))
        self._config = checkpoint.config
        self._device = torch.device(device)
        self._weights = HeadWeights.of(checkpoint, self._device)
        self._target_ids = checkpoint.target_ids.astype(np.int32)
        config = self._config
        self._half = self._weights.qkv.dtype != torch.float32
        self._query_size = config.n_heads * config.head_dim
        self._epsilon = self._epsilon_of(config.hidden_size)
        self._head_epsilon = self._epsilon_of(config.head_dim)
        self._feature_epsilon = self._epsilon_of(self.n_features // max(1, config.feature_norms))
        self._rope = Rotations(config, self._device)
        self._forget()

    def _epsilon_of(self, width: int) -> torch.Tensor:
        return torch.tensor((width * self._config.norm_eps) ** 0.5).to(self._device)

    def _forget(self) -> None:
        """Takes a new, empty cache."""
        # Per row: keys, then values.
        self._cache = self._empty_cache(_FIRST_ROWS)
        self._n_pairs = 0
        self._hidden = torch.empty(_FIRST_SLOTS, self._config.hidden_size, device=self._device)
        self._mask = TreeMask(self._config.window)
        self._n_slots = 0

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        embeddings: TokenEmbeddings,
        target: TargetShape,
        device: str = "cpu",
        stretch: Stretch | None = None,
    ) -> Eagle3Head:
        """Loads a head: a folder with config.json and the weights, or the weights' file.

        device: "cpu", or a GPU by torch's name. stretch: of the target's positions. Raises
        ModelFileError if the checkpoint is damaged or was not made for this target.
        """
        checkpoint = read_checkpoint(path, target)
        if stretch is not None:
            config = replace(checkpoint.config, rope=stretched(checkpoint.config.rope, stretch))
            checkpoint = replace(checkpoint, config=config)
        return cls(checkpoint, embeddings, device)

    def copies(self, n: int) -> list[Eagle3Head]:
        """This head and n - 1 others of the same weights, each with a cache and tree of its own."""
        others = [copy.copy(self) for _ in range(n - 1)]
        for other in others:
            other._forget()
        return [self, *others]

    def close(self) -> None:
        """There is nothing to free that is not freed by itself."""

    @property
    def taps(self) -> tuple[int, int, int]:
        """The target layers whose inputs, in this order, are a token's features."""
        return self._config.taps

    @property
    def n_features(self) -> int:
        """Floats of a token's features, those of all taps together."""
        return self._weights.fc.shape[0]

    @property
    def n_bytes(self) -> int:
        """Bytes of the weights that a drafted level reads."""
        weights = self._weights
        read = (weights.qkv, weights.out, weights.gate_up, weights.down, weights.vocab)
        return sum(matrix.nbytes for matrix in read)

    @property
    def n_pairs(self) -> int:
        """Committed pairs in the cache."""
        return self._n_pairs

    def truncate(self, n: int) -> None:
        """Forgets the pairs from n on, and the tree; commit at least one pair before drafting."""
        if n < 0:
            raise ValueError(f"cannot truncate to {n} pairs")
        if n < self._n_pairs:
            self._n_pairs = n
            self._n_slots = 0

    @torch.inference_mode()  # its cache may have been made so
    def adopt(self, other: Eagle3Head, n: int) -> None:
        """Takes over the first n pairs of another head of the same weights, for its own."""
        if not 0 <= n <= other.n_pairs:
            raise ValueError(f"there are {other.n_pairs} pairs, not {n}")
        self._n_pairs = self._n_slots = 0
        self._reserve_rows(n)
        self._cache[:n] = other._cache[:n]
        self._n_pairs = n

    def synchronize(self) -> None:
        """Waits until a GPU has done what was asked of it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def kept(self) -> NDArray[np.uint8]:
        """[pairs, bytes]: what `restore` makes the committed pairs of again."""
        return self._cache[: self._n_pairs].cpu().view(torch.uint8).numpy()

    @torch.inference_mode()  # its cache may have been made so
    def restore(self, kept: NDArray[np.uint8]) -> None:
        """Takes over what a head of the same weights had `kept`, for its own."""
        self._n_pairs = self._n_slots = 0
        self._reserve_rows(len(kept))
        rows = torch.from_numpy(np.array(kept)).view(self._cache.dtype)
        self._cache[: len(kept)] = rows
        self._n_pairs = len(kept)

    def states(self, start: int, stop: int) -> NDArray[np.float32]:
        """float32 [stop - start, width]: the hidden states of these slots."""
        return self._hidden[start:stop].cpu().numpy().copy()

    @torch.inference_mode()
    def commit(self, features: torch.Tensor | NDArray[np.float32], next_tokens: TokenIds) -> None:
        """Appends true pairs and starts a new tree at the last of them.

        features: float32 [m, 3 * hidden], the target's layer inputs at `taps`, concatenated.
        next_tokens: int [m], for each of them the token that follows it.
        """
        features = torch.as_tensor(features)
        n = features.shape[0]
        tokens = torch.as_tensor(next_tokens, dtype=torch.int64)
        if n == 0 or len(tokens) != n:
            raise ValueError(f"{n} features and {len(tokens)} tokens make no pairs")
        self._n_slots = 0
        self._reserve_rows(self._n_pairs + n)
        # All but the last pair only leave keys and values behind.
        for start in range(0, n - 1, _COMMIT_CHUNK):
            chunk = slice(start, min(start + _COMMIT_CHUNK, n - 1))
            self._append(self._projected(features[chunk]), tokens[chunk])
        self._n_pairs += 1
        self._hidden[:1] = self._layer(
            self._projected(features[-1:]), tokens[-1:], self._n_pairs - 1, self._n_pairs - 1, None
        )
        self._n_slots = 1

    def begin_tree(self) -> None:
        """Throws away all slots but 0."""
        self._n_slots = min(self._n_slots, 1)

    @torch.inference_mode()
    def propose(self, k: int) -> tuple[Tokens, Probs]:
        """The root's k most likely children, best first (fewer if the draft vocabulary is smaller).

        Returns target token ids [k] and their probabilities [k] over the draft vocabulary.
        """
        self._check_root()
        tokens, probs = self._best(self._hidden[:1], k)
        return tokens[0], probs[0]

    @torch.inference_mode()
    def expand(
        self, parent_slots: Slots | list[int], tokens: TokenIds, depth: int, k: int
    ) -> tuple[Slots, Tokens, Probs]:
        """Makes m drafted nodes into slots and drafts their children.

        parent_slots: int [m], the slot of each node's parent. tokens: int [m], the nodes' tokens.
        depth: of the nodes, 1 for the root's children. Returns their slots [m], and for each node
        its k best continuations (fewer if the draft vocabulary is smaller), best first: target
        token ids [m, k], probabilities [m, k]. Raises ValueError for a parent that is no slot of
        depth - 1.
        """
        self._check_root()
        first = self._n_slots
        parents, bias = self._mask.add(parent_slots, first, depth)
        m = len(parents)
        self._reserve_slots(first + m)
        self._reserve_rows(self._n_pairs + first + m)
        hidden = self._hidden.index_select(0, torch.from_numpy(parents).to(self._device))
        if self._weights.output is not None:
            hidden = self._normed(hidden, self._epsilon) * self._weights.output
        # Slot 0 is a committed pair, so slot s lies s - 1 rows behind them.
        hidden = self._layer(
            hidden,
            torch.as_tensor(tokens, dtype=torch.int64),
            self._n_pairs - 1 + depth,
            self._n_pairs + first - 1,
            bias,
        )
        self._hidden[first : first + m] = hidden
        self._n_slots = first + m
        slots = np.arange(first, first + m, dtype=np.int32)
        return slots, *self._best(hidden, k)

    def _projected(self, features: torch.Tensor) -> torch.Tensor:
        features = features.to(self._device, torch.float32)
        if self._config.feature_norms:
            parts = features.reshape(len(features), self._config.feature_norms, -1)
            features = self._normed(parts, self._feature_epsilon).flatten(1)
        return times(features, self._weights.fc, self._weights.fc_bias)

    def _inputs(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """[m, 2 * width]: embedding and hidden state, each scaled to norm 1."""
        rows = self._embeddings.rows(tokens)
        if rows.device != self._device:
            rows = rows.to(self._device)
        return self._unit(torch.stack((rows, hidden), 1)).view(len(rows), -1)

    def _unit(self, x: torch.Tensor) -> torch.Tensor:
        """Scaled to norm 1, in the type of the weights."""
        normed = self._normed(x, self._epsilon)
        return normed.to(self._weights.qkv.dtype) if self._half else normed

    @staticmethod
    def _normed(x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        """x / sqrt(|x|^2 + epsilon^2): RMS norm but for a factor that the weights have."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / length.hypot_(epsilon)

    def _append(self, hidden: torch.Tensor, tokens: torch.Tensor) -> None:
        """Writes keys and values of committed pairs."""
        start, m = self._n_pairs, len(tokens)
        weights, queries = self._weights, self._query_size
        bias = None if weights.qkv_bias is None else weights.qkv_bias[queries:]
        keys_values = times(self._inputs(hidden, tokens), weights.qkv[:, queries:], bias)
        rotation = self._rope.at(start, start + m)
        self._cache[start : start + m] = self._rotated(
            keys_values, self._config.n_kv_heads, rotation
        )
        self._n_pairs += m

    def _rotated(self, x: torch.Tensor, n_heads: int, rotation: torch.Tensor) -> torch.Tensor:
        """x [m, …] with its first n_heads heads, the last of which are keys, rotated in place.

        rotation: complex64 [m or 1, 1, head_dim / 2].
        """
        size, norms = n_heads * self._config.head_dim, self._weights.head_norms
        heads = x[:, :size].float() if self._half else x[:, :size]
        if norms is not None:
            split = self._normed(heads.view(len(x), n_heads, -1), self._head_epsilon)
            heads = (split * norms[-n_heads:]).flatten(1)
        torch.view_as_complex(heads.view(len(x), n_heads, -1, 2)).mul_(rotation)
        if self._half or norms is not None:
            x[:, :size] = heads
        return x

    def _layer(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        position: int,
        row: int,
        bias: NDArray[np.float32] | None,
    ) -> torch.Tensor:
        """The decoder layer over m pairs at one position; their keys go to cache rows row…row+m-1.

        All rows up to those, within the window, are seen, except where bias [m, last rows] says
        -inf.
        Returns the next hidden states, float32 [m, width].
        """
        config, weights, m = self._config, self._weights, len(tokens)
        inputs = self._inputs(hidden, tokens)
        if weights.residual is not None:
            hidden = inputs[:, config.hidden_size :] * weights.residual
        qkv = times(inputs, weights.qkv, weights.qkv_bias)
        rotation = self._rope.at(position, position + 1)
        qkv = self._rotated(qkv, config.n_heads + config.n_kv_heads, rotation)
        self._cache[row : row + m] = qkv[:, self._query_size :]
        # Committed pairs lie in the rows of their positions.
        first = min(max(0, position + 1 - config.window), self._n_pairs) if config.window else 0
        attended = self._attention(qkv[:, : self._query_size], first, row + m, bias)
        hidden = hidden + times(attended, weights.out, weights.out_bias)
        gated = times(self._unit(hidden), weights.gate_up, weights.gate_up_bias)
        gate, up = gated.chunk(2, -1)
        return hidden + times(F.silu(gate) * up, weights.down, weights.down_bias)

    def _attention(
        self, query: torch.Tensor, first: int, end: int, bias: NDArray[np.float32] | None
    ) -> torch.Tensor:
        """Attention of m queries [m, heads * head_dim] over the cache rows from first to end."""
        config, m, n_rows = self._config, len(query), end - first
        n_kv, size = config.n_kv_heads, config.head_dim
        keys, values = self._cache[first:end].view(n_rows, 2, n_kv, size).unbind(1)
        grouped = query.reshape(m, n_kv, -1, size).transpose(0, 1).reshape(n_kv, -1, size)
        scores = torch.bmm(grouped, keys.permute(1, 2, 0))
        if self._half:
            scores = scores.float()
        if bias is not None and bias.any():
            hidden_rows = torch.from_numpy(bias).to(self._device)
            scores.view(n_kv, m, -1, n_rows)[..., -bias.shape[1] :] += hidden_rows[:, None]
        weights = scores.softmax(-1)
        if self._half:
            weights = weights.to(query.dtype)
        mixed = torch.bmm(weights, values.transpose(0, 1))
        return mixed.view(n_kv, m, -1).transpose(0, 1).reshape(m, -1)

    def _best(self, hidden: torch.Tensor, k: int) -> tuple[Tokens, Probs]:
        logits = self._logits(hidden)
        k = min(k, logits.shape[1])
        # One more than wanted shows a tie across the border; ties go to the lower id.
        values, ids = logits.topk(min(k + 1, logits.shape[1]))
        best = values.cpu().numpy()
        if (best[:, 1:] == best[:, :-1]).any():
            ids = logits.sort(descending=True, stable=True).indices
        ids = ids[:, :k]
        probs = logits.softmax(-1).gather(1, ids)
        return self._target_ids[ids.cpu().numpy()], probs.cpu().numpy().astype(np.float64)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        unit, vocab = self._unit(hidden), self._weights.vocab
        if self._weights.vocab_scale != 1.0:
            unit = unit * self._weights.vocab_scale
        # Logits rounded to half precision would tie.
        return torch.mm(unit, vocab, out_dtype=torch.float32) if self._half else unit @ vocab

    def _check_root(self) -> None:
        if self._n_slots == 0:
            raise RuntimeError("commit a pair before drafting")

    def _empty_cache(self, n_rows: int) -> torch.Tensor:
        width = 2 * self._config.n_kv_heads * self._config.head_dim
        return torch.empty(n_rows, width, dtype=self._weights.qkv.dtype, device=self._device)

    def _reserve_rows(self, n: int) -> None:
        if n > len(self._cache):
            grown = self._empty_cache(max(n, 2 * len(self._cache)))
            grown[: len(self._cache)] = self._cache
            self._cache = grown

    def _reserve_slots(self, n: int) -> None:
        old = len(self._hidden)
        if n > old:
            hidden = torch.empty(max(n, 2 * old), self._config.hidden_size, device=self._device)
            hidden[:old] = self._hidden
            self._hidden = hidden
