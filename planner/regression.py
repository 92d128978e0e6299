"""Linear regression that is learned as it goes, and forgets."""

from __future__ import annotations

import numpy as np

from .tree import FloatArray

# theta is worked out again after so many observations; after each of the first ones.
STALE, EAGER = 8, 50


class RunningRegression:
    """y = x . theta, with a normal prior to which old observations fade."""

    def __init__(self, prior: FloatArray, deviations: FloatArray, memory: float) -> None:
        """prior, deviations: float64 [k], theta's means and standard deviations a priori, for
        observations of variance 1 / weight. memory: observations after which one weighs half."""
        self._precision0 = np.diag(1 / np.square(deviations))
        self._information0 = self._precision0 @ prior
        self._precision, self._information = self._precision0.copy(), self._information0.copy()
        self._memory = memory
        self._theta = np.array(prior, np.float64)
        self._covariance = np.diag(np.square(deviations))
        self._unused = self._seen = 0

    @property
    def theta(self) -> FloatArray:
        """float64 [k], the estimate, at most a few observations old."""
        self._work_out()
        return self._theta

    @property
    def covariance(self) -> FloatArray:
        """float64 [k, k], how far `theta` may be off."""
        self._work_out()
        return self._covariance

    def learn(self, x: FloatArray, y: FloatArray, weights: FloatArray) -> None:
        """Learns from x [m, k], y [m], weights [m]."""
        keep = 0.5 ** (len(y) / self._memory)
        weighted = x * weights[:, None]
        self._precision += (keep - 1) * (self._precision - self._precision0) + weighted.T @ x
        self._information += (keep - 1) * (self._information - self._information0) + y @ weighted
        self._unused += len(y)
        self._seen += len(y)

    def _work_out(self) -> None:
        if self._unused >= (STALE if self._seen > EAGER else 1):
            self._covariance = np.linalg.inv(self._precision)
            self._theta = self._covariance @ self._information
            self._unused = 0

    def state(self) -> FloatArray:
        """float64 [k + 1, k]: what was learned, to be kept."""
        return np.vstack([self._precision, self._information])

    def restore(self, state: FloatArray) -> None:
        """Takes over what `state` gave. Raises ValueError if it is of another regression."""
        if state.shape != (len(self._theta) + 1, len(self._theta)) or not np.isfinite(state).all():
            raise ValueError("the kept state of a regression has another shape")
        self._precision, self._information = state[:-1].copy(), state[-1].copy()
        try:
            self._covariance = np.linalg.inv(self._precision)
            self._theta = self._covariance @ self._information
        except np.linalg.LinAlgError as error:
            raise ValueError("the kept state of a regression is singular") from error
