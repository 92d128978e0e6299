"""The status line: what it says, and what it drops where there is little room."""

from __future__ import annotations

from dataclasses import replace

from rich.cells import cell_len
from screencases import seen
from textual.app import App, ComposeResult

from specfit.app.stats import statistics
from specfit.app.widgets.status_line import StatusLine, status
from specfit.backend import CycleMeans, Report


def report(*, union: float = 14.2) -> Report:
    means = CycleMeans(mean_acceptance_length=2.1, rows_per_cycle=3.1, union_per_layer=union)
    return Report("text", "", 20, 40, 100.0, 1.0, 20, 42, 22, means)


class Line(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.line = StatusLine("specfit")

    def compose(self) -> ComposeResult:
        yield self.line


class TestTheStatusLine:
    WHY = "2 drafts: a third would cost 9 ms for 0.2 tokens"

    def test_has_everything_where_there_is_room(self):
        line = status(report(), "specfit", self.WHY, 120)
        assert line == (
            "specfit · 39.0 tok/s · 2.10 tokens a step · rows 3.1 · union 14.2 · " + self.WHY
        )

    def test_drops_the_least_important_first_and_never_the_reason(self):
        lengths = []
        for width in range(130, 60, -1):
            line = status(report(), "specfit", self.WHY, width)
            assert cell_len(line) <= max(width, len("39.0 tok/s · " + self.WHY))
            assert "tok/s" in line
            assert line.endswith(self.WHY)
            lengths.append(len(line))
        assert lengths == sorted(lengths, reverse=True)
        at_80 = status(report(), "specfit", self.WHY, 78)
        assert at_80 == "39.0 tok/s · 2.10 a step · " + self.WHY

    def test_a_dense_model_has_no_union(self):
        assert "union" not in status(report(union=0.0), "specfit", "", 120)

    def test_with_a_cache_of_experts_its_hits_take_the_place_of_the_union(self):
        cached = replace(report(), means=replace(report().means, hits=90.0, misses=10.0))
        line = status(cached, "specfit", "", 120)
        assert line.endswith(" · rows 3.1 · cache 90%")
        assert "90% of expert uses in the GPU's cache" in statistics(cached, "specfit")

    async def test_fits_80_columns_and_follows_a_resize(self):
        app = Line()
        async with app.run_test(size=(80, 24)) as pilot:
            app.line.show(report(), "specfit", self.WHY)
            await seen(pilot, self.WHY)
            await pilot.resize_terminal(140, 24)
            await seen(pilot, "union 14.2")

    async def test_a_reason_stays_long_enough_to_be_read(self):
        app = Line()
        async with app.run_test(size=(80, 24)) as pilot:
            app.line.show(report(), "specfit", self.WHY)
            app.line.show(report(), "specfit", "1 draft: another")
            await seen(pilot, self.WHY)
