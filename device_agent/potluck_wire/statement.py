"""The capability statement: what a device tells a controller about itself before anything is
loaded.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, cast

from potluck_wire.checks import Unfit, record, text, which
from potluck_wire.documents import dump, parse
from potluck_wire.errors import WireCode, WireError
from potluck_wire.frames import Buffer
from potluck_wire.limits import MAX_FACTS_BYTES, MAX_INT, MAX_STR_BYTES, is_device_name
from potluck_wire.processors import KEYS, MAX_KIND, MAX_NAME, MAX_PROCESSORS, MAX_REASON, is_line
from potluck_wire.version import parse as parse_version

BACKEND_OF = {"aten": "torch", "onnx": "onnxruntime"}  # what computes each kind of segment
# Plans are reckoned with a device's numbers, and sums and quotients of these have to stay numbers.
MAX_NUMBER = 1e15  # a petabyte per second
MIN_RATE = 1e-3  # or none at all
MAX_OVERHEAD_S = 1e6
MAX_ADDRESS = 64  # characters
MAX_ENTRIES = 4096  # names in one list: the operators are some hundred


def read(data: Buffer) -> dict[str, Any]:
    """The statement in buffer 0 of a `Welcome`, with what it leaves out at its default.

    Keys that this version does not know are kept: a newer agent may say more.

    Raises
    ------
    WireError
        With code `document`: no JSON object, a required key is missing, or a known key has another
        type.
    """
    statement: dict[str, Any] = parse(data, "the capability statement", _check)
    for key, (_, _, default, _) in FIELDS.items():
        if default is REQUIRED and key not in statement:
            raise WireError(WireCode.DOCUMENT, f"the capability statement lacks {key}")
        statement.setdefault(key, copy(default))
    return statement


def read_facts(data: Buffer) -> dict[str, Any]:
    """What a worker says of itself with `WorkerReady`: its part of the statement, what bounds it
    and what it counts.

    Raises
    ------
    WireError
        With code `document`, on any other key and on another type; with `size`, where it is more
        than the agent tells on: every notebook hears it in its `Welcome`.
    """
    what = "what the worker says of itself"
    facts = cast(dict[str, Any], parse(data, what, _FACTS, MAX_FACTS_BYTES))
    nbytes = len(dump(facts))  # escapes are longer than what they stand for
    if nbytes > MAX_FACTS_BYTES:
        raise WireError(WireCode.SIZE, f"{what} takes {nbytes} bytes, at most {MAX_FACTS_BYTES}")
    return facts


def _check(value: Any) -> Any:
    """An object whose known keys have their types."""
    if type(value) is not dict:
        raise Unfit("an object", value)
    for key, entry in value.items():
        if key in FIELDS and not FIELDS[key][0](entry):
            raise Unfit(FIELDS[key][1], entry, key)
    return value


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def _is_positive(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_NUMBER


def _is_time(value: Any) -> bool:
    return _is_number(value) and value <= MAX_OVERHEAD_S


def _is_rate(value: Any) -> bool:
    return _is_number(value) and (value == 0 or value >= MIN_RATE)


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_STR_BYTES


def _is_version(value: Any) -> bool:
    try:
        return type(value) is str and bool(parse_version(value))
    except WireError:
        return False


def _is_list(value: Any) -> bool:
    return type(value) is list and len(value) <= MAX_ENTRIES and all(map(_is_text, value))


def _is_texts(value: Any) -> bool:
    return type(value) is dict and len(value) <= MAX_ENTRIES and all(map(_is_text, value.values()))


def _is_numbers(value: Any, keys: set[str]) -> bool:
    return (
        type(value) is dict
        and set(value) <= keys
        and all(n is None or _is_rate(n) for n in value.values())
    )


def _is_connection(value: Any) -> bool:
    return (
        type(value) is dict
        and set(value) <= {"kind", "bytes_per_s", "frequency_hz", "gateway"}
        and any(value.get("kind") == kind for kind in (None, "wired", "wifi"))
        and all(
            value.get(key) is None or _is_number(value[key])
            for key in ("bytes_per_s", "frequency_hz")
        )
        and (value.get("gateway") is None or _is_address(value["gateway"]))
    )


def _is_address(value: Any) -> bool:
    return (
        _is_text(value)
        and 0 < len(value) <= MAX_ADDRESS
        and value.isascii()
        and value.isprintable()
    )


def _is_meters(value: Any) -> bool:
    return (
        type(value) is list
        and len(value) <= 64
        and all(_is_texts(m) and {"name", "source"} <= set(m) for m in value)
    )


def _is_processors(value: Any) -> bool:
    return type(value) is list and len(value) <= MAX_PROCESSORS and all(map(_is_processor, value))


def _is_processor(value: Any) -> bool:
    """With a name and a kind; a newer agent may say more of it."""
    return (
        type(value) is dict
        and len(value) <= MAX_ENTRIES
        and {"name", "kind"} <= set(value)
        and all(fits(value[key]) for key, fits in _OF_A_PROCESSOR.items() if key in value)
    )


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_OF_A_PROCESSOR: dict[str, Callable[[Any], bool]] = dict(
    zip(
        KEYS,
        (
            lambda value: is_line(value, MAX_NAME),
            lambda value: is_line(value, MAX_KIND) and bool(value),
            _or_none(_is_count),
            _is_list,
            _or_none(_is_rate),
            _or_none(_is_count),
            lambda value: type(value) is bool,
            lambda value: is_line(value, MAX_REASON),
        ),
        strict=True,
    )
)

REQUIRED = object()

# key -> (check, what it must be, default, what it says)
FIELDS: dict[str, tuple[Callable[[Any], bool], str, Any, str]] = {
    "name": (
        is_device_name,
        "a device's name",
        REQUIRED,
        "as announced; two devices of one home never share it",
    ),
    "memory_bytes": (
        _is_positive,
        "a count above zero",
        REQUIRED,
        "what the owner lets potluck use for tensors",
    ),
    "backends": (
        _is_texts,
        "{name: version}",
        REQUIRED,
        "what can compute here: `torch`, `onnxruntime`",
    ),
    "dtypes": (_is_list, "a list of names", REQUIRED, "element types that the worker takes"),
    "operators": (
        _is_list,
        "a list of names",
        REQUIRED,
        "operators that a graph document may use here",
    ),
    "host": (
        _is_text,
        "a text",
        "",
        "the machine, and no other one: devices of one host share its processor",
    ),
    "platform": (_is_text, "a text", "", "operating system and processor, for people"),
    "hardware": (
        _is_list,
        "a list of names",
        [],
        "what its makers call the machine and its processor (since 1.8): its watts may be known by "
        "these names",
    ),
    "cores": (_or_none(_is_count), "a count or null", None, "processor cores"),
    "threads": (
        _or_none(_is_count),
        "a count or null",
        None,
        "threads that the worker computes with",
    ),
    "processors": (
        _is_processors,
        f"a list of {{{', '.join(KEYS)}}}",
        [],
        "what it can compute on (since 1.8): `name` for people, `kind` (`cpu`, or an accelerator), "
        "memory and element types, `flops_per_s` as measured when the agent began (null where it "
        "was not), `threads` of the CPU; `used`: whether the worker computes on it, and the "
        "`reason`",
    ),
    "connection": (
        _or_none(_is_connection),
        "{kind, bytes_per_s, frequency_hz, gateway} or null",
        None,
        "how it was connected when the agent began, as its system says (since 1.7): `wired` or "
        "`wifi`, the speed of the link, the WiFi channel's frequency, the gateway's address; null "
        "what it does not say",
    ),
    "battery_frac": (
        _or_none(_is_number),
        "a number or null",
        None,
        "charge, 0 to 1; null without a battery",
    ),
    "meters": (
        _is_meters,
        "a list of {name, source, reason, remedy}",
        [],
        "where power comes from (`measured`, `estimated`, `simulated`), or why a meter is absent "
        "and what would help",
    ),
    "power": (
        _or_none(lambda value: _is_numbers(value, {"idle_w", "busy_w", "radio_w"})),
        "{idle_w, busy_w, radio_w} or null",
        None,
        "the model behind estimated power",
    ),
    "emulated": (
        _or_none(lambda value: _is_numbers(value, {"slowdown", "link_bytes_per_s"})),
        "{slowdown, link_bytes_per_s} or null",
        None,
        "null: a real device. Otherwise how much slower than this machine it plays, and its "
        "paced link",
    ),
    "overhead_s": (
        _or_none(_is_time),
        "a number or null",
        None,
        "fixed cost of one instruction, measured",
    ),
    "copy_bytes_per_s": (
        _or_none(_is_rate),
        "a number or null",
        None,
        "speed of copying tensors, measured",
    ),
    "rules": (
        _is_list,
        "a list of texts",
        [],
        "the owner's rules of when it takes part, for people (since 1.8)",
    ),
    "leaving": (
        _is_text,
        "a text",
        "",
        "why it takes no new run now (since 1.8), see `Leaving`; empty: it does",
    ),
    "bounds": (
        _is_texts,
        "{name: what holds}",
        {},
        "what keeps the worker in its bounds here, see [Worker](#worker)",
    ),
    "version": (_is_version, "a version, as `1.0`", "1.0", "of the protocol, as `major.minor`"),
    "max_value_bytes": (
        _or_none(_is_count),
        "a count or null",
        None,
        "the largest single value it takes",
    ),
    "kept_bytes": (
        _or_none(_is_count),
        "a count or null",
        None,
        "what it keeps of weights between runs, at most (since 1.12); null: nothing",
    ),
}

# what the worker knows of all that
_OWN = ("backends", "dtypes", "operators", "overhead_s", "copy_bytes_per_s")
_FACTS = record(
    (*_OWN, "bounds", "memory_counted"),
    **{key: which(FIELDS[key][0], FIELDS[key][1]) for key in _OWN},
    bounds=which(_is_texts, "{name: what holds}"),
    memory_counted=text,
)
