"""Word problems with small numbers and their solutions, step by step and never wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

TWO_TURN_SHARE = 0.15
SYSTEM_SHARE = 0.1
SYSTEM_MESSAGES = ("You are a helpful assistant.", "Solve the problem step by step.")

Problem = tuple[str, str]

_NAMES = """
Tom Anna Ben Lucy Sam Mia Jack Emma Leo Nina Max Ella Omar Sara Paul Rosa Ali Kate Dan Zoe Ravi
Lily Noah Maya Ivan Clara Hugo Jane Luis Amy Eva Finn Gina Hans Iris Karl Lena Marco Olga Pete
Ruth Tina Victor Wendy Yuki Adam Bella David Fatima George Helen
"""
_THINGS = """
apples books pencils marbles stickers cookies oranges flowers balloons stamps cards coins toys
shells eggs candies buttons crayons tickets bananas lemons pens stones cups plates nuts keys
photos socks cakes
"""
_ONE_OF = {"cookies": "cookie", "candies": "candy"}
_HOLDERS = ("boxes", "bags", "baskets", "rows", "jars", "bowls")
_SHARERS = ("friends", "children", "people", "students", "neighbors")
_ANIMALS = (("dogs", 4), ("cats", 4), ("chickens", 2), ("spiders", 8), ("ants", 6), ("horses", 4))
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def problems(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` conversations of kind "arithmetic", some of two problems."""
    rng = random.Random(seed)
    for _ in range(count):
        messages = []
        if rng.random() < SYSTEM_SHARE:
            messages.append({"role": "system", "content": rng.choice(SYSTEM_MESSAGES)})
        for _ in range(2 if rng.random() < TWO_TURN_SHARE else 1):
            asked, solution = problem(rng)
            messages.append({"role": "user", "content": asked})
            messages.append({"role": "assistant", "content": solution})
        yield {"kind": "arithmetic", "messages": messages}


def problem(rng: random.Random) -> Problem:
    """A problem and its solution, whose last number is the answer."""
    return rng.choice(TEMPLATES)(rng)


def _people(rng: random.Random) -> list[str]:
    return rng.sample(_NAMES.split(), 2)


def _sum(rng: random.Random) -> Problem:
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    asked = (
        f"What is {a} + {b}?",
        f"What is {a} plus {b}?",
        f"Add {a} and {b}.",
        f"Calculate {a} + {b}.",
        f"{a} + {b} = ?",
        f"How much is {a} + {b}?",
        f"Can you add {a} and {b}?",
        f"{a} plus {b}",
        f"What is the sum of {a} and {b}?",
    )
    return rng.choice(asked), f"{a} + {b} = {a + b}. The answer is {a + b}."


def _difference(rng: random.Random) -> Problem:
    a = rng.randint(10, 99)
    b = rng.randint(1, a)
    asked = (
        f"What is {a} - {b}?",
        f"What is {a} minus {b}?",
        f"Subtract {b} from {a}.",
        f"{a} - {b} = ?",
        f"Calculate {a} - {b}.",
        f"How much is {a} minus {b}?",
        f"Take {b} away from {a}.",
        f"What is the difference between {a} and {b}?",
    )
    return rng.choice(asked), f"{a} - {b} = {a - b}. The answer is {a - b}."


def _product(rng: random.Random) -> Problem:
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    asked = (
        f"What is {a} x {b}?",
        f"What is {a} times {b}?",
        f"Multiply {a} by {b}.",
        f"{a} x {b} = ?",
        f"Calculate {a} x {b}.",
        f"How much is {a} times {b}?",
        f"What is the product of {a} and {b}?",
    )
    return rng.choice(asked), f"{a} x {b} = {a * b}. The answer is {a * b}."


def _quotient(rng: random.Random) -> Problem:
    b, q = rng.randint(1, 12), rng.randint(1, 12)
    a = b * q
    asked = (
        f"What is {a} divided by {b}?",
        f"Divide {a} by {b}.",
        f"What is {a} / {b}?",
        f"{a} / {b} = ?",
        f"Calculate {a} / {b}.",
        f"How many times does {b} go into {a}?",
    )
    return rng.choice(asked), f"{a} / {b} = {q}. The answer is {q}."


def _three_terms(rng: random.Random) -> Problem:
    a, b, c = (rng.randint(1, 30) for _ in range(3))
    asked = (f"What is {a} + {b} + {c}?", f"Add {a}, {b} and {c}.", f"Calculate {a} + {b} + {c}.")
    return rng.choice(asked), (
        f"First, {a} + {b} = {a + b}. Then {a + b} + {c} = {a + b + c}. The answer is {a + b + c}."
    )


def _twice_or_half(rng: random.Random) -> Problem:
    a = rng.randint(1, 50)
    if rng.random() < 0.5:
        return (
            f"What is {rng.choice(('double', 'twice'))} {a}?",
            f"2 x {a} = {2 * a}. The answer is {2 * a}.",
        )
    return f"What is half of {2 * a}?", f"{2 * a} / 2 = {a}. The answer is {a}."


def _gets_more(rng: random.Random) -> Problem:
    (n, m), o = _people(rng), rng.choice(_THINGS.split())
    a, b = rng.randint(2, 60), rng.randint(2, 60)
    how = rng.choice(
        (
            f"A friend gives {n} {b} more.",
            f"Then {m} gives {n} {b} more.",
            f"{n} buys {b} more.",
            f"{n} finds {b} more.",
            f"{n} gets {b} more for a birthday.",
        )
    )
    end = rng.choice(("now", "in total", "altogether"))
    return f"{n} has {a} {o}. {how} How many {o} does {n} have {end}?", (
        f"{n} starts with {a} {o} and gets {b} more. {a} + {b} = {a + b}. So {n} has {a + b} {o}."
    )


def _gives_away(rng: random.Random) -> Problem:
    (n, m), o = _people(rng), rng.choice(_THINGS.split())
    a = rng.randint(10, 90)
    b = rng.randint(2, a - 1)
    how = rng.choice(("gives away", "sells", "loses", f"gives {m}"))
    end = rng.choice(("are left", f"does {n} still have", f"does {n} have left"))
    return f"{n} has {a} {o} and {how} {b} of them. How many {o} {end}?", (
        f"{n} starts with {a} {o}. We take away {b}. {a} - {b} = {a - b}. So {a - b} {o} are left."
    )


def _groups(rng: random.Random) -> Problem:
    (n, _), o, h = _people(rng), rng.choice(_THINGS.split()), rng.choice(_HOLDERS)
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    asked = (
        f"There are {a} {h} with {b} {o} in each one. How many {o} are there in total?",
        f"{n} has {a} {h}. Each one has {b} {o} in it. How many {o} does {n} have?",
        f"{n} puts {b} {o} into each of {a} {h}. How many {o} is that?",
    )
    return rng.choice(asked), (
        f"We multiply {a} by {b}. {a} x {b} = {a * b}. So there are {a * b} {o} in total."
    )


def _shares(rng: random.Random) -> Problem:
    (n, _), o, p = _people(rng), rng.choice(_THINGS.split()), rng.choice(_SHARERS)
    b, q = rng.randint(2, 12), rng.randint(2, 12)
    a = b * q
    asked = (
        f"{n} shares {a} {o} equally among {b} {p}. How many {o} does each one get?",
        f"{b} {p} share {a} {o} equally. How many {o} does each one get?",
        f"{n} has {a} {o} for {b} {p}. Everyone gets the same. How many {o} does each one get?",
    )
    return rng.choice(asked), f"We divide {a} by {b}. {a} / {b} = {q}. So each one gets {q} {o}."


def _packs(rng: random.Random) -> Problem:
    (n, _), o, h = _people(rng), rng.choice(_THINGS.split()), rng.choice(_HOLDERS)
    b, q = rng.randint(2, 12), rng.randint(2, 12)
    a = b * q
    return f"{n} packs {a} {o} into {h} of {b}. How many {h} does {n} need?", (
        f"We divide {a} by {b}. {a} / {b} = {q}. So {n} needs {q} {h}."
    )


def _change(rng: random.Random) -> Problem:
    (n, _), o = _people(rng), rng.choice(_THINGS.split())
    a, b, left = rng.randint(2, 9), rng.randint(2, 12), rng.randint(0, 40)
    p = a * b
    paid = p + left
    return f"{n} buys {a} {o} for ${b} each and pays with ${paid}. How much change does {n} get?", (
        f"First, we find the cost. {a} x ${b} = ${p}. Then we find the change. "
        f"${paid} - ${p} = ${left}. So {n} gets ${left} in change."
    )


def _cost(rng: random.Random) -> Problem:
    (n, _), o = _people(rng), rng.choice(_THINGS.split())
    one = _ONE_OF.get(o, o[:-1])
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    article = "An" if one[0] in "aeiou" else "A"
    asked = (
        f"{article} {one} costs ${b}. How much do {a} {o} cost?",
        f"{n} buys {a} {o} for ${b} each. How much does {n} pay?",
    )
    return rng.choice(
        asked
    ), f"We multiply {a} by ${b}. {a} x ${b} = ${a * b}. So the cost is ${a * b}."


def _savings(rng: random.Random) -> Problem:
    n, _ = _people(rng)
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    unit = rng.choice(("week", "day", "month"))
    return f"{n} saves ${b} every {unit}. How much does {n} save in {a} {unit}s?", (
        f"We multiply ${b} by {a}. ${b} x {a} = ${a * b}. So in {a} {unit}s {n} saves ${a * b}."
    )


def _buys_then_gives(rng: random.Random) -> Problem:
    (n, m), o = _people(rng), rng.choice(_THINGS.split())
    a, b = rng.randint(5, 50), rng.randint(2, 30)
    d = rng.randint(1, a + b - 1)
    return (
        f"{n} has {a} {o}. {n} buys {b} more and then gives {d} to {m}. "
        f"How many {o} does {n} have now?",
        (
            f"First, {n} buys {b} more. {a} + {b} = {a + b}. Then {n} gives away {d}. "
            f"{a + b} - {d} = {a + b - d}. So {n} has {a + b - d} {o} now."
        ),
    )


def _loses_then_finds(rng: random.Random) -> Problem:
    (n, _), o = _people(rng), rng.choice(_THINGS.split())
    a = rng.randint(10, 60)
    b, d = rng.randint(1, a - 1), rng.randint(2, 30)
    return f"{n} has {a} {o}, loses {b} and then finds {d} more. How many {o} does {n} have now?", (
        f"First, {n} loses {b}. {a} - {b} = {a - b}. Then {n} finds {d}. "
        f"{a - b} + {d} = {a - b + d}. So {n} has {a - b + d} {o} now."
    )


def _together(rng: random.Random) -> Problem:
    (n, m), o = _people(rng), rng.choice(_THINGS.split())
    a, b = rng.randint(2, 40), rng.randint(2, 40)
    end = rng.choice(("together", "in total", "altogether"))
    return f"{n} has {a} {o} and {m} has {b} {o}. How many {o} do they have {end}?", (
        f"We add the two numbers. {a} + {b} = {a + b}. So they have {a + b} {o} together."
    )


def _how_many_more(rng: random.Random) -> Problem:
    (n, m), o = _people(rng), rng.choice(_THINGS.split())
    a = rng.randint(10, 60)
    b = rng.randint(1, a - 1)
    return f"{n} has {a} {o} and {m} has {b} {o}. How many more {o} does {n} have than {m}?", (
        f"We find the difference. {a} - {b} = {a - b}. So {n} has {a - b} more {o} than {m}."
    )


def _needs_more(rng: random.Random) -> Problem:
    (n, _), o = _people(rng), rng.choice(_THINGS.split())
    a = rng.randint(10, 60)
    b = rng.randint(1, a - 1)
    return f"{n} wants to have {a} {o} and has {b}. How many more does {n} need?", (
        f"We find the difference. {a} - {b} = {a - b}. So {n} needs {a - b} more {o}."
    )


def _each_day(rng: random.Random) -> Problem:
    n, _ = _people(rng)
    a, b = rng.randint(2, 12), rng.randint(2, 10)
    verb, verbs, what = rng.choice(
        (
            ("read", "reads", "pages"),
            ("write", "writes", "letters"),
            ("walk", "walks", "miles"),
            ("bake", "bakes", "cakes"),
            ("draw", "draws", "pictures"),
            ("plant", "plants", "trees"),
        )
    )
    return f"{n} {verbs} {b} {what} every day. How many {what} does {n} {verb} in {a} days?", (
        f"We multiply {b} by {a}. {b} x {a} = {a * b}. So in {a} days {n} {verbs} {a * b} {what}."
    )


def _groups_and_more(rng: random.Random) -> Problem:
    (n, _), o, h = _people(rng), rng.choice(_THINGS.split()), rng.choice(_HOLDERS)
    a, b, d = rng.randint(2, 8), rng.randint(2, 8), rng.randint(1, 20)
    return (
        f"{n} has {a} {h} with {b} {o} in each, and {d} more {o}. How many {o} are there in total?",
        (
            f"First, we find how many are in the {h}. {a} x {b} = {a * b}. Then we add {d}. "
            f"{a * b} + {d} = {a * b + d}. So there are {a * b + d} {o} in total."
        ),
    )


def _times_as_many(rng: random.Random) -> Problem:
    (n, m), o = _people(rng), rng.choice(_THINGS.split())
    a, b = rng.randint(5, 40), rng.randint(2, 5)
    times = "twice" if b == 2 else f"{b} times"
    return f"{n} has {a} {o}. {m} has {times} as many. How many {o} does {m} have?", (
        f"{m} has {times} as many. {a} x {b} = {a * b}. So {m} has {a * b} {o}."
    )


def _speed(rng: random.Random) -> Problem:
    a, b = rng.randint(10, 60), rng.randint(2, 6)
    what = rng.choice(("car", "train", "bus", "ship", "truck"))
    return f"A {what} travels {a} miles in one hour. How far does it travel in {b} hours?", (
        f"We multiply the speed by the time. {a} x {b} = {a * b}. So it travels {a * b} miles."
    )


def _age(rng: random.Random) -> Problem:
    n, m = _people(rng)
    a, b = rng.randint(3, 60), rng.randint(2, 20)
    if rng.random() < 0.5:
        return f"{n} is {a} years old. {m} is {b} years older. How old is {m}?", (
            f"{m} is {b} years older. {a} + {b} = {a + b}. So {m} is {a + b} years old."
        )
    return f"{n} is {a} years old. How old will {n} be in {b} years?", (
        f"We add {b} years. {a} + {b} = {a + b}. So {n} will be {a + b} years old."
    )


def _legs(rng: random.Random) -> Problem:
    animal, legs = rng.choice(_ANIMALS)
    a = rng.randint(2, 12)
    return f"How many legs do {a} {animal} have?", (
        f"Each of them has {legs} legs. {a} x {legs} = {a * legs}. "
        f"So {a} {animal} have {a * legs} legs."
    )


def _two_days(rng: random.Random) -> Problem:
    (n, _), o = _people(rng), rng.choice(_THINGS.split())
    a, b = rng.randint(2, 50), rng.randint(2, 50)
    first = rng.randrange(len(_DAYS) - 1)
    return (
        f"{n} sells {a} {o} on {_DAYS[first]} and {b} {o} on {_DAYS[first + 1]}. "
        f"How many {o} does {n} sell on both days?"
    ), f"We add the two days. {a} + {b} = {a + b}. So {n} sells {a + b} {o}."


def _perimeter(rng: random.Random) -> Problem:
    a = rng.randint(2, 12)
    if rng.random() < 0.5:
        return f"The side of a square is {a} meters long. How long are all its sides together?", (
            f"A square has 4 sides. 4 x {a} = {4 * a}. So they are {4 * a} meters long."
        )
    b = rng.randint(2, 12)
    return f"A garden is {a} meters long and {b} meters wide. What is its area?", (
        f"We multiply length and width. {a} x {b} = {a * b}. So the area is {a * b} square meters."
    )


TEMPLATES: tuple[Callable[[random.Random], Problem], ...] = (
    _sum, _difference, _product, _quotient, _three_terms, _twice_or_half, _gets_more, _gives_away,
    _groups, _shares, _packs, _change, _cost, _savings, _buys_then_gives, _loses_then_finds,
    _together, _how_many_more, _needs_more, _each_day, _groups_and_more, _times_as_many, _speed,
    _age, _legs, _two_days, _perimeter,
)  # fmt: skip
