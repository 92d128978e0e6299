"""What a decoded token does to the key/value cache: two kernels for the GPU, and both in torch.

Decoding thousands of rows by one token each is mostly reading their caches, which PyTorch's own
attention is not made for: rows have different lengths, and it would copy or mask. On a GPU with
Triton installed `attend` reads each row's cache once and stops at its position, and `write_cache`
does queries' and keys' norms, RoPE and the writes in one launch. head_dim must be a power of two
there. Elsewhere plain torch computes the same.
"""
# Triton's decorators and the arguments of its kernels have no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

_BLOCK = 64
# Matrix products of a GPU have at least 16 rows.
_FEWEST_QUERIES = 16
_NEVER = -1e30


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    shared: int = 0,
) -> torch.Tensor:
    """Attention of one token a row: [rows, heads, head_dim].

    query: [rows, heads, head_dim]. keys, values: [rows, kv heads, length, head_dim], contiguous;
    row r sees its positions 0 to positions[r], its own. shared: so many first positions are the
    same in all rows; the kernel reads them in row 0, that is, from the GPU's cache.
    """
    if query.is_cuda and triton is not None:
        return attend_triton(query, keys, values, positions, shared)
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    if not query.is_cuda:
        # Short texts need not pay for the length of the cache.
        longest = int(positions.max()) + 1
        keys, values = keys[:, :, :longest], values[:, :, :longest]
    grouped = query.view(rows, kv_heads, heads // kv_heads, head_dim).float()
    scores = grouped @ keys.float().transpose(2, 3) * head_dim**-0.5
    hidden = torch.arange(keys.shape[2], device=keys.device)[None] > positions[:, None]
    scores = scores.masked_fill(hidden[:, None, None], _NEVER)
    mixed = scores.softmax(-1) @ values.float()
    return mixed.reshape(rows, heads, head_dim).to(query.dtype)


def write_cache(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
) -> torch.Tensor:
    """Writes each row's key and value at its position; gives its query [rows, heads, head_dim].

    qkv: [rows, (heads + 2 * kv heads) * head_dim]. keys, values: as `attend` takes them.
    rope: as `rope_table` makes it. norms: weights [head_dim] of queries' and keys' RMS norms, if
    the model has them.
    """
    if qkv.is_cuda and triton is not None:
        return write_cache_triton(qkv, keys, values, positions, rope, norms, eps)
    rows, (kv_heads, head_dim) = len(qkv), (keys.shape[1], keys.shape[3])
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    query, key, value = qkv.view(rows, -1, head_dim).split([heads, kv_heads, kv_heads], 1)
    if norms is not None:
        query, key = rms_norm(query, norms[0], eps), rms_norm(key, norms[1], eps)
    cos, sin = (table[positions][:, None] for table in rope)
    every = torch.arange(rows, device=qkv.device)
    keys[every, :, positions] = _rotated(key, cos, sin).to(keys.dtype)
    values[every, :, positions] = value.to(values.dtype)
    return _rotated(query, cos, sin)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x over the root of its last axis' mean square, times weight; computed in float32."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def rope_table(
    head_dim: int, theta: float, length: int, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, float32 [length, head_dim] each, for halves that rotate together."""
    steps = theta ** (-torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angles = torch.arange(length, device=device).float()[:, None] * steps
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


def attend_triton(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    shared: int = 0,
) -> torch.Tensor:
    """`attend` by the kernel."""
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    mixed = torch.empty_like(query)
    _attend[(rows, kv_heads)](
        query,
        keys,
        values,
        positions,
        mixed,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        mixed.stride(0),
        mixed.stride(1),
        head_dim**-0.5,
        shared,
        G=group,
        GP=max(_FEWEST_QUERIES, triton.next_power_of_2(group)),
        D=head_dim,
        BL=_BLOCK,
        num_warps=4 if head_dim > 64 else 2,
        num_stages=3,
    )
    return mixed


def write_cache_triton(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
) -> torch.Tensor:
    """`write_cache` by the kernel."""
    rows, (kv_heads, head_dim) = len(qkv), (keys.shape[1], keys.shape[3])
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    query = torch.empty(rows, heads, head_dim, device=qkv.device, dtype=qkv.dtype)
    # Pointers that are not read still have to be some.
    q_norm, k_norm = norms if norms is not None else (qkv, qkv)
    _write_cache[(rows, heads + 2 * kv_heads)](
        qkv,
        query,
        keys,
        values,
        positions,
        rope[0],
        rope[1],
        q_norm,
        k_norm,
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        eps,
        H=heads,
        HK=kv_heads,
        D=head_dim,
        NORM=norms is not None,
        num_warps=1,
    )
    return query


if triton is not None:

    @triton.jit
    def _attend(
        Q,
        K,
        V,
        POS,
        O,  # noqa: E741
        sqb,
        sqh,
        skb,
        skh,
        skt,
        sob,
        soh,
        scale,
        shared,
        G: tl.constexpr,
        GP: tl.constexpr,
        D: tl.constexpr,
        BL: tl.constexpr,
    ):
        """One program a (row, kv head): its G query heads, padded to GP, over blocks of BL keys.

        The softmax is online (Milakov and Gimelshein, arXiv 1805.02867).
        """
        b = tl.program_id(0).to(tl.int64)
        h = tl.program_id(1).to(tl.int64)
        n = tl.load(POS + b).to(tl.int32) + 1
        og = tl.arange(0, GP)
        od = tl.arange(0, D)
        ol = tl.arange(0, BL)
        real = og < G
        q_at = Q + b * sqb + (h * G + og[:, None]) * sqh + od[None, :]
        q = tl.load(q_at, mask=real[:, None], other=0.0)
        m = tl.full([GP], -1e30, tl.float32)
        total = tl.zeros([GP], tl.float32)
        acc = tl.zeros([GP, D], tl.float32)
        for start in range(0, n, BL):
            t = start + ol
            there = t < n
            at = (
                tl.where(t < shared, 0, b)[:, None] * skb + h * skh + t[:, None] * skt + od[None, :]
            )
            k = tl.load(K + at, mask=there[:, None], other=0.0)
            x = tl.dot(q, tl.trans(k)).to(tl.float32) * scale
            x = tl.where(there[None, :], x, -1e30)
            larger = tl.maximum(m, tl.max(x, 1))
            shrink = tl.exp(m - larger)
            p = tl.exp(x - larger[:, None])
            total = total * shrink + tl.sum(p, 1)
            v = tl.load(V + at, mask=there[:, None], other=0.0)
            acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v).to(tl.float32)
            m = larger
        mixed = acc / total[:, None]
        o_at = O + b * sob + (h * G + og[:, None]) * soh + od[None, :]
        tl.store(o_at, mixed.to(O.dtype.element_ty), mask=real[:, None])

    @triton.jit
    def _write_cache(
        QKV,
        QO,
        K,
        V,
        POS,
        COS,
        SIN,
        QN,
        KN,
        skb,
        skh,
        skt,
        eps,
        H: tl.constexpr,
        HK: tl.constexpr,
        D: tl.constexpr,
        NORM: tl.constexpr,
    ):
        """One program a (row, head): heads of queries, then of keys, then of values."""
        b = tl.program_id(0).to(tl.int64)
        h = tl.program_id(1).to(tl.int64)
        pos = tl.load(POS + b)
        HD: tl.constexpr = D // 2
        o = tl.arange(0, HD)
        base = QKV + (b * (H + 2 * HK) + h) * D
        x1 = tl.load(base + o).to(tl.float32)
        x2 = tl.load(base + HD + o).to(tl.float32)
        if h < H + HK:
            if NORM:
                r = tl.rsqrt((tl.sum(x1 * x1, 0) + tl.sum(x2 * x2, 0)) / D + eps)
                W = QN
                if h >= H:
                    W = KN
                x1 = x1 * r * tl.load(W + o).to(tl.float32)
                x2 = x2 * r * tl.load(W + HD + o).to(tl.float32)
            c = tl.load(COS + pos * D + o)
            s = tl.load(SIN + pos * D + o)
            y1 = x1 * c - x2 * s
            y2 = x2 * c + x1 * s
            if h < H:
                q = QO + (b * H + h) * D
                tl.store(q + o, y1.to(QO.dtype.element_ty))
                tl.store(q + HD + o, y2.to(QO.dtype.element_ty))
            else:
                p = K + b * skb + (h - H) * skh + pos * skt
                tl.store(p + o, y1.to(K.dtype.element_ty))
                tl.store(p + HD + o, y2.to(K.dtype.element_ty))
        else:
            p = V + b * skb + (h - H - HK) * skh + pos * skt
            tl.store(p + o, x1.to(V.dtype.element_ty))
            tl.store(p + HD + o, x2.to(V.dtype.element_ty))
