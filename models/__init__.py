"""Model files: GGUF metadata and embeddings, the EAGLE-3 draft head, the bundled default pair.

Imports nothing of the other rooms. This module stays light (no torch, no gguf), so that a command
line can name the bundled files before anything heavy is loaded.
"""

from __future__ import annotations

from pathlib import Path

from specfit.models.errors import ModelFileError

__all__ = ["ModelFileError", "bundled_head", "bundled_model"]

_BUNDLED = Path(__file__).resolve().parent / "bundled"


def bundled_model() -> Path:
    """The GGUF file of the default target, a small Qwen3-MoE chat model."""
    return _BUNDLED / "specfit-tiny-q4_0.gguf"


def bundled_head() -> Path:
    """The folder with the default target's EAGLE-3 head (config.json, model.safetensors)."""
    return _BUNDLED / "eagle3"
