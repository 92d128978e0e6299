"""What was learned about a pair of models, kept in the user's cache folder between runs."""

from __future__ import annotations

from pathlib import Path

from specfit.models.weights import checkpoint_files
from specfit.planner import Beliefs

from .cache import DAMAGE, archived, cache_path, identity, replace_if_possible, unarchived

FORMAT = 4


def memory_path(
    model: Path, head: Path | None, *, cached: bool = False, profile: str | None = None
) -> Path:
    """Where the beliefs about this pair are kept; another file of the same name is another pair.

    cached: with a cache of experts, beside which others are paid for. profile: of the costs of
    another machine, if planned for that: what drafts gain there they need not gain here.

    Raises ModelFileError if there is no head.
    """
    files = [model, *([] if head is None else checkpoint_files(head)[1])]
    depends_on = [FORMAT, *map(identity, files), *(["cached"] if cached else [])]
    depends_on += [] if profile is None else [profile]
    return cache_path("learned", depends_on, ".npz")


def recall(beliefs: Beliefs, path: Path) -> bool:
    """Restores what is kept; False, with the beliefs perhaps spoiled, if nothing fitting is."""
    try:
        beliefs.restore(unarchived(path))
    except DAMAGE:
        return False
    return True


def keep(beliefs: Beliefs, path: Path) -> None:
    """Keeps the beliefs. Losing them costs some cycles of learning."""
    replace_if_possible(path, archived(beliefs.state()))
