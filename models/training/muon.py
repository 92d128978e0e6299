"""Muon: momentum whose update is made orthogonal, matrix by matrix (Jordan et al., 2024).

`torch.optim.Muon` takes 2-D parameters only. Here experts are stacked [experts, rows, columns] and
each of them is a matrix of its own; equal matrices of all layers go through one batched product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_ITERATIONS = 5
# The quintic whose iteration pulls singular values of (0, 1] to about 1 fastest (0.7 to 1.2).
_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """[..., rows, columns]: each matrix with its singular values moved to about 1.

    Newton–Schulz iterations, in bfloat16 on a GPU.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    """groups: parameters of one shape each, such as the query matrices of all layers."""

    def __init__(
        self,
        groups: Sequence[Sequence[torch.nn.Parameter]],
        rate: float,
        weight_decay: float = 0.05,
    ) -> None:
        self._groups = groups
        self._rate = rate
        self._weight_decay = weight_decay
        self._momenta = [torch.zeros_like(torch.stack([p.data for p in ps])) for ps in groups]
        self._orthogonalised = orthogonalised
        if groups[0][0].is_cuda:
            self._orthogonalised = torch.compile(orthogonalised, dynamic=False)

    @torch.no_grad()
    def step(self, factor: float, momentum: float) -> None:
        """One update at `factor` times the rate, from the parameters' gradients."""
        rate = self._rate * factor
        for parameters, kept in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([_gradient(p) for p in parameters])
            kept.lerp_(gradient, 1 - momentum)
            ahead = gradient.lerp(kept, momentum)
            rows, columns = ahead.shape[-2:]
            updates = self._orthogonalised(ahead.view(-1, rows, columns)).view(ahead.shape)
            size = max(1.0, rows / columns) ** 0.5 * rate
            for parameter, update in zip(parameters, updates.to(kept.dtype), strict=True):
                parameter.mul_(1 - rate * self._weight_decay).add_(update, alpha=-size)


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        raise ValueError("a parameter has no gradient")
    return parameter.grad
