"""Files in messages."""

from __future__ import annotations

import os
import re

import pytest

from specfit.app import attachments
from specfit.app.attachments import (
    attached,
    matching,
    missing,
    sent_as_text,
    split_files,
    text_files,
    with_files,
)
from specfit.app.entry import AppError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "notes.md").write_text("# Notes\n\n```py\nx\n```\n")
    (tmp_path / "my plan.txt").write_text("\ufeffplan\x1b[2J", encoding="utf-8")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("print()\r\n")
    (tmp_path / "Makefile").write_text("all:\n")
    return tmp_path


def test_files_are_found_in_a_sentence_each_once(folder):
    message = 'Compare @notes.md, @"my plan.txt" (@src/main.py) and @./notes.md. And @Makefile?'
    names = [file.name for file in attached(message, folder)]
    assert names == ["notes.md", "my plan.txt", "src/main.py", "Makefile"]


def test_control_characters_of_files_are_shown(folder):
    [plan] = attached('@"my plan.txt"', folder)
    assert plan.text == "plan␛[2J"
    [main] = attached("@src/main.py", folder)
    assert main.text == "print()\n"
    assert (plan.name, plan.size) == ("my plan.txt", 11)


def test_what_is_no_file_is_left_alone(folder):
    for text in (
        "mail me: ann@example.md",
        "a @property is not a file, nor is @app.route or @ alone, nor @@notes.md",
        "in code: `@missing.py` and\n```\n@missing.py\n```",
        "an open fence:\n```\n@missing.py",
    ):
        assert attached(text, folder) == []


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("add @angular/core", "@angular/core is no file here: sent as text"),
        ("see @missing.md.", "@missing.md is no file here: sent as text"),
        (
            'see @"a file", @no/where, @x.py and @no/where',
            "@a file, @no/where and @x.py are no files here: sent as text",
        ),
    ],
)
def test_what_looks_like_a_file_and_is_none_is_sent_as_text_and_told(folder, message, told):
    assert attached(f"{message} with @notes.md", folder) == attached("@notes.md", folder)
    assert sent_as_text(missing(message, folder)) == told


def test_what_does_not_look_like_a_file_is_not_told(folder):
    message = "@property, @app.route, ann@example.md, `@angular/core` and @notes.md or @Makefile"
    assert missing(message, folder) == []


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("see @src", "@src is a folder; name a file in it (`@src` is sent as it is written)"),
        ("see @data.csv", "@data.csv is not a text file"),
        ("see @latin.txt", "@latin.txt is not UTF-8 text (byte 3)"),
        ("see @big.log", "@big.log is too large: 1.2 kB, at most 1.0 kB"),
        ("see @pipe", "@pipe is not an ordinary file"),
    ],
)
def test_a_file_that_cannot_go_along_is_one_sentence(folder, message, sentence, monkeypatch):
    monkeypatch.setattr(attachments, "MAX_BYTES", 1000)
    (folder / "data.csv").write_bytes(b"a\0b")
    (folder / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (folder / "big.log").write_text("x" * 1200)
    os.mkfifo(folder / "pipe")
    with pytest.raises(AppError, match=re.escape(sentence)):
        attached(message, folder)


def test_a_file_that_may_not_be_read_is_one_sentence(folder, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied", "notes.md")

    monkeypatch.setattr(type(folder), "open", refuse)
    with pytest.raises(AppError, match=re.escape("@notes.md: Permission denied")):
        attached("@notes.md", folder)


def test_the_model_sees_names_and_fenced_text_and_it_comes_apart_again(folder):
    message = "What is in @notes.md and @src/main.py?"
    content = with_files(message, attached(message, folder))
    assert content.startswith(
        message + "\n\nFile notes.md:\n````\n# Notes\n\n```py\nx\n```\n````\n"
    )
    assert content.endswith("\n\nFile src/main.py:\n```\nprint()\n```")
    assert split_files(content) == (message, ("notes.md", "src/main.py"))
    assert split_files(message) == (message, ())


def test_a_file_that_looks_like_files_comes_apart_too(tmp_path):
    inner = with_files("x", [attachments.Attachment("a", 1, "````\n\nFile b:\n```\n")])
    (tmp_path / "tricky.md").write_text(inner)
    content = with_files("see @tricky.md", attached("see @tricky.md", tmp_path))
    assert split_files(content) == ("see @tricky.md", ("tricky.md",))


def test_the_list_leaves_out_hidden_and_binary_files(folder):
    for name in (".git/config", "node_modules/x.js", "photo.PNG", ".env"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    assert text_files(folder) == ["Makefile", "my plan.txt", "notes.md", "src/main.py"]
    (folder / "blob").write_bytes(b"\0")
    assert attachments.looks_binary(folder / "blob")
    assert not attachments.looks_binary(folder / "notes.md")


def test_what_reading_would_wait_for_is_not_read(folder):
    os.mkfifo(folder / "pipe")
    assert attachments.looks_binary(folder / "pipe")
    (folder / "empty").touch()
    assert not attachments.looks_binary(folder / "empty")


def test_the_list_ends_somewhere(folder, monkeypatch):
    monkeypatch.setattr(attachments, "MAX_LISTED", 2)
    assert len(text_files(folder)) == 2


def test_matching_is_fuzzy_and_ranks_names_first():
    paths = ["app/tui.py", "tests/test_chat_tui.py", "docs/tutorial.md", "t/u/i.txt"]
    assert matching("tui", paths, 9) == [
        "app/tui.py",
        "tests/test_chat_tui.py",
        "t/u/i.txt",
        "docs/tutorial.md",
    ]
    assert matching("apptui", paths, 9) == ["app/tui.py"]
    assert matching("", paths, 2) == paths[:2]
    assert matching("xyz", paths, 9) == []
