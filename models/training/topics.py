"""Subjects and questions about them: `topics.txt`, and templates for each of its sections."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Words whose first letter tells the wrong article.
AN = ("hour", "honest", "heir")
A = ("uni", "use", "euro", "one", "uku")

COUNTABLE = frozenset({"things", "animals", "jobs", "places", "plants and planets"})

# {a} "an owl", {s} "owls", {t} the entry as it stands, {is} "is" or "are" for it.
COMMON = (
    "What is {a}?",
    "What {is} {t}?",
    "Tell me about {s}.",
    "Explain {t} in simple words.",
    "Why {is} {t} important?",
    "Give me three facts about {s}.",
    "Tell me an interesting fact about {s}.",
    "Write a short paragraph about {s}.",
    "Write one sentence about {s}.",
    "What should everyone know about {s}?",
    "Can you tell me something about {s}?",
    "Describe {a} to a child.",
    "What do people like about {s}?",
)
TEMPLATES: dict[str, tuple[str, ...]] = {
    "things": (
        *COMMON,
        "What is {a} used for?",
        "How does {a} work?",
        "Why do people need {s}?",
        "What are {s} made of?",
        "What should I look for when I buy {a}?",
        "How do I take care of {a}?",
        "Describe {a}.",
        "What did people do before there were {s}?",
    ),
    "animals": (
        *COMMON,
        "What do {s} eat?",
        "Where do {s} live?",
        "What does {a} look like?",
        "How do {s} stay safe?",
        "Describe {a}.",
        "What makes {s} special?",
        "Write a short story about {a}.",
        "How do {s} take care of their young?",
    ),
    "jobs": (
        "What does {a} do?",
        "What does {a} do all day?",
        "Why are {s} important?",
        "How can I become {a}?",
        "Describe the job of {a}.",
        "What skills does {a} need?",
        "Would you like to be {a}?",
        "What tools does {a} use?",
        "Tell me about the work of {a}.",
        "What is hard about being {a}?",
        "Write a short paragraph about {a}.",
        "Write a short story about {a}.",
        "Write one sentence about {a}.",
        "Write a thank you note to {a}.",
    ),
    "foods": (
        "What {is} {t}?",
        "Tell me about {t}.",
        "Why do people like {t}?",
        "What can I make with {t}?",
        "What goes well with {t}?",
        "{Is} {t} good for you?",
        "Where {does} {t} come from?",
        "How should I store {t}?",
        "Describe the taste of {t}.",
        "Give me an idea for a meal with {t}.",
        "Give me two facts about {t}.",
        "Write a short paragraph about {t}.",
        "Write one sentence about {t}.",
        "How do you serve {t}?",
    ),
    "places": (
        *COMMON,
        "What can you find in {a}?",
        "What do people do in {a}?",
        "Why do people need {s}?",
        "What is {a} like in the morning?",
        "Describe {a}.",
        "What should I know before I visit {a}?",
        "What sounds can you hear near {a}?",
        "Write a short story about {a}.",
    ),
    "nature": (
        "What {is} {t}?",
        "Tell me about {t}.",
        "Explain {t} in simple words.",
        "Explain {t} to a child.",
        "Why {is} {t} important?",
        "How does {t} affect us?",
        "What would happen without {t}?",
        "Give me two facts about {t}.",
        "Tell me something interesting about {t}.",
        "Where can you find {t}?",
        "Write a short paragraph about {t}.",
        "Write one sentence about {t}.",
        "Describe {t}.",
    ),
    "plants and planets": (
        *COMMON,
        "Where can I see {a}?",
        "What does {a} look like?",
        "Why do {s} matter?",
        "Describe {a}.",
    ),
    "body and health": (
        "What {is} {t}?",
        "Why {is} {t} important?",
        "What should I know about {t}?",
        "Give me two tips about {t}.",
        "Explain {t} in simple words.",
        "How {does} {t} affect my health?",
        "What can a doctor tell me about {t}?",
        "Write a short paragraph about {t}.",
        "Tell me about {t}.",
    ),
    "virtues": (
        "What is {t}?",
        "Why is {t} important?",
        "What does {t} mean?",
        "Explain {t} to a child.",
        "How can I show {t}?",
        "How can I learn {t}?",
        "Give me an example of {t}.",
        "Write one sentence about {t}.",
        "Write a short paragraph about {t}.",
        "Write a short story about {t}.",
        "What would the world be like without {t}?",
        "Is {t} always a good thing?",
        "How can I teach my children {t}?",
    ),
    "feelings": (
        "What is {t}?",
        "Why do we feel {t}?",
        "How can I deal with {t}?",
        "What helps against {t}?",
        "Give me two tips against {t}.",
        "Is it normal to feel {t}?",
        "Can {t} be a good thing?",
        "Write a short paragraph about {t}.",
        "How can I help a friend with {t}?",
    ),
    "activities": (
        "What are the benefits of {t}?",
        "Why do people enjoy {t}?",
        "How do I start with {t}?",
        "Give me two tips for {t}.",
        "Give me three tips for {t}.",
        "What do I need for {t}?",
        "{Is} {t} hard to learn?",
        "How can I get better at {t}?",
        "Tell me about {t}.",
        "{Is} {t} good for children?",
        "Write a short paragraph about {t}.",
        "Write an email to a friend about {t}.",
        "Write one sentence about {t}.",
        "Do you like {t}?",
        "What is fun about {t}?",
    ),
    "subjects": (
        "What is interesting about {t}?",
        "Tell me about {t}.",
        "Explain {t} in simple words.",
        "Why should I learn about {t}?",
        "What should I know about {t}?",
        "How can I learn more about {t}?",
        "Give me two facts about {t}.",
        "Tell me something interesting about {t}.",
        "Write a short paragraph about {t}.",
        "What can you tell me about {t}?",
        "I want to learn about {t}. Where should I start?",
        "How did {t} change the world?",
    ),
    "countries": (
        "Tell me about {t}.",
        "Where is {t}?",
        "What is {t} known for?",
        "What can I see in {t}?",
        "What food do people eat in {t}?",
        "What is the weather like in {t}?",
        "Give me two facts about {t}.",
        "I want to travel to {t}. What should I know?",
        "What should I pack for a trip to {t}?",
        "Write a postcard from {t}.",
        "Write a short paragraph about {t}.",
        "Describe {t} in one sentence.",
    ),
    "how to": (
        "How do I {t}?",
        "How can I {t}?",
        "What is the best way to {t}?",
        "Can you tell me how to {t}?",
        "I want to {t}. Where do I start?",
        "Please help me {t}.",
        "Give me two tips to {t}.",
        "What do I need to {t}?",
        "Explain in a few steps how to {t}.",
    ),
    "situations": (
        "{t}. What should I do?",
        "{t}. Can you help me?",
        "{t}. What can I do?",
        "{t}.",
        "{t}. Do you have any advice?",
        "Help! {t}.",
    ),
    "pairs": (
        "What is the difference between {a} and {b}?",
        "How is {a} different from {b}?",
        "Compare {a} and {b}.",
        "What do {a} and {b} have in common?",
        "Which is better, {a} or {b}?",
        "Tell me about {a} and {b}.",
    ),
}
SHARES = {
    "things": 17,
    "animals": 11,
    "jobs": 8,
    "foods": 9,
    "places": 8,
    "nature": 7,
    "plants and planets": 5,
    "body and health": 4,
    "virtues": 4,
    "feelings": 2,
    "activities": 7,
    "subjects": 6,
    "countries": 4,
    "how to": 9,
    "situations": 5,
    "pairs": 5,
}
STORIES = (
    "Write a short story about {hero}.",
    "Tell me a short story about {hero}.",
    "Tell me a story about {hero} and {plot}.",
    "Write a short story about {hero} and {plot}.",
    "Write a very short story about {plot}.",
    "Can you tell me a story about {plot}?",
    "Write a bedtime story about {hero}.",
    "I would like to hear a story about {hero}.",
    "Make up a story about {hero}, with {plot} in it.",
    "Tell me a story that begins with {plot}.",
)


@dataclass(frozen=True)
class Topic:
    """An entry: what it is called, its plural, and whether the name is one already."""

    name: str
    plural: str
    is_plural: bool
    countable: bool

    def fill(self, template: str) -> str:
        """`template` with the name in its numbers: {a}, {s}, {t}, {is}, {does}."""
        several = self.is_plural or self.countable
        text = template.format(
            a=with_article(self.name) if self.countable else self.name,
            s=self.plural,
            t=self.plural if self.countable else self.name,
            **{"is": "are" if several else "is", "Is": "Are" if several else "Is"},
            does="do" if several else "does",
        )
        if self.is_plural:
            text = re.sub(r"\bHow does\b", "How do", text)
        return text[0].upper() + text[1:]


def with_article(noun: str) -> str:
    """ "an owl", "a unicorn"."""
    vowel = noun.startswith(AN) or (noun[0] in "aeiou" and not noun.startswith(A))
    return f"{'an' if vowel else 'a'} {noun}"


def plural_of(noun: str) -> str:
    """The regular plural."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


@cache
def entries() -> dict[str, tuple[str, ...]]:
    """Sections of `topics.txt` and their entries as written there."""
    lines = Path(__file__).with_name("topics.txt").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    return {
        name: tuple(filter(None, (" ".join(entry.split()) for entry in body.split(";"))))
        for name, body in re.findall(r"\[(.+?)\]\n([^\[]*)", text)
    }


@cache
def topics(section: str) -> tuple[Topic, ...]:
    """The entries of a section that is no pair."""
    return tuple(_topic(entry, section in COUNTABLE) for entry in entries()[section])


def _topic(entry: str, countable: bool) -> Topic:
    name, bar, plural = (part.strip() for part in entry.partition("|"))
    if countable:
        return Topic(name, plural or plural_of(name), False, True)
    return Topic(name, name, bool(bar), False)


def question(rng: random.Random) -> str:
    """A question or request about a subject of the list."""
    section = rng.choices(tuple(SHARES), tuple(SHARES.values()))[0]
    template = rng.choice(TEMPLATES[section])
    if section == "pairs":
        first, second = (part.strip() for part in rng.choice(entries()[section]).split("|"))
        if rng.random() < 0.5:
            first, second = second, first
        return template.format(a=first, b=second)
    return rng.choice(topics(section)).fill(template)


def story_request(rng: random.Random) -> str:
    """A request for a story about one of many heroes and plots."""
    return rng.choice(STORIES).format(
        hero=rng.choice(entries()["heroes"]), plot=rng.choice(entries()["plots"])
    )
