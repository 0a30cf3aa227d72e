"""The parts of PROTOCOL.md that are made from the code.

`python -m tests.wire.protocol_text` writes them anew.
"""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_origin

from potluck_wire import limits
from potluck_wire.errors import WireCode
from potluck_wire.messages import MESSAGES, Channel, FailureCause, MessageEntry, RefusalCode
from potluck_wire.program import ARITY, OPERATIONS, OPTIONAL
from potluck_wire.session import EPOCH, REFUSED, SESSION
from potluck_wire.statement import FIELDS, REQUIRED
from potluck_wire.tensors import DTYPES

PROTOCOL = Path(__file__).parents[2] / "device_agent" / "PROTOCOL.md"


def render(text: str) -> str:
    """`text` with every generated part, between its two marks, made anew."""
    for name, part in PARTS.items():
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, count = re.subn(
            pattern, lambda match, part=part: f"{match[1]}{part()}{match[2]}", text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"PROTOCOL.md must have the part {name} once, has it {count} times")
    return text


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def _type(annotation: Any) -> str:
    if get_origin(annotation) is tuple:
        return f"[{get_args(annotation)[0].__name__}]"
    return str(annotation.__name__)


def _message(number: int, entry: MessageEntry) -> str:
    fewest, most = entry.buffers
    buffers = {(0, 0): "no buffers", (1, 1): "1 buffer"}.get(
        (fewest, most), f"{fewest} to {most} buffers"
    )
    lines = [f"#### {number} `{entry.type.__name__}`", "", f"From {entry.sender}, {buffers}.", ""]
    lines += [inspect.cleandoc(entry.type.__doc__ or ""), ""]
    fields = dataclasses.fields(entry.type)
    if fields:
        default = {
            field.name: "[]" if field.default == () else repr(field.default) for field in fields
        }
        rows = [
            (f"`{field.name}`", _type(field.type), f"`{default[field.name]}`") for field in fields
        ]
        lines.append(_table(("field", "type", "default"), rows))
    return "\n".join(lines)


def messages(channel: Channel) -> str:
    """Every message of a channel with its fields."""
    entries = [(number, entry) for number, entry in MESSAGES.items() if entry.channel is channel]
    return "\n" + "\n".join(_message(number, entry) for number, entry in entries) + "\n"


def _constants(text: str) -> list[tuple[str, str, str]]:
    """(name, value, comment) of the plain constants in a module's source, in order."""
    found = []
    for line in text.splitlines():
        match = re.match(r"([A-Z][A-Z_0-9]*)(?:: [^=]+)? = [^#]*?(?:  # (.*))?$", line)
        if match and isinstance(getattr(limits, match[1], None), int | float | str):
            found.append((match[1], _shown(match[1], getattr(limits, match[1])), match[2] or ""))
    return found


def _shown(name: str, value: Any) -> str:
    if name.endswith("_BYTES"):
        for unit, size in (("MiB", limits.MIB), ("KiB", limits.KIB)):
            if value >= size and value % size == 0:
                return f"{value // size} {unit}"
        return f"{value} bytes"
    if name.endswith("_PER_S"):
        return f"{value:,.0f} a second"
    if name.endswith("_S"):
        return f"{value:g} s"
    return "2**53" if value == 2**53 else str(value)


def limit_table() -> str:
    """Every cap and number that both sides share."""
    rows = _constants(inspect.getsource(limits))
    return _table(
        ("name", "value", "why"), [(f"`{n}`", v, w) for n, v, w in rows if n not in ("KIB", "MIB")]
    )


def _transitions(table: Any) -> dict[tuple[str, str], list[str]]:
    """(state, next state) -> the messages that lead there, with refusals."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for (state, message), after in table.items():
        grouped.setdefault((state.value, after.value), []).append(message.__name__)
    if table is EPOCH:
        for (state, message), after in REFUSED.items():
            grouped.setdefault((state.value, after.value), []).append(
                f"Refused ({message.__name__})"
            )
    return grouped


def state_table(table: Any) -> str:
    """A transition table, and its changes as a diagram."""
    grouped = _transitions(table)
    order = list(dict.fromkeys(state.value for state, _ in table))
    grouped = dict(sorted(grouped.items(), key=lambda item: order.index(item[0][0])))
    rows = [
        (state, ", ".join(f"`{m}`" for m in names), after)
        for (state, after), names in grouped.items()
    ]
    arrows = [
        f"    {state} --> {after}: {', '.join(names)}"
        for (state, after), names in grouped.items()
        if state != after
    ]
    diagram = "\n".join(
        ["```mermaid", "stateDiagram-v2", f"    [*] --> {order[0]}", *arrows, "```"]
    )
    return f"{diagram}\n\n{_table(('state', 'message', 'next state'), rows)}"


def codes(kind: type) -> str:
    """The constants of a class of codes, with their comments."""
    pairs = re.findall(
        r'^    [A-Z_]+ = "([^"]+)"(?:  # (.*))?$', inspect.getsource(kind), flags=re.MULTILINE
    )
    return _table(("code", "meaning"), [(f"`{code}`", meaning) for code, meaning in pairs])


def operations() -> str:
    """The closed set of instructions."""

    def count(bounds: tuple[int, int]) -> str:
        return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]}..{bounds[1]}"

    def words(op: str) -> str:
        every = [f"`{name}`" for name in sorted(OPERATIONS[op])]
        return (
            ", ".join([*every, *(f"perhaps `{name}`" for name in sorted(OPTIONAL.get(op, ())))])
            or "none"
        )

    rows = [(f"`{op}`", *map(count, ARITY[op]), words(op)) for op in OPERATIONS]
    return _table(("operation", "inputs", "outputs", "attributes"), rows)


def statement() -> str:
    """The keys of the capability statement."""
    rows = [
        (
            f"`{key}`",
            expected,
            "required" if default is REQUIRED else f"`{_json(default)}`",
            meaning,
        )
        for key, (_, expected, default, meaning) in FIELDS.items()
    ]
    return _table(("key", "is", "default", "says"), rows)


def _json(value: Any) -> str:
    return "null" if value is None else str(value).replace("'", '"') or '""'


def dtypes() -> str:
    """Element types and sizes."""
    return _table(("dtype", "bytes"), [(f"`{name}`", str(size)) for name, size in DTYPES.items()])


PARTS = {
    **{
        f"{channel.value} messages": lambda channel=channel: messages(channel)
        for channel in Channel
    },
    "limits": limit_table,
    "session states": lambda: state_table(SESSION),
    "epoch states": lambda: state_table(EPOCH),
    "refusal codes": lambda: codes(RefusalCode),
    "failure causes": lambda: codes(FailureCause),
    "wire codes": lambda: codes(WireCode),
    "operations": operations,
    "statement": statement,
    "dtypes": dtypes,
}

if __name__ == "__main__":
    PROTOCOL.write_text(render(PROTOCOL.read_text()))
