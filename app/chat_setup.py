"""What a chat begins with: the user's choices, the store, and the conversation to go on with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from .entry import AppError
from .keys import Key
from .options import ModelChoice
from .options_context import ContextChoice
from .parameters import Parameters, written
from .session import Session
from .settings import Settings
from .store import Conversation, Store, StoreError

if TYPE_CHECKING:
    from specfit.backend import Engine
    from specfit.backend.plan import Plan

    from .widgets.model_picker import Choice


Progress = Callable[[float], bool]
Planned = Callable[["Plan"], None]


def load_engine(model: ModelChoice, progress: Progress, planned: Planned) -> Engine:
    """Loads an engine; takes its time, and is cancelled by `progress` returning False. `planned` is
    told where everything will go before it goes there."""
    from specfit.backend import Engine
    from specfit.backend.loading import plan_load

    options = model.load_options(drafting=True)
    plan = plan_load(options)
    planned(plan)
    return Engine.load(replace(options, plan=plan), progress=progress)


@dataclass(frozen=True)
class Setup:
    """notices: to be shown when the chat opens. load: in a thread."""

    model: ModelChoice
    parameters: Parameters
    settings: Settings
    session: Session
    notices: tuple[str, ...] = ()
    load: Callable[[ModelChoice, Progress, Planned], Engine] = load_engine

    @property
    def keys(self) -> tuple[Key, ...]:
        return self.settings.keys()


def set_up(
    model: ModelChoice,
    parameters: Parameters,
    settings: Settings,
    system: str | None,
    resume: str | None,
) -> Setup:
    """Opens the store; without it the chat goes on, and says so.

    resume: words of the conversation to go on with; "" is the last one. Raises AppError if there
    is none.
    """
    try:
        store: Store | None = Store()
    except StoreError as error:
        if resume is not None:
            raise
        session = Session(None, system or "")
        told = f"What is said in this window is not kept: {error}"
        return Setup(model, parameters, settings, session, (told,))
    assert store is not None
    session = Session(store, system or "")
    if resume is not None:
        try:
            _go_on(session, store, resume)
        except AppError as error:
            # Of a store that was lost no one can go on with anything; the chat is there to tell it.
            if not store.generation:
                raise AppError(". ".join([*store.notices, str(error)])) from error
        if system:
            session.set_system(system)
    usual, parameters = parameters, kept_parameters(session, parameters)
    notices = [*store.notices, *filter(None, [told_of_kept(parameters, usual)])]
    if store.read_only:
        notices.append(f"{store.path} is read-only: what is said now is not kept")
    return Setup(model, parameters, settings, session, tuple(notices))


def _go_on(session: Session, store: Store, words: str) -> None:
    """Opens the conversation; where its file turns out to be damaged, what is rescued of it."""
    generation = store.generation
    try:
        session.open(_found(store, words).id)
    except StoreError:
        if store.generation == generation:
            raise
        session.open(_found(store, words).id)


def _found(store: Store, words: str) -> Conversation:
    wanted = words.casefold().split()
    for one in store.conversations(limit=10_000):
        if one.count and (words == str(one.id) or all(w in one.title.casefold() for w in wanted)):
            return one
    what = f"has {words!r} in its title" if wanted else "is kept yet"
    raise AppError(f"no conversation {what}")


def kept_parameters(session: Session, otherwise: Parameters) -> Parameters:
    """The parameters that the open conversation keeps."""
    kept = session.values.get("parameters")
    return Parameters.from_dict(kept) if isinstance(kept, dict) else otherwise


def told_of_kept(parameters: Parameters, otherwise: Parameters) -> str:
    """A note on what a conversation keeps that differs from what a new one would have; "" if
    nothing does."""
    kept, usual = parameters.as_dict(), otherwise.as_dict()
    differs = {name: value for name, value in kept.items() if value != usual[name]}
    if not differs:
        return ""
    values = ", ".join(
        f"{name} {'as the model has it' if value is None else written(value)}"
        for name, value in differs.items()
    )
    return f"This conversation keeps its own values: {values}."


def chosen(model: ModelChoice, choice: Choice, ctx: int | None) -> ModelChoice:
    """The same placement for another model and head. ctx: the context that was asked for, which is
    cut to what the model was made for, unless positions are stretched anyway."""
    stretched = any(getattr(model, field.name) is not None for field in fields(ContextChoice))
    if ctx is not None and choice.context_length and not stretched:
        ctx = min(ctx, choice.context_length)
    # A prompt cache is of one model, and would be replaced by the other's.
    same = choice.model == model.model
    return replace(
        model,
        model=choice.model,
        model_draft=choice.head,
        ctx_size=ctx,
        prompt_cache=model.prompt_cache if same else None,
        prompt_cache_ro=model.prompt_cache_ro and same,
    )
