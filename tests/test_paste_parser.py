"""What the terminal sends, as events."""

from __future__ import annotations

import pytest
from textual import events

from specfit.app.paste_parser import PasteParser, with_whole_pastes

HOSTILE = "A\x1b]0;pwned\x07B\x1b[31m\x1bF\x00\x9bG\u202e\r\x1b[O\x1b\x1b[200~\r\nend\x1b"
SAFE = "A␛]0;pwned␇B␛[31m␛F␀<9B>G<202E>\r␛[O␛␛[200~\r\nend␛"


def read(*pieces: str) -> list[object]:
    """Keys by name, pastes by text."""
    parser = PasteParser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return [
        event.key if isinstance(event, events.Key) else (event.text,)
        for event in found
        if isinstance(event, events.Key | events.Paste)
    ]


def test_a_paste_keeps_its_order_and_shows_control_characters():
    assert read(f"a\x1b[200~{HOSTILE}\x1b[201~b\x1b[D") == ["a", (SAFE,), "b", "left"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_it_does_so_wherever_reading_cuts_it(size):
    sent = f"a\x1b[200~{HOSTILE}\x1b[201~b\x1b[200~c\x1b[201~\x1b[C"
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    assert read(*pieces) == ["a", (SAFE,), "b", ("c",), "right"]


def test_keys_are_read_as_before():
    assert read("x", "\x1b[", "A", "\x01", "\x1b[13;2u") == ["x", "up", "ctrl+a", "shift+enter"]


def test_alt_with_a_letter_is_one_key_whatever_follows():
    assert read("\x1btab\x1b\x1bc\x1bd") == ["alt+t", "a", "b", "escape", "alt+c", "alt+d"]
    assert read("\x1b\rx", "\x1bbx\x1b\x7f") == ["alt+enter", "x", "ctrl+left", "x", "ctrl+w"]
    assert read("\x1b[1;3Dx", "\x1bOPx") == ["alt+left", "x", "f1", "x"]


def test_the_terminal_s_driver_reads_with_it(monkeypatch):
    linux_driver = pytest.importorskip("textual.drivers.linux_driver")
    monkeypatch.setattr(linux_driver, "XTermParser", linux_driver.XTermParser)
    used = []

    class Reading(linux_driver.LinuxDriver):
        def __init__(self) -> None:
            pass

        def run_input_thread(self) -> None:
            used.append(linux_driver.XTermParser)

    with_whole_pastes(Reading)().run_input_thread()
    assert used == [PasteParser]
