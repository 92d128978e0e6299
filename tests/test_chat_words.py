"""What the engine says of its command line, as the chat says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfit.app.chat_words import notice, refusal, too_long, with_home
from specfit.app.keys import KEYS, remapped
from specfit.backend import SpecfitError

QUESTION = {"role": "user", "content": "Why?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def test_a_message_that_is_too_long_says_what_to_do_in_the_chat():
    assert too_long([QUESTION], 5000, 4096, 40960) == (
        "This message takes 5000 tokens, and the context holds 4096. "
        "Shorten it, or leave and go on with specfit-chat --continue -c 8192."
    )
    assert too_long([SYSTEM, QUESTION], 3000, 2048, 0).startswith(
        "This message and the system prompt take 3000 tokens, and the context holds 2048. "
        "Shorten one of them, or leave"
    )


@pytest.mark.parametrize(
    ("tokens", "ctx", "trained"), [(5000, 4096, 4096), (50_000, 4096, 40_960), (3000, 2048, 2048)]
)
def test_no_context_is_proposed_that_the_model_does_not_have(tokens, ctx, trained):
    assert "-c" not in too_long([QUESTION], tokens, ctx, trained)


def test_there_is_room_for_an_answer_in_what_is_proposed():
    for tokens in (1024, 3000, 3100, 4096, 6000):
        proposed = int(too_long([QUESTION], tokens, 1024, 0).rstrip(".").split()[-1])
        assert proposed >= 4 / 3 * tokens


def test_only_the_length_is_said_otherwise(bundled_engine):
    other = SpecfitError("the prompt is empty")
    assert refusal(bundled_engine, [QUESTION], other) is other
    long = [{"role": "user", "content": "word " * 2000}]
    with pytest.raises(SpecfitError) as refused:
        bundled_engine.generate(long)
    told = str(refusal(bundled_engine, long, refused.value))
    assert "raise -c" not in told
    assert "the context holds 1024. Shorten it, or leave" in told


def test_how_to_get_a_head_is_said_by_key_or_command():
    told = "drafting by n-grams alone: no draft head was given (-md)"
    assert notice(told, KEYS).endswith("no draft head was given; F2 chooses one")
    assert notice(told, remapped({"model": []})).endswith("; /model chooses one")


def test_a_file_is_told_with_its_folder_and_home_in_short(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert with_home(Path("sky.md")) == "~/sky.md"
    assert with_home(Path("/sky.md")) == "/sky.md"
