"""What the teacher is asked: scripts that its decoder follows, on subjects of our own choice.

A small teacher answers best where it was tuned: behind its own system message. Left to itself it
writes essays that loop. Three examples in front, and a request behind every question, make it
answer in two or three plain sentences, on the subject. The text that is kept has neither.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import smalltalk
from .recipe import Voice
from .topics import COUNTABLE, entries, question, story_request, topics, with_article

END = -100
END_OF_TURN = "<|im_end|>"

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
SHOTS = (
    (
        "What is a clock?",
        "A clock is a device used to measure and show the time. It has hands or numbers that tell "
        "us the hour and the minute. Clocks help people plan their day, arrive on time, and "
        "organize their work.",
    ),
    (
        "How can I make new friends?",
        "To make new friends, join a club or class that interests you and be open to meeting "
        "people. Ask them about their day and listen carefully. Be patient, because good "
        "friendships take time.",
    ),
    (
        "Give me two tips for saving water.",
        "1. Turn off the tap while you brush your teeth, because a lot of water is lost in a "
        "minute.\n2. Take short showers instead of long baths.",
    ),
)
# Behind questions of ours; the text that is kept does not have it.
SUFFIX = " Answer in two or three short sentences."

# Asked so plainly, and behind an example, the teacher tells what it wrote instead of praising it.
SUMMARY_REQUEST = "Say this in one sentence."
SUMMARY_SHOT = (
    "Write a short news article about a school garden.",
    "The school in Riverton has a new garden. Last week, forty students planted carrots, beans, "
    "and sunflowers behind the gym. They worked for three days, and many parents came to help. The "
    "vegetables will be used in the school kitchen. Next month, visitors can see the garden.",
    "Students in Riverton planted a garden that will give vegetables to the school kitchen.",
)

VOICES = (
    Voice(0.5, 110),  # answers
    Voice(0.9, 40),  # questions
    Voice(0.6, 150),  # stories
    Voice(0.7, 110),  # articles
    Voice(0.3, 50),  # summaries
)
_ANSWER, _ASK, _STORY, _ARTICLE, _SUMMARY = (-1 - number for number in range(len(VOICES)))

SHARES = {
    "chat": 45,
    "free": 20,
    "summarise": 13,
    "two-turn": 12,
    "greeting": 5,
    "story": 5,
}
# How questions begin that the teacher ends; without a subject of ours it would ask about those of
# the examples. {a} and {s} as in the templates of topics.
SEEDS = (
    "Why do {s}", "Why does {a}", "Can {a}", "Can {s}", "Is {a}", "Are {s}",
    "What happens when {a}", "What if {a}", "How do {s}", "How does {a}", "How many {s}",
    "How big is {a}", "When do {s}", "Where do {s}", "Who uses {s}", "Should {s}", "My {n}",
    "My friend has {a}", "I have {a}", "I saw {a}", "I need {a}", "I am looking for {a}",
    "Tell me why {s}", "Explain how {a}", "What is the best {n}", "What kind of {n}",
    "Which {n}", "Do {s}", "Give me an idea for {a}", "What is the oldest {n}",
    "Write a note about {a}", "Describe how {a}", "How can {a}", "I like {s}", "If I find {a}",
    "Please explain why {s}", "What does it mean when {a}", "Imagine {a}",
)  # fmt: skip
FOLLOW_UPS = (
    "Why?", "Why is that?", "Tell me more.", "Can you tell me more?",
    "Can you give me an example?", "Give me an example.", "Please explain that in simple words.",
    "What else should I know?", "How does that work?", "And what else?",
    "Can you say that in one sentence?", "Make it shorter.",
    "I did not understand that. Can you explain it again?", "Is that always true?",
    "What do you think about it?", "Why is this important?", "How can I learn more about it?",
    "Can you give me a tip?", "Who can help me with that?", "What should I do first?",
)  # fmt: skip
_NAMED = tuple(sorted(COUNTABLE))
_TOWNS = (
    "Millbrook", "Oakdale", "Fairview", "Stonebridge", "Riverton", "Lakeside", "Ashford",
    "Newport", "Greenfield", "Westbury", "Harbor Bay", "Maple Ridge", "Elmwood", "Northgate",
    "Hillside",
)  # fmt: skip
_PEOPLE = (
    "Nora Klein", "David Brown", "Lena Ortiz", "Paul Weber", "Amir Hassan", "Grace Lee",
    "Peter Novak", "Rosa Diaz", "Tom Baker", "Ines Silva", "Karl Lind", "Mary Jones",
    "Yuki Tanaka", "Olga Petrova",
)  # fmt: skip
_BEGINNINGS = (
    "The town of {town}", "On Monday,", "On Friday,", "Last week,", "Yesterday,",
    "This summer,", "A new", "A group of students", "Many people in {town}",
    "The city council of {town}", "{person},", "{person} has", "Residents of {town}",
    "After a long winter,", "Researchers have found", "A study has shown",
    "The mayor of {town}", "Every year,", "Visitors to {town}", "A small shop in {town}",
    "The school in {town}", "Farmers near {town}", "Two friends from {town}",
    "The museum of {town}", "A family in {town}", "{person} and her team",
    "The library in {town}", "Children in {town}", "For the first time,", "Starting next week,",
    "In the old harbor of {town}", "",
)  # fmt: skip


@dataclass(frozen=True)
class Scripts:
    """tokens: int32 [count, length], filled up with END; an entry -1 - k is spoken by voices[k].
    prefix: tokens before every script. kinds: of each script, a key of SHARES."""

    tokens: NDArray[np.int32]
    kinds: tuple[str, ...]
    prefix: list[int]
    voices: tuple[Voice, ...]


def prefix() -> str:
    """What stands before every script: up to where the first question begins."""
    examples = "".join(
        f"{turn('user', asked + SUFFIX)}{turn('assistant', answered)}" for asked, answered in SHOTS
    )
    return f"{turn('system', SYSTEM)}{examples}<|im_start|>user\n"


def turn(role: str, content: str) -> str:
    """A message as ChatML."""
    return f"<|im_start|>{role}\n{content}{END_OF_TURN}\n"


def teacher_scripts(encode: Callable[[str], list[int]], count: int, seed: int) -> Scripts:
    """Scripts in the mix of SHARES; `encode` must know special tokens."""
    rng = random.Random(seed)
    kinds = tuple(rng.choices(tuple(SHARES), tuple(SHARES.values()), k=count))
    remembered: dict[str, list[int]] = {}

    def encoded(text: str) -> list[int]:
        # Most pieces come again and again.
        if text not in remembered:
            remembered[text] = encode(text)
        return remembered[text]

    scripts = [_tokens(_script(kind, rng), encoded) for kind in kinds]
    tokens = np.full((count, max(map(len, scripts), default=0) + 1), END, np.int32)
    for row, script in enumerate(scripts):
        tokens[row, : len(script)] = script
    return Scripts(tokens, kinds, encode(prefix()), VOICES)


Part = str | int
_THEN_ANSWER = f"{END_OF_TURN}\n<|im_start|>assistant\n"
_THEN_ASK = "\n<|im_start|>user\n"
_ANSWER_TO_SAMPLED = "\n<|im_start|>assistant\n"


def _tokens(script: list[Part], encoded: Callable[[str], list[int]]) -> list[int]:
    found: list[int] = []
    for part in script:
        found += encoded(part) if isinstance(part, str) else [part]
    return found


def _script(kind: str, rng: random.Random) -> list[Part]:
    """Texts to feed and voices to sample with; a voice ends its turn itself."""
    if kind == "free":
        return [_seed(rng), _ASK, _ANSWER_TO_SAMPLED, _ANSWER]
    if kind == "summarise":
        return _article(rng)
    if kind == "story":
        return [story_request(rng), SUFFIX + _THEN_ANSWER, _STORY]
    if kind == "greeting":
        return _greeting(rng)
    asked = question(rng)
    voice = _STORY if "story" in asked else _ANSWER
    first: list[Part] = [asked, SUFFIX + _THEN_ANSWER, voice]
    if kind == "chat":
        return first
    if rng.random() < 0.7:
        return [*first, _THEN_ASK, rng.choice(FOLLOW_UPS), SUFFIX + _THEN_ANSWER, _ANSWER]
    return [*first, _THEN_ASK, _ASK, _ANSWER_TO_SAMPLED, _ANSWER]


def _seed(rng: random.Random) -> str:
    topic = rng.choice(topics(rng.choice(_NAMED)))
    return rng.choice(SEEDS).format(a=with_article(topic.name), s=topic.plural, n=topic.name)


def _greeting(rng: random.Random) -> list[Part]:
    said, answer = smalltalk.exchange(rng)
    if rng.random() < 0.2:
        said, answer = smalltalk.thanks(rng)
        return [
            question(rng), SUFFIX + _THEN_ANSWER, _ANSWER,
            _THEN_ASK, said, _THEN_ANSWER, answer, END_OF_TURN,
        ]  # fmt: skip
    first: list[Part] = [said, _THEN_ANSWER, answer, END_OF_TURN]
    if rng.random() < 0.4:
        return first
    return [*first, _THEN_ASK, question(rng), SUFFIX + _THEN_ANSWER, _ANSWER]


def _article(rng: random.Random) -> list[Part]:
    """An article or story by the teacher, to a subject and a beginning of ours; its summary."""
    asked, article, summary = SUMMARY_SHOT
    shot = f"{asked}{_THEN_ANSWER}{article}{END_OF_TURN}"
    shot += f"{_THEN_ASK}{SUMMARY_REQUEST}{_THEN_ANSWER}{summary}{END_OF_TURN}{_THEN_ASK}"
    ending: list[Part] = [_THEN_ASK, SUMMARY_REQUEST, _THEN_ANSWER, _SUMMARY]
    if rng.random() < 0.1:
        return [shot, story_request(rng), _THEN_ANSWER, _ARTICLE, *ending]
    topic = rng.choice(topics(rng.choice(("activities", *_NAMED))))
    subject = rng.choice((topic.plural, rng.choice(entries()["plots"])))
    beginning = rng.choice(_BEGINNINGS).format(town=rng.choice(_TOWNS), person=rng.choice(_PEOPLE))
    request = f"Write a short news article about {subject}."
    return [shot, request, _THEN_ANSWER, beginning, _ARTICLE, *ending]
