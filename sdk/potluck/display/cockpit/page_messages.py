"""What a page may ask for: its messages, checked, as events. Pure."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from potluck.errors import UserError

LONGEST = 200
MOST_CHANGES = 32
LARGEST, SMALLEST = 1e18, 1e-9  # of seconds, joules, bytes: what is beyond means nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the sliders say: seconds of a step, joules of it, bytes of any device; None: as much as
    it likes.
    """

    latency_s: float | None = None
    energy_j: float | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imagined:
    """A home that does not exist: rates of media, devices that are away, kinds that are added."""

    media: Mapping[str, float] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.media or self.without or self.added)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOpened:
    """A page is there, and knows nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimits:
    """The sliders were moved."""

    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Imagine:
    """What if the home were another?"""

    home: Imagined


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A plan was clicked on; an empty name closes the preview."""

    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """It was clicked on again: switch to it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairWith:
    """The code of a device was typed."""

    device: str
    code: str


Click = PageOpened | SetLimits | Imagine | Preview | Go | PairWith


def click_of(content: Any) -> Click:
    """The event of a page's message.

    Raises
    ------
    UserError
        It is none.
    """
    if not isinstance(content, Mapping):
        raise UserError(f"a page asks with a mapping, got {type(content).__name__}.")
    match content.get("ask"):
        case "hello":
            return PageOpened()
        case "limits":
            names = ("latency_s", "energy_j", "memory_bytes")
            return SetLimits(limits=Limits(**{name: _above_zero(content, name) for name in names}))
        case "imagine":
            return Imagine(home=_imagined(content))
        case "preview":
            return Preview(name=_text(content.get("name", "")))
        case "go":
            return Go(name=_text(content.get("name")))
        case "pair":
            return PairWith(device=_text(content.get("device")), code=_text(content.get("code")))
        case other:
            raise UserError(f"a page cannot ask for {_few(other)}.")


def _imagined(content: Mapping[str, Any]) -> Imagined:
    media = content.get("media", {})
    if not isinstance(media, Mapping) or len(media) > MOST_CHANGES:
        raise UserError("rates of media are a mapping by name.")
    rates = {_text(name): _above_zero(media, name) for name in media}
    return Imagined(
        media={name: rate for name, rate in rates.items() if rate is not None},
        without=_texts(content.get("without", ())),
        added=_texts(content.get("added", ())),
    )


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > MOST_CHANGES:
        raise UserError(f"names are a list of at most {MOST_CHANGES}.")
    return tuple(map(_text, value))


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise UserError(f"a name is a text of at most {LONGEST} characters.")
    return value


def _above_zero(content: Mapping[str, Any], name: str) -> float | None:
    """A number above zero; None where nothing is said."""
    value = content.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not SMALLEST <= value <= LARGEST:
        raise UserError(f"{name} is a number above {SMALLEST:g}, got {_few(value)}.")
    return float(value)


def _few(value: Any) -> str:
    """A few words of a value, however large it is."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a whole number of thousands of digits"
