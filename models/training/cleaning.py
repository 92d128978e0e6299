"""What the teacher wrote as conversations that are worth learning: pure functions on text.

The teacher is small. It loops, wanders off, names itself, and is cut by its cap; the beginning of
such an answer is usually good. So answers are cut to whole sentences before the first that says
what was said, and only those that are then in order are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import numpy as np

from .scripts import SHOTS, SUMMARY_REQUEST, SUMMARY_SHOT
from .smalltalk import is_ours

Conversation = dict[str, Any]
Message = dict[str, str]

LONGEST = {"story": 110, "article": 110, "summarise": 25}
LONGEST_ANSWER = 80
SHORTEST_ANSWER = 4
# A question with more stems than this is a text with a request.
LONGEST_SUBJECT = 12
SHORTEST_ARTICLE = 25

SYSTEM_SHARE = 0.12
SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "You are a helpful AI assistant.",
    "You are a friendly assistant. Answer in simple English.",
    "Answer briefly and clearly.",
    "You are a kind and patient helper.",
    "Keep your answers short.",
)
SUMMARY_WORDINGS = (
    "Summarize this text:\n\n{}",
    "Summarise this text:\n\n{}",
    "Summarize the following text in one or two sentences.\n\n{}",
    "Please give me a short summary of this text:\n\n{}",
    "Write a short summary of this article:\n\n{}",
    "What is this text about?\n\n{}",
    "Can you summarize this for me?\n\n{}",
    "Give me the main point of this text:\n\n{}",
    "Summarize: {}",
    "TL;DR of this, please:\n\n{}",
    "{}\n\nSummarize the text above.",
    "{}\n\nWhat is the main idea of this text?",
    "{}\n\nPlease summarize this in a sentence or two.",
)

# The request behind questions of ours, which the teacher imitates.
_HINT = re.compile(r"\s*\b(Answer|Reply|Explain) in [^.?!]*\bsentences?[.!]?\s*$")
# A first question that asks about what went before.
_NO_FIRST_QUESTION = re.compile(
    r"\b(these|those|other|another|else|mentioned|above|previous|earlier|again|more tips)\b",
    re.IGNORECASE,
)
_ABOUT_THE_ARTICLE = re.compile(
    r"(the|this|a) (short )?(news )?(article|text|story|author)", re.IGNORECASE
)
_UNWANTED = re.compile(
    r"```|\bdef \w+\(|#\w|https?:|www\.|<[|/a-z]|[{}$_~^|\\=@\[\]]"
    r"|smollm|hugging ?face|\bAI\b|language model|chatbot|digital assistant|virtual assistant"
    r"|as an assistant|trained by|open-?ai|chatgpt|\bprompt\b"
    r"|two or three (short )?sentences|short sentences",
    re.IGNORECASE,
)
_PUNCTUATION = str.maketrans(
    {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."}
)
_SENTENCE = re.compile(
    r"(?:\d+\.\s+)?[^.!?\n]*(?:(?:[.!?]+(?=[\s\"')]|$)|[.!?](?=\S))[\"')]*|\n+|$)"
)
_SENTENCE_END = re.compile(r"[.!?][\"')]*$")
_LIST_ITEM = re.compile(r"\s*(\d+\.|[-*])\s*")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")

# A first sentence that says nothing, and what nobody should hear from a toy.
_EMPTY = re.compile(
    r"(happy|glad|here) to (help|assist)|let me know|sorry for the"
    r"|\b[A-Z]{3,} [A-Z]{3,}\b"
)
_GRIM = re.compile(
    r"\b(murder|kill|homicide|suicid|rape|sexual|sexy|naked|porn|terroris|nazi|hitler|slave|genocid|gunm|gunsh"
    r"|stabb|cocaine|heroin|racis|jail|prison|arrest|assault|abus|crimin|lawsuit|weapon|bomb|corpse|torture"
    r"|christ\b|jesus|allah|jewish|muslim|trump|obama|biden|putin)",
    re.IGNORECASE,
)
# Words that say how to answer, or that any answer has: they tell no subject.
_NO_SUBJECT_WORDS = """
a about above advice affect after again against all also always am an and another any anything are
around as ask at away bad be because become been before begins being best better between big but
buy by can change child children choose come common compare could day deal describe did differ
difference different do does doing done during each easy email every everyone example explain fact
facts feel few find first following for friend from fun get give go goes going good great had
happen happens hard has have having hear help her here him his how idea if important in
interesting into is it its job just keep kind know learn let like little live long look looks made
make makes making many matter may me mean means might more morning most much must my need needs
new no normal not note nothing now of off often on one only or other our out over own paragraph
part people person place please poem point questions really reason said say see sentence serve she
short should show simple small so some someone something sometimes special start steps stop story
such summarize take tell than thank that the their them then there these they thing things think
this those three through time tip tips to together too two under until up us use used useful using
very want was way ways we well were what when where which while who why will with without word
words work works world would write year years you your
"""
_NO_SUBJECT = frozenset(_NO_SUBJECT_WORDS.split())


def clean(text: str, random: np.random.Generator) -> Conversation | None:
    """The conversation in `text`, ChatML behind the prefix that all scripts share, if it is good.

    An answer of no worth ends the conversation before its question.
    """
    turns = _turns(text)
    if not turns:
        return None
    if turns[0] == SUMMARY_SHOT[:2]:
        return _summarised(turns[2:], random)
    kept: list[Message] = []
    for question, answer in turns:
        said = _said(question, answer, [message["content"] for message in kept])
        if said is None:
            break
        kept += [_message("user", question), _message("assistant", said)]
    if not kept:
        return None
    kind = kind_of([message["content"] for message in kept[::2]])
    return {"kind": kind, "messages": [*_system(random), *kept]}


def kind_of(questions: list[str]) -> str:
    """Of a conversation with these user turns: greeting, two-turn, story or chat."""
    if is_ours(questions[0]):
        return "greeting"
    if len(questions) > 1:
        return "two-turn"
    return "story" if re.search(r"\bstory\b", questions[0], re.IGNORECASE) else "chat"


def repetitive(text: str, trigrams: float = 0.70, sentences: float = 0.75) -> bool:
    """Whether fewer than these shares of the word trigrams, or of the sentences, are distinct.

    Texts of up to 20 trigrams, and of up to two sentences, have no such share.
    """
    words = text.lower().split()
    triples = list(zip(words, words[1:], words[2:], strict=False))
    if len(triples) > 20 and len(set(triples)) < trigrams * len(triples):
        return True
    said = [part.strip().lower() for part in re.split(r"[.!?\n]+", text)]
    said = [part for part in said if len(part) > 8]
    return len(said) > 2 and len(set(said)) < sentences * len(said)


def good_answer(question: str, answer: str, finished: bool) -> bool:
    """Whether a model should learn from its own answer: ended, nothing twice, on the subject."""
    if not finished or not _SENTENCE_END.search(answer.rstrip()) or _strange(answer):
        return False
    if _harps(answer) or repetitive(answer, trigrams=0.9, sentences=0.95):
        return False
    return trimmed(answer, len(answer)) == answer.strip() and _to_the_point(question, answer)


def on_subject(question: str, answer: str) -> bool:
    """Whether a word of the question that names a subject is in the answer, by crude stems."""
    subject = subject_stems(question)
    return not subject or bool(subject & subject_stems(answer))


def _to_the_point(question: str, answer: str) -> bool:
    """Whether an answer names most of what a question names; that of a text is from the text."""
    subject, about = subject_stems(question), subject_stems(answer)
    if len(subject) > LONGEST_SUBJECT:
        return _covers(question, answer)
    return len(subject & about) >= 0.6 * len(subject)


def subject_stems(text: str) -> set[str]:
    """Beginnings of the words that could name a subject."""
    words = {word.split("'")[0] for word in _WORD.findall(text.lower())}
    return {_stem(word) for word in words if word not in _NO_SUBJECT and len(word) > 2}


def trimmed(text: str, longest: int) -> str:
    """The longest beginning of `text` of whole sentences, of which none says what another said.

    longest: in words; a first sentence may be longer.
    """
    kept: list[str] = []
    earlier: list[set[str]] = []
    starts: Counter[str] = Counter()
    n_words = 0
    for sentence in _sentences(text):
        words = _WORD.findall(sentence.lower())
        if _stammers(words):
            break
        start = " ".join(words[:4])
        content = {_stem(word) for word in words if word not in _NO_SUBJECT}
        if len(words) > 3 and (starts[start] > 1 or any(_same(content, set_) for set_ in earlier)):
            break
        if kept and n_words + len(words) > longest:
            break
        starts[start] += 1
        earlier.append(content)
        n_words += len(words)
        kept.append(sentence)
    while kept and (
        not _SENTENCE_END.search(kept[-1].rstrip()) or _LIST_ITEM.fullmatch(kept[-1].rstrip())
    ):
        kept.pop()
    whole = "".join(kept).strip()
    # A list of one is none.
    return whole.removeprefix("1. ") if "2." not in whole else whole


def _turns(text: str) -> list[tuple[str, str]]:
    """Pairs of question and answer, without what the teacher alone was told; [] if malformed."""
    parts = re.split(r"<\|im_end\|>\s*<\|im_start\|>(?=user\n|assistant\n)", text)
    turns: list[str] = []
    for part in parts:
        role, _, content = part.partition("\n") if turns else ("user", "", part)
        if role != ("assistant" if len(turns) % 2 else "user"):
            return []
        turns.append(content.removesuffix("\n").removesuffix("<|im_end|>").strip())
    if any("<|" in turn for turn in turns):
        return []
    questions = [_HINT.sub("", turn).rstrip() for turn in turns[::2]]
    return [
        (_plain(question), _plain(answer))
        for question, answer in zip(questions, turns[1::2], strict=False)
    ]


def _plain(text: str) -> str:
    """`text` with typewriter punctuation and without emphasis and empty lines."""
    text = text.translate(_PUNCTUATION).replace("**", "").replace("\r", "")
    return re.sub(r"[ \t]*\n\s*", "\n", re.sub(r"[ \t]+", " ", text)).strip()


def _said(question: str, answer: str, before: list[str]) -> str | None:
    """What of an answer is worth keeping, if anything, in a conversation that went `before`."""
    if is_ours(question):
        return answer
    if _strange(question) or not 2 <= len(question) <= 300 or repetitive(question, 0.9, 0.9):
        return None
    if not _SENTENCE_END.search(question) or "\n" in question:
        return None
    if not before and _NO_FIRST_QUESTION.search(question):
        return None
    story = re.search(r"\bstory\b", question, re.IGNORECASE)
    said = trimmed(answer, LONGEST["story"] if story else LONGEST_ANSWER)
    if len(said.split()) < SHORTEST_ANSWER or _strange(said) or _harps(said):
        return None
    if not said[0].isupper() and not said.startswith(("1.", '"', "'")):
        return None
    if repetitive(said, trigrams=0.85, sentences=1.0) or _echoes(said, before) or _is_shot(said):
        return None
    # A follow-up question need not name the subject.
    return said if before or on_subject(question, said) else None


def _summarised(turns: list[tuple[str, str]], random: np.random.Generator) -> Conversation | None:
    """A request to summarise what the teacher wrote when it was asked for an article."""
    if len(turns) < 2 or turns[1][0] != SUMMARY_REQUEST:
        return None
    (_, article), (_, summary) = turns
    article = trimmed(article, LONGEST["article"])
    sentences = _sentences(article)
    if len(article.split()) < SHORTEST_ARTICLE or len(sentences) < 2 or not _fine(article):
        return None
    summary = trimmed(summary, LONGEST["summarise"])
    if not _sums_up(article, summary):
        # What a news article begins with says what it is about, and more safely than the teacher.
        summary = sentences[0].strip()
        if len(summary.split()) > LONGEST["summarise"] or not _sums_up(article, summary):
            return None
    wording = SUMMARY_WORDINGS[random.integers(len(SUMMARY_WORDINGS))]
    messages = [_message("user", wording.format(article)), _message("assistant", summary)]
    return {"kind": "summarise", "messages": [*_system(random), *messages]}


def _fine(text: str) -> bool:
    return not (_strange(text) or _harps(text) or repetitive(text, 0.85, 1.0) or _is_shot(text))


def _sums_up(article: str, summary: str) -> bool:
    if len(summary.split()) < SHORTEST_ANSWER or len(summary) > 0.65 * len(article):
        return False
    return _fine(summary) and not _ABOUT_THE_ARTICLE.match(summary) and _covers(article, summary)


def _covers(article: str, summary: str) -> bool:
    """Whether most of what a summary is about is in the article."""
    about = subject_stems(summary)
    return len(about & subject_stems(article)) >= 0.7 * len(about)


def _system(random: np.random.Generator) -> Iterator[Message]:
    if random.random() < SYSTEM_SHARE:
        yield _message("system", SYSTEM_MESSAGES[random.integers(len(SYSTEM_MESSAGES))])


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _strange(text: str) -> bool:
    """Code, formulas, addresses, the teacher's name, or other than English letters."""
    foreign = sum(letter > "\x7f" for letter in text)
    found = _UNWANTED.search(text) or _GRIM.search(text) or _EMPTY.search(text)
    return bool(found) or "\ufffd" in text or foreign > 0.01 * len(text)


def _harps(text: str) -> bool:
    """Whether a short text says one word of meaning again and again."""
    words = [word for word in _WORD.findall(text.lower()) if word not in _NO_SUBJECT]
    if len(words) < 8:
        return False
    stems = Counter(map(_stem, words))
    return len(stems) < 0.5 * len(words) or max(stems.values()) > max(3, 0.2 * len(words))


def _echoes(said: str, before: list[str]) -> bool:
    """Whether an answer only says an earlier message in other words."""
    stems = subject_stems(said)
    earlier = [subject_stems(message) for message in before]
    return any(len(stems & one) >= 0.8 * len(stems | one) for one in earlier if stems | one)


def _is_shot(text: str) -> bool:
    """Whether it repeats an example of ours."""
    stems = subject_stems(text)
    return any(_same(stems, shot) for shot in _shot_stems())


@cache
def _shot_stems() -> tuple[set[str], ...]:
    return tuple(map(subject_stems, (*(answer for _, answer in SHOTS), *SUMMARY_SHOT[1:])))


def _sentences(text: str) -> list[str]:
    """`text` cut behind its sentences and lines; their concatenation is `text`."""
    return [sentence for sentence in _SENTENCE.findall(text) if sentence]


def _stammers(words: list[str]) -> bool:
    """Whether a sentence says three words twice, or two words in a row."""
    triples = list(zip(words, words[1:], words[2:], strict=False))
    twice = any(words[i : i + 2] == words[i + 2 : i + 4] for i in range(len(words) - 3))
    return len(set(triples)) < len(triples) or twice


def _same(content: set[str], earlier: set[str]) -> bool:
    """Whether a sentence with these stems says hardly more than an earlier one."""
    if not content or not earlier:
        return False
    shared = len(content & earlier)
    return shared >= 2 and shared >= 0.75 * min(len(content), len(earlier))


@lru_cache(1 << 16)
def _stem(word: str) -> str:
    """A beginning that most forms of a word share: "walk" of walks, walked, walking."""
    word = word.split("'")[0]
    if len(word) > 3 and word.endswith("s"):
        word = word[:-3] + "y" if word.endswith("ies") else word[:-1]
    for ending in ("ing", "ed"):
        if len(word) > len(ending) + 2 and word.endswith(ending):
            word = word.removesuffix(ending)
            word = word[:-1] if word[-1] == word[-2] else word
    return word.removesuffix("e")[:5] if len(word) > 3 else word
