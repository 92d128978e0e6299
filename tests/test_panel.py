"""The side panel that shows speculation, alone and fed by a real engine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from counting import counted
from rich.cells import cell_len
from screencases import until
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.pilot import Pilot
from textual.widgets import Static

from specfit.app.widgets.acceptance_bars import AcceptanceBars, bar_of, depth_of
from specfit.app.widgets.cycle_plot import CyclePlot, bars_of
from specfit.app.widgets.draft_tree import DraftTreeView, drawing, fitted, tree_lines, visible
from specfit.app.widgets.expert_strip import ExpertStrip
from specfit.app.widgets.meters import GIB, Memory, Meters, all_memory, host_memory
from specfit.app.widgets.panel import DRAWN_PER_S, Panel
from specfit.backend import CycleMeans, CycleReport, Engine, Report, Sampling, Spec
from specfit.backend.devices import DeviceMemory
from specfit.backend.view import CycleView
from specfit.planner import Reason, Step

QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
SIZES = [(120, 40), (80, 24)]


def cycle_report(
    rows: int = 4, accepted: int = 1, *, ms: float = 24.0, predicted: float = 25.0
) -> CycleReport:
    return CycleReport(
        context=10,
        rows=rows,
        accepted=accepted,
        committed=accepted + 1,
        union_per_layer=14.0,
        union_observed=True,
        predicted_union=14.0,
        draft_ms=1.0,
        plan_ms=0.3,
        verify_ms=20.0,
        observe_ms=0.0,
        predicted_cycle_ms=predicted,
        measured_cycle_ms=ms,
        predicted_committed=1.8,
    )


def small_view(*texts: str) -> CycleView:
    """root -> (a, b), a -> (c, d): a is accepted, b and c verified, d pruned."""
    texts = texts or ("The", " sky", " sea", " is", " was")
    return CycleView(
        report=cycle_report(),
        reason=Reason("planned", 3, 22.0, Step(9.0, 0.1), Step(1.4, 0.02), "level"),
        sampled=" turns",
        texts=texts,
        parents=np.array([-1, 0, 0, 1, 1], np.int32),
        depths=np.array([0, 1, 1, 2, 2], np.int32),
        probs=np.array([1.0, 0.6, 0.3, 0.5, 0.2]),
        chances=np.array([1.0, 0.6, 0.3, 0.3, 0.12]),
        kept=np.array([True, True, True, True, False]),
        accepted=np.array([True, True, False, False, False]),
        new_experts=np.array([8.0, 4.0, 1.5, 0.5, np.nan]),
        layers=np.array([13, 14, 15, 14]),
    )


def report(*, union: float = 14.2) -> Report:
    means = CycleMeans(mean_acceptance_length=2.1, rows_per_cycle=3.1, union_per_layer=union)
    return Report("text", "", 20, 40, 100.0, 1.0, 20, 42, 22, means)


class Stage(App[None]):
    """A chat's place with the panel beside it."""

    CSS = "Horizontal > Static { width: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.panel = Panel()

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static("the conversation")
            yield self.panel


@asynccontextmanager
async def stage(size: tuple[int, int]) -> AsyncIterator[tuple[Stage, Pilot[None]]]:
    app = Stage()
    async with app.run_test(size=size) as pilot:
        yield app, pilot


def lines_of(app: App[None]) -> list[str]:
    """The screen as text."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


async def settled(pilot: Pilot[None]) -> None:
    """What the panel was shown is on the screen."""
    await pilot.pause()
    pilot.app.query_one(Panel)._draw()
    await pilot.pause()


def texts(app: App[None]) -> str:
    return "\n".join(lines_of(app))


@pytest.fixture(scope="module")
def chained(bundled_engine: Engine) -> tuple[list[CycleView], Report]:
    """Cycles of a real answer under a forced tree."""
    generation = bundled_engine.generate(
        QUESTION, sampling=Sampling(temp=0.0), max_tokens=40, spec=Spec.parse("eagle3:16:3:4")
    )
    views: list[CycleView] = []
    generation.watch = views.append
    list(generation)
    return views, generation.report


class TestThePanel:
    @pytest.mark.parametrize("size", SIZES)
    async def test_shows_a_real_answer_whole_on_any_screen(self, chained, size):
        views, _ = chained
        async with stage(size) as (app, pilot):
            app.panel.show(views, "eagle3:16:3:4")
            await settled(pilot)
            screen = texts(app)
            for part in (
                "15 drafts: eagle3:16:3:4 is set",
                "Draft tree: newest of",
                "took",
                "pred.",
            ):
                assert part in screen
            assert ("Accepted by depth" in screen) == (size[1] >= 30)
            for widget in (DraftTreeView, CyclePlot, ExpertStrip, Meters):
                region = app.query_one(widget).region
                assert region.height >= 2
                assert app.screen.region.contains_region(region)

    async def test_says_why_nothing_is_drafted_and_how_to_see_drafts_anyway(self):
        async with stage((80, 24)) as (app, pilot):
            reason = Reason("resting")
            app.panel.show([CycleView(cycle_report(1, 0), reason, "a")], "specfit")
            await settled(pilot)
            screen = " ".join(line[40:] for line in lines_of(app))
            told = " ".join(screen.split())
            assert "Nothing drafted yet: they cost more than they bring here" in told
            assert "/spec eagle3:31 drafts all the same" in told

    @pytest.mark.parametrize("size", SIZES)
    async def test_says_in_a_line_that_nothing_was_drafted_or_can_be(self, size):
        async with stage(size) as (app, pilot):
            await settled(pilot)
            assert "Nothing drafted yet." in texts(app)
            plain = CycleView(cycle_report(1, 0, predicted=0.0), Reason("headless"), "a")
            app.panel.clear(drafts=False)
            app.panel.show([plain], "specfit")
            await settled(pilot)
            screen = texts(app)
            assert "No draft head: nothing is drafted." in screen
            assert "no draft: no draft head is loaded" in screen
            assert "none predicted" in screen

    async def test_says_why_and_what_else_was_weighed(self):
        async with stage((120, 40)) as (app, pilot):
            app.panel.show([small_view()], "specfit")
            await settled(pilot)
            said = " ".join(str(app.query_one("#why", Static).render()).split())
            assert said == (
                "3 drafts: a fourth would cost 9 ms for 0.1 tokens "
                "a token takes 22 ms "
                "longer ones would cost 1.4 ms for 0.02 tokens"
            )

    async def test_keys_turn_to_older_drafts_which_stay_while_newer_ones_come(self):
        first, second, third = (
            small_view("The", f" one{i}", " sea", " is", " was") for i in range(3)
        )
        async with stage((120, 40)) as (app, pilot):
            tree = app.panel.tree_view
            app.panel.show([first, second], "specfit")
            await settled(pilot)
            assert "one1" in texts(app)
            tree.focus()
            await pilot.press("left")
            await settled(pilot)
            assert "one0" in texts(app)
            app.panel.show([third], "specfit")
            await settled(pilot)
            assert tree.selected is first
            assert "Draft tree: 1 of 3" in texts(app)
            await pilot.press("right", "right", "right")
            await settled(pilot)
            assert "one2" in texts(app)
            assert "newest of 3" in texts(app)

    async def test_takes_little_to_take_in_a_large_tree_and_to_draw_it(self, chained):
        views, _ = chained
        wide = replace(
            views[0],
            texts=views[0].texts * 10,
            parents=np.concatenate([views[0].parents, *[np.maximum(views[0].parents, 0)] * 9]),
            depths=np.tile(views[0].depths, 10),
            probs=np.tile(views[0].probs, 10),
            chances=np.tile(views[0].chances, 10),
            kept=np.tile(views[0].kept, 10),
            accepted=np.tile(views[0].accepted, 10),
            new_experts=np.tile(views[0].new_experts, 10),
        )
        async with stage((120, 40)) as (app, pilot):
            await settled(pilot)
            with counted() as taken:
                app.panel.show([*views[:8], wide], "eagle3")
            with counted() as drawn:
                app.panel._draw()
            assert taken.n < 500  # 25 times a second
            assert drawn.n < 30_000  # five times

    async def test_is_drawn_at_most_some_times_a_second_and_not_while_hidden(self, monkeypatch):
        drawn = []
        monkeypatch.setattr(DraftTreeView, "draw", lambda self: drawn.append(self))
        async with stage((120, 40)) as (app, pilot):
            drawn.clear()
            begun = time.monotonic()
            while time.monotonic() < begun + 0.5 or not drawn:  # a busy machine leaves some out
                app.panel.show([small_view()], "specfit")
                await pilot.pause(0.01)
            assert len(drawn) <= 1 + DRAWN_PER_S * (time.monotonic() - begun)
            app.panel.display = False
            await pilot.pause(0.25)
            drawn.clear()
            app.panel.show([small_view()], "specfit")
            await pilot.pause(0.25)
            assert not drawn
            app.panel.display = True
            await until(lambda: drawn)


class TestTheDraftTree:
    def test_draws_children_below_their_parents_and_pruned_ones_last(self):
        drawn = [(line.branch, line.mark, line.text) for line in tree_lines(small_view())]
        assert drawn == [
            ("", "●", "The"),
            ("├", "●", "sky"),
            ("│├", "○", "is"),
            ("│└", "·", "was"),
            ("└", "○", "sea"),
        ]

    def test_tells_chance_and_new_experts_where_they_were_seen(self):
        lines = list(tree_lines(small_view()))
        assert lines[1].numbers.split() == ["60%", "+4.0"]
        assert lines[3].numbers.split() == ["12%"]

    def test_every_line_fits_whatever_the_tokens_are(self):
        view = small_view(
            "根", " 長い日本語のトークンです", "👩‍👩‍👧", "e\u0301\u0301", "\x1b[2J\n\t"
        )
        for width in (12, 20, 37):
            content = drawing(view, width)
            assert all(cell_len(line) <= width for line in content.plain.split("\n"))
            assert len(content.plain.split("\n")) == 1 + 5 + 1
            assert "\x1b" not in content.plain

    def test_deep_chains_leave_room_for_text(self):
        n = 17
        view = replace(
            small_view(),
            texts=("word",) * n,
            parents=np.arange(-1, n - 1, dtype=np.int32),
            depths=np.arange(n, dtype=np.int32),
            chances=np.ones(n),
            kept=np.ones(n, np.bool_),
            accepted=np.ones(n, np.bool_),
            new_experts=np.full(n, 1.0),
        )
        lines = drawing(view, 36).plain.split("\n")
        assert all("word" in line for line in lines[1:-1])

    def test_draws_only_the_likeliest_of_many_pruned_nodes(self):
        n = 300
        view = replace(
            small_view(),
            texts=("word",) * n,
            parents=np.array([-1] + [0] * (n - 1), np.int32),
            depths=np.minimum(np.arange(n, dtype=np.int32), 1),
            chances=np.concatenate([[1.0], np.linspace(0.9, 0.1, n - 1)]),
            kept=np.arange(n) < 2,
            accepted=np.arange(n) < 1,
            new_experts=np.full(n, np.nan),
        )
        lines = list(tree_lines(view))
        assert [line.mark for line in lines] == ["●", "○", *"·" * 8]
        assert "·298 pruned" in drawing(view, 36).plain

    def test_blank_tokens_are_seen(self):
        assert visible("  ") == "␣␣"
        assert visible("\n") == "↵"
        assert visible(" a\tb") == "a⇥b"
        assert fitted("日本語", 4) == "日 …"


class TestPlots:
    def test_bars_are_as_high_as_their_share(self):
        top, bottom = bars_of(np.array([1.0, 0.5, 0.0, 2.0]), 2)
        assert top == "⡇⢸"  # full, empty; empty, full
        assert bottom == "⣿⣸"  # full, full; a dot, full

    async def test_predictions_and_measurements_have_one_scale(self):
        views = [replace(small_view(), report=cycle_report(ms=10.0, predicted=40.0))] * 70
        early = CyclePlot()
        early.add(views[:5])
        assert early._title() == "Cycle 10 ms"
        async with stage((120, 40)) as (app, pilot):
            app.panel.show(views, "specfit")
            await settled(pilot)
            took, pred = (
                next(line for line in lines_of(app) if label in line) for label in ("took", "pred.")
            )
            assert took.count("⣿") == 0
            assert pred.count("⣿") == 30  # 60 cycles, two a cell
            assert "predicted 40 +300%" in texts(app)

    async def test_acceptance_is_counted_by_depth(self):
        assert depth_of(small_view()) == 2
        hit = replace(small_view(), report=cycle_report(4, 2))
        async with stage((120, 40)) as (app, pilot):
            app.panel.show([small_view(), hit, small_view(), small_view()], "specfit")
            await settled(pilot)
            first, second = str(app.query_one(AcceptanceBars).render()).split("\n")
            assert first.split()[0] == "1"
            assert "100% of 4" in first
            assert " 25% of 4" in second
            assert second.count("█") < first.count("█")

    def test_a_bar_never_overflows(self):
        assert bar_of(1.7, 4) == "████"
        assert bar_of(-1.0, 4) == "░░░░"

    async def test_the_strip_has_every_layer_and_tells_the_range(self):
        async with stage((120, 40)) as (app, pilot):
            layers = np.arange(48) % 9 + 8
            app.panel.show([replace(small_view(), layers=layers)], "specfit")
            await settled(pilot)
            strip = app.query_one(ExpertStrip)
            assert "8-16, mean" in str(strip.border_title)
            assert set(str(strip.render())) >= set("▁▄█")
            assert len(str(strip.render())) <= strip.size.width

    async def test_dense_models_have_no_strip_to_show(self):
        async with stage((120, 40)) as (app, pilot):
            dense = replace(small_view(), layers=np.zeros(4, np.int64))
            app.panel.show([dense], "specfit")
            await settled(pilot)
            assert "No experts observed yet." in texts(app)


class TestMeters:
    async def test_show_what_a_thread_has_measured_and_the_context(self):
        memory = [
            Memory("RAM", 5 * GIB, 16 * GIB, 2 * GIB),
            Memory("VRAM", 6 * GIB, 8 * GIB),
        ]
        async with stage((120, 40)) as (app, pilot):
            app.panel.meters.sample = lambda: memory
            app.panel.meters._look()
            app.panel.meters.show_context(60, 4096)
            for _ in range(1000):  # the meters also look by themselves, and only the latest counts
                await pilot.pause(0.01)
                if "VRAM" in texts(app):
                    break
            await settled(pilot)
            screen = texts(app)
            assert "5.0/16 GiB, SpecFit 2.0" in screen
            assert "VRAM ██████░░ 6.0/8 GiB" in screen
            assert "60 of 4096 tokens" in screen

    def test_gpus_are_named_apart(self, monkeypatch):
        gpu = DeviceMemory("CUDA0", 6 * GIB, 8 * GIB)
        for gpus, names in (([], []), ([gpu], ["VRAM"]), ([gpu, gpu], ["VR0", "VR1"])):
            monkeypatch.setattr("specfit.backend.devices.gpu_memory", lambda gpus=gpus: gpus)
            assert [memory.name for memory in all_memory()] == ["RAM", *names]

    def test_the_host_tells_its_memory_of_which_ours_is_a_part(self):
        (ram,) = host_memory()
        assert ram.ours is not None
        assert 0 < ram.ours <= ram.used < ram.total


@pytest.mark.parametrize("size", [(120, 40), (80, 40)])
async def test_hits_of_the_cache_of_experts_stand_above_the_experts(size: tuple[int, int]) -> None:
    async with stage(size) as (app, pilot):
        cached = replace(cycle_report(), hits=90, misses=10)
        app.panel.show([replace(small_view(), report=cached)], "specfit")
        await settled(pilot)
        assert any("Experts a layer: mean 14.0, 90% hits" in line for line in lines_of(app))
