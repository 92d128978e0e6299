"""The open conversation: branches, what is taken back, and what the engine gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storecases import answer, kept, said, talk, turn

from specfit.app.session import Session
from specfit.app.store import (
    Message,
    StoreError,
)
from specfit.app.store.turns import model_messages, title_of

# Turns


def test_a_question_is_kept_before_its_answer_begins(session):
    session.ask("Hi")
    assert kept(session) == ["Hi"]


def test_an_answer_is_kept_as_it_grows_but_not_for_every_word(session, store, clock, monkeypatch):
    written = []
    monkeypatch.setattr(store, "grow", lambda _row, content: written.append(content))
    session.ask("Hi")
    session.begin_answer()
    for _ in range(10):
        session.grow("word ")
    assert written == []
    clock.now += 0.5
    session.grow("late")
    assert written == ["word " * 10 + "late"]
    session.grow("x" * 199)
    assert len(written) == 1
    session.grow("y")
    assert len(written) == 2


def test_nothing_is_kept_of_a_conversation_without_a_question(session, store):
    session.new("Be kind.")
    session.rename("Empty")
    session.new()
    assert session.is_saved
    assert store.conversations() == []


def test_another_answer_and_another_question_are_branches(session):
    question, first = turn(session, "Hi", "One")
    assert session.regenerate()
    assert said(session) == ["Hi"]
    second = answer(session, "Two")
    assert session.branch(second.id) == (2, 2)
    edited = session.edit(question.id, "Hello")
    answer(session, "Three")
    assert session.branch(edited.id) == (2, 2)
    assert said(session) == ["Hello", "Three"]
    assert session.switch_branch(edited.id, -1)
    assert said(session) == kept(session) == ["Hi", "Two"]
    assert not session.switch_branch(question.id, -1)
    assert session.switch_branch(second.id, -1)
    assert said(session) == kept(session) == ["Hi", "One"]
    assert session.path[-1] == first


def test_a_branch_comes_back_as_it_was_left(session):
    question, first = turn(session, "Hi", "One")
    session.regenerate()
    answer(session, "Two")
    session.switch_branch(first.id, 0)
    edited = session.edit(question.id, "Hello")
    session.switch_branch(edited.id, -1)
    assert said(session) == ["Hi", "One"]


def test_the_same_answer_again_is_no_branch(session, store):
    _, first = turn(session, "Hi", "One")
    session.regenerate()
    again = answer(session, "One")
    assert again.id == first.id
    assert session.branch(first.id) == (1, 1)
    assert kept(session) == ["Hi", "One"]
    assert len(store.messages(session.conversation)) == 2


def test_an_answer_in_the_middle_can_be_given_anew(session):
    _, first = turn(session, "Hi", "One")
    turn(session, "And?", "Two")
    session.regenerate(first.id)
    answer(session, "Other")
    assert said(session) == ["Hi", "Other"]


def test_there_is_nothing_to_regenerate_before_a_question(session):
    assert not session.regenerate()
    session.set_system("Be kind.")
    assert not session.regenerate()


def test_an_answer_without_text_is_taken_back_with_its_question(session, store):
    session.ask("Hi")
    session.begin_answer()
    assert session.take_back() == "Hi"
    assert (said(session), session.title, store.conversations()) == ([], "", [])
    turn(session, "Hello", "One")
    session.ask("And?")
    session.begin_answer()
    assert session.take_back() == "And?"
    assert said(session) == kept(session) == ["Hello", "One"]
    assert session.title == "Hello"


def test_a_question_can_stay_when_its_answer_is_taken_back(session):
    question, _ = turn(session, "Hi", "One")
    session.edit(question.id, "Hello")
    session.begin_answer()
    assert session.take_back(question_too=False) == "Hello"
    assert said(session) == kept(session) == ["Hello"]
    assert session.regenerate()
    session.begin_answer()
    assert session.take_back(question_too=False) is None
    assert said(session) == kept(session) == ["Hello"]


def test_taking_back_an_answer_anew_brings_the_old_one_back(session):
    turn(session, "Hi", "One")
    session.regenerate()
    session.begin_answer()
    assert session.take_back() is None
    assert said(session) == kept(session) == ["Hi", "One"]


def test_taking_back_an_edit_brings_the_old_branch_back(session):
    question, _ = turn(session, "Hi", "One")
    session.edit(question.id, "Hello")
    session.begin_answer()
    assert session.take_back() == "Hello"
    assert said(session) == kept(session) == ["Hi", "One"]
    assert session.branch(question.id) == (1, 1)
    assert len(session.store.messages(session.conversation)) == 2


def test_only_a_question_that_was_just_asked_is_taken_back(session):
    session.ask("Hi")
    session.ask("And?")
    for taken in ("And?", None, None):
        session.begin_answer()
        assert session.take_back() == taken
        assert said(session) == kept(session) == ["Hi"]


def test_a_question_of_another_branch_is_not_taken_back(session):
    first = session.ask("Hi")
    edited = session.edit(first.id, "Hello")
    session.switch_branch(edited.id, -1)
    session.begin_answer()
    assert session.take_back() is None
    assert said(session) == ["Hi"]
    assert session.branch(first.id) == (1, 2)


def test_an_answer_that_nobody_ends_is_stopped_by_what_comes_next(session):
    session.ask("Hi")
    session.begin_answer()
    session.grow("One")
    session.ask("And?")
    assert [message.status for message in session.path] == ["complete", "stopped", "complete"]
    assert not session.is_answering


# Conversations


def test_a_hit_is_opened_in_its_own_branch(session, store):
    turn(session, "Hi", "needle")
    session.regenerate()
    answer(session, "Two")
    (hit,) = store.search("needle")
    session.open(hit.conversation, hit.message)
    assert said(session) == ["Hi", "needle"]


def test_an_answer_that_another_window_is_writing_is_left_out(session, store):
    session.ask("Hi")
    session.begin_answer()
    session.grow("One")
    other = Session(store)
    other.open(session.conversation)
    turn(other, "Well?", "Two")
    assert said(other) == ["Hi", "Well?", "Two"]
    finished = session.finish()
    assert said(session) == ["Hi", "One"]
    session.open(session.conversation)
    assert session.branch(session.path[1].id)[1] == 2
    assert finished.content in [one.content for one in store.messages(session.conversation)]
    assert other.model_messages()[0] == [
        {"role": "user", "content": "Hi\n\nWell?"},
        {"role": "assistant", "content": "Two"},
    ]


def test_a_conversation_that_another_window_deletes_is_kept_anew(session, store):
    turn(session, "Hi", "One")
    store.delete(session.conversation)
    turn(session, "And?", "Two")
    assert said(session) == kept(session) == ["Hi", "One", "And?", "Two"]
    assert "deleted" in (session.take_trouble() or "")
    assert session.take_trouble() is None


def test_what_another_window_said_below_a_question_is_not_taken_back_with_it(session, store):
    session.ask("Hi")
    session.begin_answer()
    other = Session(store)
    other.open(session.conversation)
    turn(other, "Well?", "Two")
    assert session.take_back() == "Hi"
    assert kept(other) == said(other) == ["Hi", "Well?", "Two"]
    turn(session, "Hi", "One")
    assert kept(session) == ["Hi", "One"]
    assert other.take_trouble() is None


def test_what_cannot_be_opened_leaves_everything_as_it_is(session):
    turn(session, "Hi", "One")
    with pytest.raises(StoreError):
        session.open(999)
    assert said(session) == ["Hi", "One"]
    with pytest.raises(StoreError):
        Session(None).open(1)


def test_title_and_values_are_kept(session, store):
    turn(session, "Hi", "One")
    session.rename("A talk")
    session.keep_values({"temp": 0.5})
    other = Session(store)
    other.open(session.conversation)
    assert (other.title, other.values) == ("A talk", {"temp": 0.5})


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("\n  Why is\tthe sky blue?  \nAnswer.", "Why is the sky blue?"),
        ("", ""),
        ("word " * 30, "word " * 11 + "word…"),
        ("日" * 80, "日" * 59 + "…"),
        ("x" * 58 + "e\u0301" * 9, "x" * 58 + "…"),
        ("x" * 57 + "👩\u200d👩\u200d👧" + "x" * 9, "x" * 57 + "…"),
        ("x" * 10**6, "x" * 59 + "…"),
    ],
)
def test_the_first_line_is_the_title(text, title):
    assert title_of(text) == title


# The system prompt


def test_the_last_system_prompt_counts_and_comes_first(session):
    session.new("Be kind.")
    turn(session, "Hi", "One")
    session.set_system("Be brief.")
    session.set_system("Be rude.")
    session.set_system("Be rude.")
    turn(session, "And?", "Two")
    assert said(session) == ["Be kind.", "Hi", "One", "Be rude.", "And?", "Two"]
    messages, _ = session.model_messages()
    assert [one["content"] for one in messages] == ["Be rude.", "Hi", "One", "And?", "Two"]
    session.set_system("")
    assert session.model_messages()[0][0] == {"role": "user", "content": "Hi"}


def test_a_system_prompt_that_is_set_back_leaves_no_trace(session):
    session.set_system("Be kind.")
    session.set_system("")
    assert said(session) == []
    turn(session, "Hi", "One")
    session.set_system("Be kind.")
    session.set_system("")
    assert said(session) == kept(session) == ["Hi", "One"]


# What the engine gets


def words(messages: list[dict[str, str]]) -> int:
    return sum(len(message["content"].split()) for message in messages)


def test_thinking_is_stripped_and_what_comes_to_nothing_is_left_out(session):
    turn(session, "Hi", "<think>hm</think>One")
    turn(session, "And?", "<think>hm")
    session.ask("Well?")
    session.begin_answer()
    session.grow("growing")
    messages, _ = session.model_messages(lambda text: text.partition("</think>")[2])
    assert [one["content"] for one in messages] == ["Hi", "One", "And?\n\nWell?"]


@given(st.integers(1, 12), st.integers(0, 40), st.booleans())
def test_the_fewest_oldest_turns_are_left_out(turns: int, room: int, answered: bool) -> None:
    path = [Message(0, None, "system", "be very kind")]
    for number in range(turns):
        path.append(Message(0, None, "user", f"question {number}"))
        path.append(Message(0, None, "assistant", f"the answer {number}"))
    if not answered:
        path.pop()
    whole, _ = model_messages(path, str, None, 0)
    messages, dropped = model_messages(path, str, words, room)
    rest = whole[1 + 2 * dropped :]
    assert (messages[0], messages[-len(rest) :]) == (whole[0], rest)
    assert dropped == turns - 1 or len(messages) == 1 + len(rest)
    assert messages[1]["role"] == "user"
    assert any(one["content"] == f"question {turns - 1}" for one in messages)
    assert words(messages) <= room or dropped == turns - 1
    if dropped:
        assert words([whole[0], *whole[1 + 2 * (dropped - 1) :]]) > room


def path_of(*contents: str) -> list[Message]:
    """Questions and answers by turns."""
    roles = ("user", "assistant")
    return [Message(0, None, roles[i % 2], text) for i, text in enumerate(contents)]


@given(st.integers(0, 110), st.sampled_from(["", " "]))
def test_of_an_answer_that_is_too_long_the_end_is_gone_on_from(room: int, space: str) -> None:
    def parts(messages: list[dict[str, str]]) -> int:
        return sum(len(message["content"]) // 20 + 1 for message in messages)

    story = space.join(f"word{number:02}" for number in range(100))
    path = path_of("Hi", "Hello", "Tell me a story", story, "Go on")
    messages, dropped = model_messages(path, str, parts, room)
    contents = [message["content"] for message in messages]
    if len(contents) == 1:  # no room for any of it
        assert (contents, dropped) == (["Go on"], 2)
        assert room < 4
    elif dropped == 2:
        question, end, last = contents
        assert (question, last) == ("Tell me a story", "Go on")
        assert story.endswith(end.removeprefix("…"))
        assert room - 1 <= parts(messages) <= room
    else:
        assert contents[-2:] == [story, "Go on"]


def test_a_turn_before_that_is_too_long_itself_or_has_no_answer_is_left_out() -> None:
    pasted = path_of("word " * 100, "Yes, I have read it all", "So?")
    messages, dropped = model_messages(pasted, str, words, 20)
    assert ([one["content"] for one in messages], dropped) == (["So?"], 1)
    begun = path_of("word " * 10, "", "Well then?")
    messages, dropped = model_messages(begun, str, words, 5)
    assert ([one["content"] for one in messages], dropped) == (["Well then?"], 1)


def test_what_another_window_said_below_the_same_message_is_a_version_here(store, clock):
    tea = talk(store, "What is tea?", "A drink.")
    here, there = Session(store, clock=clock), Session(store, clock=clock)
    here.open(tea)
    there.open(tea)
    turn(there, "And coffee?", "Another.")
    there.ask("And milk?")
    there.begin_answer()  # grows on
    question, _ = turn(here, "And wine?", "Red.")
    assert here.parted
    assert here.branch(question.id) == (2, 2)
    assert here.switch_branch(question.id, -1)
    assert said(here)[2:] == ["And coffee?", "Another.", "And milk?"]
    here.switch_branch(here.path[2].id, 1)
    turn(here, "And water?", "Clear.")
    assert not here.parted
    assert said(here) == kept(here)
    assert len(store.messages(tea)) == 2 + 4 + 4


def test_the_same_question_in_two_windows_is_one(store, clock):
    tea = talk(store, "What is tea?", "A drink.")
    here, there = Session(store, clock=clock), Session(store, clock=clock)
    here.open(tea)
    there.open(tea)
    turn(there, "And coffee?", "Another.")
    _, answered = turn(here, "And coffee?", "A bean.")
    assert not here.parted
    assert here.branch(answered.id) == (2, 2)
    assert len(store.messages(tea)) == 5
