"""When a forecast of experts is worth its own time."""

from __future__ import annotations

from .policies import FIRST_PLANNING_MS, Outcome, followed

# A forecast has to save its own time so many times over by its own account, which is a hopeful
# one. It is made in the first drafted cycles and then in every TRY_EVERYth at least, to know; what
# it saved is looked at in one of so many.
PAYS_TWICE, FIRST_FORECASTS, TRY_EVERY, LOOK_EVERY = 2.0, 48, 32, 4
FIRST_MS = {True: 0.8, False: FIRST_PLANNING_MS}
# What is believed less of a planning time for every answer that it keeps from being drafted.
DOUBT = 0.03


class Foresight:
    """planning_ms: a level's planning time, with a forecast and without."""

    def __init__(self) -> None:
        self.planning_ms = dict(FIRST_MS)
        self._saved = 0.0  # tokens, in a cycle
        self._levels, self._drafted = 1.0, 0

    @property
    def looks(self) -> bool:
        """Whether to find out what the forecast of this cycle saves, for `learn_saved`."""
        return self._drafted % LOOK_EVERY == 0

    def pays(self, rate: float, row_ms: float | None) -> bool:
        """Whether to forecast in the coming cycle.

        rate: tokens per ms. row_ms: of the experts of a row, more than which can hardly be saved;
        None with a cache of experts, where few are missing in the mean, and now and then many.
        """
        extra_ms = (self.planning_ms[True] - self.planning_ms[False]) * self._levels
        if row_ms is not None and row_ms < PAYS_TWICE * extra_ms:
            return False
        if self._drafted < FIRST_FORECASTS or self._drafted % TRY_EVERY == 0:
            return True
        return self._saved > PAYS_TWICE * extra_ms * rate

    def learn_saved(self, tokens: float) -> None:
        """Learns by how much a plan is better, by its own account, than the one that would have
        been made without a forecast."""
        self._saved += 0.05 * (tokens - self._saved)

    def learn(self, outcome: Outcome, *, forecasting: bool) -> None:
        """Learns from a cycle that drafted."""
        before, steps = self.planning_ms[forecasting], outcome.planned
        self.planning_ms[forecasting] = followed(before, outcome.plan_ms, steps)
        self._levels += 0.05 * (steps - self._levels)
        self._drafted += 1

    def doubt(self) -> None:
        """Believes a little less in times so long that nothing is planned any more."""
        for forecasting, first_ms in FIRST_MS.items():
            ms = self.planning_ms[forecasting]
            self.planning_ms[forecasting] = ms + DOUBT * min(0.0, first_ms - ms)
