"""Small tasks about Python code, made of a run's own validation text: what a model of a few thousand parameters can do.

Each is multiple choice, as most of lm-eval's tasks are: a prompt, and choices of which one continues it in the text.
As far as the text allows, the right answers are spread evenly over the kinds of choice, so that a preference for one of
them, such as ")", gains nothing over guessing, which gives 1/2 of code_quotes, 1/3 of code_brackets, and 1/4 of the
others. The same text gives the same items, whatever the seed and the model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from keyword import iskeyword
from typing import NamedTuple

from ademamix.lab.data import DataError
from ademamix.lab.data.order import spread_evenly

ITEMS = 400
"""Of each task; fewer, where the text has fewer."""
LETTERS = "ABCD"
CHOICES = len(LETTERS)
"""At most."""
PROMPT = 44
"""Characters; with any choice they fit into a context of 64 bytes."""
CONTINUATION = 16
NAME = re.compile(r"\b[A-Za-z_]\w{4,15}\b")
QUOTED = re.compile(r"""(?<=[(\[{=, ])(["'])[\w .:/%-]{2,20}(?=\1(?!["']))""")
LINE_START = re.compile(r"(?<=\S\n)( *)(\S)")
STATEMENT = re.compile(r"(?m)^ *(?=(\w+) )")
CLOSING = {"(": ")", "[": "]", "{": "}"}
INDENTATIONS = (0, 4, 8, 12)
KEYWORDS = (
    *("assert", "class", "def", "del", "elif", "except", "for", "from", "if", "import", "raise", "return", "while"),
    *("with", "yield"),
)


class Item(NamedTuple):
    """A question: which of the choices continues the prompt?"""

    prompt: str
    choices: tuple[str, ...]
    answer: int
    """The number of the right one."""


class _Place(NamedTuple):
    """A place in the text where a question can be asked."""

    prompt: str
    right: str
    kind: str = ""
    """Of the right answer: there are as many items of each."""
    wrong: tuple[str, ...] = ()
    """Other choices; empty: the right ones of other places that are as long."""
    ending: str = ""
    """Comes after every choice."""


def items(task: str, documents: Sequence[str]) -> list[Item]:
    r"""Return the items of a task, found in documents.

    >>> items("code_brackets", ["x = values[1]\ny = f(x, z)\nz = {1, 2}\n"])[1]
    Item(prompt='x = values[1', choices=(')', ']', '}'), answer=1)
    """
    if task == LETTERED:
        return [_lettered(item, number) for number, item in enumerate(items("code_keywords", documents))]
    places = [place for document in documents for place in FINDERS[task](document)]
    by_kind: dict[str, list[_Place]] = {}
    by_length: dict[int, set[str]] = {}
    for place in places:
        by_kind.setdefault(place.kind, []).append(place)
        by_length.setdefault(len(place.right), set()).add(place.right)
    elsewhere = {length: sorted(answers) for length, answers in by_length.items()}
    draw = random.Random(task)
    found = []
    for kind in sorted(by_kind):
        for place in _spread(by_kind[kind], ITEMS // len(by_kind)):
            pool = place.wrong or _absent(elsewhere[len(place.right)], place)
            wrong = draw.sample(pool, min(CHOICES - 1, len(pool)))
            choices = sorted([place.right, *wrong])
            ended = tuple(choice + place.ending for choice in choices)
            found.append(Item(place.prompt, ended, choices.index(place.right)))
    if not any(len(item.choices) > 1 for item in found):
        raise DataError(f"the validation text has nothing for the task {task}: train on code, or leave the task out")
    return found


def _lettered(item: Item, number: int) -> Item:
    """Return the item with its choices in the prompt, to be answered by a letter; each letter is right as often."""
    choices = [choice for index, choice in enumerate(item.choices) if index != item.answer]
    answer = number % len(item.choices)
    choices.insert(answer, item.choices[item.answer])
    listed = "".join(f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
    return Item(f"{item.prompt}{listed}\nAnswer:", tuple(f" {letter}" for letter in LETTERS), answer)


def _spread(places: Sequence[_Place], count: int) -> Iterator[_Place]:
    for numbers in spread_evenly(len(places), count=count, chunk=ITEMS):
        yield from (places[number] for number in numbers)


def _absent(answers: Sequence[str], place: _Place) -> list[str]:
    """Return those of some answers that neither are the right one nor stand in the prompt."""
    return [answer for answer in answers if answer != place.right and answer not in place.prompt]


def _before(text: str, end: int) -> str:
    return text[max(0, end - PROMPT) : end]


def _continuations(text: str) -> Iterator[_Place]:
    """Yield stretches of text and what comes next; wrong are stretches of other places."""
    for start in range(PROMPT, len(text) - CONTINUATION, 4 * PROMPT):
        yield _Place(_before(text, start), text[start : start + CONTINUATION])


def _brackets(text: str) -> Iterator[_Place]:
    """Yield places before a bracket that closes the last open one of the prompt, which is not next to it."""
    for found in re.finditer(r"[)\]}]", text):
        prompt, right = _before(text, found.start()), found.group()
        if prompt and prompt[-1] not in CLOSING and _last_open(prompt) == right:
            yield _Place(prompt, right, right, tuple(bracket for bracket in CLOSING.values() if bracket != right))


def _last_open(prompt: str) -> str:
    """Return what would close the last open bracket, or nothing."""
    closing: list[str] = []
    for character in prompt:
        if character in CLOSING:
            closing.append(CLOSING[character])
        elif closing and character == closing[-1]:
            closing.pop()
    return closing[-1] if closing else ""


def _quotes(text: str) -> Iterator[_Place]:
    """Yield places before the quote that ends a short string: it is the one that has begun it."""
    for found in QUOTED.finditer(text):
        quote = found.group(1)
        yield _Place(_before(text, found.end()), quote, quote, ('"' if quote == "'" else "'",))


def _indentations(text: str) -> Iterator[_Place]:
    """Yield ends of lines: how far is the next line indented?"""
    for found in LINE_START.finditer(text):
        width, first = len(found.group(1)), found.group(2)
        if width in INDENTATIONS:
            wrong = tuple(" " * other for other in INDENTATIONS if other != width)
            yield _Place(_before(text, found.start()), found.group(1), str(width), wrong, ending=first)


def _keywords(text: str) -> Iterator[_Place]:
    """Yield places before the keyword that begins a statement."""
    for found in STATEMENT.finditer(text):
        if (keyword := found.group(1)) in KEYWORDS:
            wrong = tuple(other for other in KEYWORDS if other != keyword)
            yield _Place(_before(text, found.end()), keyword, keyword, wrong, ending=" ")


def _names(text: str) -> Iterator[_Place]:
    """Yield places before a name that stands in the prompt already, for each name one; wrong are names of other places.

    The choices end with the character after the name, so that none is only the beginning of a longer name.
    """
    asked: set[str] = set()
    for found in NAME.finditer(text):
        name, prompt = found.group(), _before(text, found.start())
        if name not in asked and not iskeyword(name) and name in NAME.findall(prompt):
            asked.add(name)
            yield _Place(prompt, name, ending=text[found.end() : found.end() + 1])


FINDERS: dict[str, Callable[[str], Iterator[_Place]]] = {
    "code_continuation": _continuations,
    "code_brackets": _brackets,
    "code_quotes": _quotes,
    "code_indentation": _indentations,
    "code_keywords": _keywords,
    "code_names": _names,
}
"""Where the questions of each task are asked."""
LETTERED = "code_keywords_lettered"
"""The items of code_keywords, asked as lm-eval asks those of MMLU: which letter has the right answer?"""
TASKS = (*FINDERS, LETTERED)
"""By the names that a config gives them."""
