"""Sequences of seeds for machines: each seed is one move, so a sequence that breaks something can
be made shorter.

A machine is played by an object with `move(rng)`, which makes up an event from what the machine did
before and hands it over. Moves look at the machine's answers, so they reach deep; leaving one out
gives another sequence that still holds.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Seeds = tuple[int, ...]


class Play(Protocol):
    """One machine under attack. `move` raises what must not be raised."""

    def move(self, rng: random.Random) -> None: ...


def attack(make: Callable[[random.Random], Play], seeds: Seeds) -> Exception | None:
    """What a sequence of moves raises, if anything; the first seed makes the machine."""
    try:
        play = make(random.Random(seeds[0]))
        for seed in seeds[1:]:
            play.move(random.Random(seed))
    except Exception as error:
        return error
    return None


def shrunk(make: Callable[[random.Random], Play], seeds: Seeds) -> Seeds:
    """As few of the moves as raise something of the same type: parts are left out, then smaller
    ones.
    """
    kind, size = type(attack(make, seeds)), len(seeds) // 2
    while size:
        for start in range(len(seeds) - size, 0, -size):
            fewer = seeds[:start] + seeds[start + size :]
            if type(attack(make, fewer)) is kind:
                seeds = fewer
        size //= 2
    return seeds


def storm(
    make: Callable[[random.Random], Play], *, first: int, n_sequences: int, n_moves: int
) -> None:
    """So many sequences, numbered from `first`.

    The first that breaks the machine is shown as short as it gets.
    """
    for number in range(first, first + n_sequences):
        numbers = random.Random(number)
        seeds = tuple([numbers.getrandbits(32) for _ in range(n_moves + 1)])
        error = attack(make, seeds)
        if error is not None:
            few = shrunk(make, seeds)
            raise AssertionError(f"sequence {number}, as short as it gets: {few}") from attack(
                make, few
            )


# --- values that nobody expects -------------------------------------------------------------------

NUMBERS = (0, 1, 2, 3, 63, 64, 255, 4096, 2**32, 2**53)
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**53 + 1,
    0.5,
    1e300,
    -1e300,
    "",
    "x",
    "a b",
    "\x1b[2J",
    "\ud800",
    "x" * 300,
    [],
    {},
    [[]],
    {"x": 1},
    [1, 2, 3],
    [["x", 0, 8, "float32", [2]]],
    float("inf"),
    float("nan"),
    10**30,
)
RAW = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b"[" * 50,
    b"[" * 3000 + b"]" * 3000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b"1e999",
    b"[[1e999,0,0]]",
    b"[NaN]",
    b"\xff\xfe",
    b'{"a":1,"a":2}',
    b"9" * 5000,
    b'"\\ud800"',
    b'"\\"' * 40,
)


def mutated(document: Any, rng: random.Random) -> Any:
    """The document with one place of it changed into something odd.

    What it is made of is left as it is.
    """
    if isinstance(document, dict) and document and rng.random() < 0.85:
        key = rng.choice(list(document))
        if rng.random() < 0.1:
            return {name: entry for name, entry in document.items() if name != key}
        return document | {key: mutated(document[key], rng)}
    if isinstance(document, list) and document and rng.random() < 0.85:
        index = rng.randrange(len(document))
        return [*document[:index], mutated(document[index], rng), *document[index + 1 :]]
    return rng.choice(ODD)


def some(rng: random.Random, chances: Sequence[tuple[int, Any]]) -> Any:
    """One of these, by its weight."""
    weights, things = zip(*chances, strict=True)
    return rng.choices(things, weights)[0]
