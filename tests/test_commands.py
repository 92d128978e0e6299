"""Slash commands, keys, and the clipboard's tools."""

from __future__ import annotations

import asyncio
import re
import sys
from types import SimpleNamespace

import pytest

from specfit.app import clipboard
from specfit.app.commands import COMMANDS, Command, matching, parse
from specfit.app.entry import AppError
from specfit.app.keys import KEYS, bindings, key_name, keys_of, name_of, remapped


def test_a_command_is_read_with_its_argument():
    command = parse("/open  last week \n")
    assert isinstance(command, Command)
    assert (command.spec.name, command.argument) == ("open", "last week")
    assert parse("/system You are\na pirate.").argument == "You are\na pirate."
    assert parse("/NO-think").spec.name == "no_think"


def test_what_other_programs_call_a_command_is_understood():
    for name, meant in (("retry", "regen"), ("clear", "new"), ("exit", "quit"), ("bye", "quit")):
        assert parse(f"/{name}").spec.name == meant


@pytest.mark.parametrize(
    "text", ["Hello", "", "/", "/ new", "/usr/bin is full", "/etc/passwd?", " /new", "1/2", "/2"]
)
def test_what_is_no_command_is_a_message(text):
    assert parse(text) == text


def test_two_slashes_send_a_literal_one():
    assert parse("//new is a command") == "/new is a command"
    assert parse("///") == "//"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("/regne", "there is no command /regne; did you mean /regen?"),
        ("/stat", "did you mean /stats?"),
        ("/xyzzy", "/help shows all commands"),
        ("/new chat about stars", "/new takes nothing behind it"),
        ("/import ", "/import needs something behind it: /import FILE"),
    ],
)
def test_a_wrong_command_is_one_sentence(text, sentence):
    with pytest.raises(AppError, match=re.escape(sentence)) as refused:
        parse(text)
    assert "\n" not in str(refused.value)


def test_nothing_behind_a_command_is_no_matter_of_slashes():
    with pytest.raises(AppError) as refused:
        parse("/params 1")
    assert str(refused.value) == "/params takes nothing behind it"


def test_every_command_can_be_called_and_is_explained():
    assert len({spec.name for spec in COMMANDS}) == len(COMMANDS)
    for spec in COMMANDS:
        assert parse(f"/{spec.name} x" if spec.arguments else f"/{spec.name}").spec is spec
        assert spec.help[0].isupper() and len(spec.usage) <= 20


def test_completion_prefers_what_begins_so():
    assert [spec.name for spec in matching("e")][:2] == ["edit", "export"]
    assert "no_think" in [spec.name for spec in matching("think")]
    assert len(matching("")) == len(COMMANDS)


def test_no_default_key_is_used_twice_and_all_have_help():
    used = [one for key in KEYS for one in key.keys]
    assert len(used) == len(set(used))
    assert all(key.help for key in KEYS)
    assert len({name_of(key) for key in KEYS}) == len(KEYS)
    assert remapped({}) == KEYS


def test_keys_can_be_remapped():
    keys = remapped({"regenerate": "Ctrl+G", "look_up": ["pageup", "ctrl + Alt+Up"], "panel": []})
    assert keys_of("regenerate", keys) == ("ctrl+g",)
    assert keys_of("scroll_conversation(-1)", keys) == ("pageup", "alt+ctrl+up")
    assert keys_of("panel", keys) == ()
    assert {b.action: b.key for b in bindings(keys)}["regenerate"] == "ctrl+g"
    assert "panel" not in {b.action for b in bindings(keys)}


def test_keys_can_change_places():
    keys = remapped({"send": "ctrl+j", "new_line": "enter"})
    assert keys_of("send", keys) == ("ctrl+j",)
    assert "send" not in {b.action for b in bindings(keys)}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"regenrate": "ctrl+g"}, 'there is no action "regenrate"; did you mean "regenerate"?'),
        ({"regenerate": "ctrl+n"}, '"ctrl+n" is for both regenerate and new_chat'),
        ({"regenerate": "hyperspace"}, '"hyperspace" is not a key'),
        ({"regenerate": "ctrl+%"}, '"ctrl+%" is not a key'),
        ({"regenerate": "ctrl+"}, '"ctrl+" is not a key'),
        ({"regenerate": "r"}, '"r" is needed for writing'),
        ({"regenerate": "enter"}, '"enter" is needed for writing'),
        ({"regenerate": [3]}, "write keys as text"),
    ],
)
def test_a_wrong_key_is_one_sentence(changes, sentence):
    with pytest.raises(AppError, match=re.escape(sentence)):
        remapped(changes)


def test_keys_are_written_as_people_do():
    assert [key_name(k) for k in ("ctrl+r", "escape", "alt+up", "f1", "pageup")] == [
        "Ctrl+R",
        "Esc",
        "Alt+Up",
        "F1",
        "PageUp",
    ]


def test_the_clipboards_tool_needs_its_desktop():
    def which(name: str) -> str | None:
        return f"/bin/{name}" if name in ("wl-copy", "xclip") else None

    assert clipboard.system_tool({}, which) is None
    assert clipboard.system_tool({"WAYLAND_DISPLAY": "w"}, which) == ("/bin/wl-copy",)
    assert clipboard.system_tool({"DISPLAY": ":0"}, which)[0] == "/bin/xclip"
    assert clipboard.system_tool({}, lambda name: f"/{name}") == ("/pbcopy",)


async def test_text_reaches_terminal_and_tool(monkeypatch, tmp_path):
    target = tmp_path / "clip"
    write = f"import sys; open({str(target)!r}, 'wb').write(sys.stdin.buffer.read())"
    monkeypatch.setattr(clipboard, "system_tool", lambda _: (sys.executable, "-c", write))
    copied: list[str] = []
    await clipboard.copy(SimpleNamespace(copy_to_clipboard=copied.append), "héllo\n")
    assert copied == ["héllo\n"]
    assert target.read_text() == "héllo\n"


async def test_a_tool_that_fails_or_hangs_does_no_harm(monkeypatch):
    monkeypatch.setattr(clipboard, "PATIENCE_S", 0.1)
    terminal = SimpleNamespace(copy_to_clipboard=lambda _: None)
    hanging = (sys.executable, "-c", "import time; time.sleep(60)")
    for command in (("/no/such/tool",), hanging):
        monkeypatch.setattr(clipboard, "system_tool", lambda _, command=command: command)
        await asyncio.wait_for(clipboard.copy(terminal, "x"), 5)
