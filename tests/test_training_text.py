"""The words of the training recipe: scripts for the teacher, cleaning, arithmetic, the judge."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from specfit.app.prompts import Prompt, read_prompts
from specfit.models import bundled_model
from specfit.models.training import arithmetic, cleaning, judge, scripts, smalltalk, topics

CHAT = "What is a pond? Answer in two or three short sentences."
ANSWER = "A pond is a small body of still water. Frogs, fish, and many insects live in it."


def chatml(*turns: str, ended: bool = True) -> str:
    """A teacher's document behind the prefix: turns of user and assistant by turns."""
    roles = ("assistant", "user")
    text = turns[0]
    for at, turn in enumerate(turns[1:]):
        text += f"<|im_end|>\n<|im_start|>{roles[at % 2]}\n{turn}"
    return text + "<|im_end|>" * ended


def cleaned(*turns: str, ended: bool = True) -> list[str] | None:
    """Contents of what is left of them, without a system message of ours."""
    found = cleaning.clean(chatml(*turns, ended=ended), np.random.default_rng(0))
    if found is None:
        return None
    return [m["content"] for m in found["messages"] if m["role"] != "system"]


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_scripts_are_what_the_decoder_follows() -> None:
    found = scripts.teacher_scripts(letters, 400, seed=3)
    assert found.tokens.dtype == np.int32
    assert len(found.tokens) == len(found.kinds) == 400
    assert "".join(map(chr, found.prefix)).endswith("<|im_start|>user\n")
    over = found.tokens == scripts.END
    assert not over[:, 0].any()
    assert (np.diff(over.astype(int), axis=1) >= 0).all()
    spoken = found.tokens[(found.tokens < 0) & ~over]
    assert set((-1 - spoken).tolist()) == set(range(len(found.voices)))


def test_scripts_repeat_by_seed_and_mix_the_kinds_as_told() -> None:
    first, again = (scripts.teacher_scripts(letters, 3000, seed=5) for _ in range(2))
    assert np.array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, scripts.teacher_scripts(letters, 3000, 6).tokens)
    counts = Counter(first.kinds)
    for kind, share in scripts.SHARES.items():
        assert counts[kind] / 3000 == pytest.approx(share / 100, abs=0.03)


def test_a_script_becomes_a_conversation_without_what_only_the_teacher_saw() -> None:
    found = scripts.teacher_scripts(letters, 600, seed=1)
    said = {0: ANSWER, 1: " hold so much water?", 2: ANSWER, 3: " has a pond.", 4: "It has a pond."}
    kept: Counter[str] = Counter()
    for script, kind in zip(found.tokens.tolist(), found.kinds, strict=True):
        parts = [
            chr(e) if e >= 0 else said[-1 - e] + "<|im_end|>" for e in script if e != scripts.END
        ]
        conversation = cleaning.clean("".join(parts), np.random.default_rng(0))
        if conversation is None:
            continue
        kept[kind] += 1
        text = json.dumps(conversation)
        assert "<|" not in text
        assert "Answer in two or three" not in text
        assert "Riverton has a new garden" not in text
        roles = [m["role"] for m in conversation["messages"] if m["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
    assert kept["greeting"] > 0


def test_questions_are_grammatical() -> None:
    rng = random.Random(0)
    asked = [topics.question(rng) for _ in range(20_000)]
    assert len(set(asked)) > 9_000
    for question in asked:
        assert re.search(r"[.?!]$", question)
        assert question[0].isupper()
        assert not re.search(r"[{}|]|\b(\w+) \1\b|  ", question)
        assert not re.search(r"\ba [aeio]\w*|\ban (?!h)[^aeiou ]", question), question
    assert "What are sheep?" in asked
    assert topics.plural_of("library") == "libraries"
    assert topics.with_article("university") == "a university"
    assert topics.with_article("hour") == "an hour"


def test_topics_are_many_and_each_is_there_once() -> None:
    listed = topics.entries()
    assert sum(map(len, listed.values())) > 1000
    assert all(len(set(names)) == len(names) for names in listed.values())
    assert set(topics.SHARES) == set(topics.TEMPLATES)


def test_a_good_answer_stays_as_it_is() -> None:
    assert cleaned(CHAT, ANSWER) == ["What is a pond?", ANSWER]


def test_an_answer_that_was_cut_keeps_its_whole_sentences() -> None:
    assert cleaned(CHAT, f"{ANSWER} In winter, the") == ["What is a pond?", ANSWER]
    assert cleaned(CHAT, f"{ANSWER} In winter, the", ended=False) == ["What is a pond?", ANSWER]
    assert cleaned(CHAT, "A pond is a small body of") is None


def test_an_answer_ends_before_it_says_what_it_said() -> None:
    again = " In it live many insects, frogs, and fish. Ponds freeze in winter."
    assert cleaned(CHAT, ANSWER + again) == ["What is a pond?", ANSWER]
    assert cleaned(CHAT, ANSWER + " It is a gift, it is a gift, it is a gift.") == [
        "What is a pond?",
        ANSWER,
    ]


def test_a_subject_is_known_in_its_forms() -> None:
    pairs = (
        "walk walking walked walks",
        "library libraries",
        "run running",
        "dance dancing danced",
    )
    for forms in pairs:
        assert len(cleaning.subject_stems(forms)) == 1, forms


def test_a_question_is_one_line_that_ends() -> None:
    assert cleaned("What is a pond?\nA pond is wet.", ANSWER) is None
    assert cleaned("What is a pond and when", ANSWER) is None
    assert cleaned("What is a pond? Answer in three sentences.", ANSWER) == [
        "What is a pond?",
        ANSWER,
    ]


def test_an_answer_has_at_most_eighty_words() -> None:
    names = [f"{chr(97 + a)}{chr(97 + b)}gon" for a in range(12) for b in range(12)]
    long = "A pond is wet. " + " ".join(
        f"It is {names[i]}, {names[i + 1]}, or {names[i + 2]}." for i in range(0, 120, 3)
    )
    found = cleaned(CHAT, long)
    assert found is not None
    assert 70 < len(found[1].split()) <= cleaning.LONGEST_ANSWER


@pytest.mark.parametrize(
    "answer",
    [
        "I am SmolLM, and a pond is a small body of water.",
        "As an AI language model, I like every pond.",
        "A pond is at https://pond.example, so look there.",
        "def pond(): is how a pond begins in code.",
        "The area of a pond is $\\frac{a}{b}$ or so.",
        "Ein Teich, ein Weiher, ein Fluß für größere Füße: pond.",
        "A violin has four strings and is made of wood.",
        "Two men were killed at the pond on Monday.",
    ],
)
def test_what_must_not_be_learned_is_dropped(answer: str) -> None:
    assert cleaned(CHAT, answer) is None


def test_a_bad_second_turn_leaves_the_first() -> None:
    assert cleaned(CHAT, ANSWER, "Why?", "SmolLM says so, that is why.") == [
        "What is a pond?",
        ANSWER,
    ]
    follow_up = "Because rain collects in low places of the ground."
    assert cleaned(CHAT, ANSWER, "Why?", follow_up) == [
        "What is a pond?",
        ANSWER,
        "Why?",
        follow_up,
    ]


def test_a_second_answer_that_says_the_first_again_is_dropped() -> None:
    again = "A pond is a small body of still water. Many insects, frogs, and fish live in it."
    assert cleaned(CHAT, ANSWER, "Tell me more.", again) == ["What is a pond?", ANSWER]


def test_a_first_question_about_what_was_not_said_is_dropped() -> None:
    assert cleaned("Which of these ponds is deep?", "The first pond is deep and cold.") is None


def test_a_summary_is_asked_for_in_words_of_ours() -> None:
    asked, shot, shot_summary = scripts.SUMMARY_SHOT
    article = (
        "The town of Ashford has a new pond. Volunteers dug it in three weeks behind the library. "
        "Ducks have already moved in, and children bring them oats every afternoon. "
        "A bench will follow."
    )
    summary = "Volunteers dug a new pond behind the library of Ashford."
    request = scripts.SUMMARY_REQUEST
    wordings = set()
    for seed in range(60):
        found = cleaning.clean(
            chatml(
                asked, shot, request, shot_summary, "Write about ponds.", article, request, summary
            ),
            np.random.default_rng(seed),
        )
        assert found is not None
        assert found["kind"] == "summarise"
        question, answer = (m["content"] for m in found["messages"][-2:])
        assert answer == summary
        assert article in question
        assert request not in question
        wordings.add(question)
    assert len(wordings) > 8
    off = "Violins from Vienna won a prize for their sound."
    turns = (asked, shot, request, shot_summary, "Write about ponds.", article, request, off)
    assert (cleaned(*turns) or [])[-1:] == ["The town of Ashford has a new pond."]


def test_one_conversation_in_eight_has_a_system_message() -> None:
    found = [cleaning.clean(chatml(CHAT, ANSWER), np.random.default_rng(s)) for s in range(800)]
    shown = sum(c is not None and c["messages"][0]["role"] == "system" for c in found)
    assert shown / 800 == pytest.approx(cleaning.SYSTEM_SHARE, abs=0.04)


def test_smalltalk_is_answered_in_our_words() -> None:
    said, answer = smalltalk.exchange(random.Random(0))
    assert cleaned(said, answer) == [said, answer]
    for answers in smalltalk.ANSWERS.values():
        assert not any(re.search("smol|hugging", one, re.IGNORECASE) for one in answers)


def test_malformed_text_is_no_conversation() -> None:
    for text in (
        "",
        "Hi",
        "<|im_start|>",
        "Hi<|im_end|>\n<|im_start|>user\nHi<|im_end|>",
        "\x00<|",
    ):
        assert cleaning.clean(text, np.random.default_rng(0)) is None


def test_repetition_is_told_from_variety() -> None:
    assert cleaning.repetitive("the cat sat on the mat and " * 8)
    assert cleaning.repetitive("I like it a lot. I like it a lot. I like it a lot.")
    assert not cleaning.repetitive(ANSWER)
    assert not cleaning.repetitive("Yes. Yes. Yes.")


def test_a_model_learns_only_from_its_good_answers() -> None:
    assert cleaning.good_answer("What is a pond?", ANSWER, True)
    assert not cleaning.good_answer("What is a pond?", ANSWER, False)
    assert not cleaning.good_answer("What is a violin?", ANSWER, True)
    assert not cleaning.good_answer("What is a pond?", ANSWER + " " + ANSWER, True)
    assert not cleaning.good_answer("What is a pond?", "A pond is a pond, and a pond is", True)


def test_arithmetic_is_never_wrong() -> None:
    n_sums = 0
    for conversation in arithmetic.problems(4000, seed=2):
        for message in conversation["messages"]:
            if message["role"] == "assistant":
                steps = re.findall(r"\$?(\d+) ([-+x/]) \$?(\d+) = \$?(\d+)", message["content"])
                assert steps
                for a, operator, b, c in steps:
                    left = {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}
                    assert left.get(operator) == int(c) or int(a) == int(b) * int(c)
                    n_sums += 1
                assert judge.last_number(message["content"]) == steps[-1][3]
    assert n_sums > 4000


@pytest.mark.parametrize("template", arithmetic.TEMPLATES)
def test_an_answer_follows_from_the_numbers_of_its_problem(template: object) -> None:
    assert callable(template)
    rng = random.Random(0)
    asked = {template(rng)[0] for _ in range(200)}
    assert len(asked) > 10
    for question, solution in (template(rng) for _ in range(200)):
        first = re.search(r"\$?(\d+) [-+x/] \$?(\d+)", solution)
        assert first
        known = [*re.findall(r"\d+", question), "2", "4", "6", "8"]
        assert set(first.groups()) <= set(known), (question, solution)


def test_arithmetic_repeats_by_seed() -> None:
    assert list(arithmetic.problems(50, 1)) == list(arithmetic.problems(50, 1))
    assert list(arithmetic.problems(50, 1)) != list(arithmetic.problems(50, 2))


def test_the_shipped_questions_are_prompts_of_our_commands() -> None:
    prompts = read_prompts(judge.QUESTIONS)
    assert all(isinstance(prompt, Prompt) for prompt in prompts)
    questions = judge.read_questions(judge.QUESTIONS)
    assert Counter(q["kind"] for q in questions) == {"chat": 40, "summarise": 10, "arithmetic": 20}
    assert len({q["id"] for q in questions}) == 70
    assert all(("answer" in q) == (q["kind"] == "arithmetic") for q in questions)


def test_no_shipped_chat_question_can_come_from_a_template() -> None:
    rng = random.Random(1)
    made = {topics.question(rng) for _ in range(200_000)}
    asked = {q["prompt"] for q in judge.read_questions(judge.QUESTIONS)}
    assert asked.isdisjoint(made), asked & made


def test_answers_are_scored_by_kind_and_decoding() -> None:
    sum_ = {"id": "a", "kind": "arithmetic", "prompt": "What is 2 + 3?", "answer": 5}
    chat = {"id": "b", "kind": "chat", "prompt": "What is a pond?"}
    found = judge.scores(
        [
            judge.answer(sum_, "greedy", "2 + 3 = 5. The answer is 5.", 12, True),
            judge.answer(sum_, "greedy", "2 + 3 = 6. The answer is 6.", 10, True),
            judge.answer(chat, "greedy", "I like it a lot. " * 20, 200, False),
        ]
    )
    assert found[0] == judge.Score("arithmetic", "greedy", 2, 11.0, 0, 0, 1)
    assert found[1] == judge.Score("chat", "greedy", 1, 200.0, 1, 1, None)


def test_the_judge_asks_a_model(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        '{"id": "a", "kind": "arithmetic", "prompt": "What is 2 + 3?", "answer": 5}\n'
    )
    out = tmp_path / "out.json"
    done = CliRunner().invoke(
        judge.main, [str(bundled_model()), "--questions", str(questions), "--json", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert "| arithmetic | greedy | 1 |" in done.output
    kept = json.loads(out.read_text())
    assert [answer["decoding"] for answer in kept["answers"]] == list(judge.DECODINGS)
    assert len(kept["scores"]) == 2
