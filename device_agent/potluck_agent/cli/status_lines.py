"""What a person is told of an agent, when it starts and when somebody asks: one function for each
line of facts, from one document.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from potluck_agent.log_file import printable
from potluck_agent.worker.arrays.backends import NOTHING
from potluck_wire.install_hints import install
from potluck_wire.processors import words

GIB = 1024**3
WIDTH = 15
MORE = {
    "torch": f"no torch, so it trains nothing: {install('torch')}",
    "onnxruntime": f"no onnxruntime, so it runs no ONNX models: {install('onnx')}",
}


def facts_of(document: Mapping[str, Any]) -> list[str]:
    """Aligned lines `label  fact`; of what is not known there is none."""
    lines = [f"potluck agent {document['name']}"]
    for label, facts in LINES.items():
        for number, fact in enumerate(facts(document)):
            lines.append(f"  {'' if number else label:<{WIDTH}}{printable(fact)}")
    return lines


def next_step(document: Mapping[str, Any]) -> str:
    """What to do now."""
    if not document["notebooks"]:
        return (
            "Now run `potluck agent pair` in a second terminal: it shows a code for your notebook."
        )
    return "Another notebook? Run `potluck agent pair` in a second terminal."


def _addresses(document: Mapping[str, Any]) -> Iterator[str]:
    port = document["port"]
    yield f"{', '.join(document['addresses'])}, ports {port} to {port + 3}"


def _relay(document: Mapping[str, Any]) -> Iterator[str]:
    if document.get("relay"):
        yield document["relay"]


def _fingerprint(document: Mapping[str, Any]) -> Iterator[str]:
    yield document["fingerprint"]


def _computes(document: Mapping[str, Any]) -> Iterator[str]:
    """Its processors where its statement names them, else the libraries alone."""
    statement = document["statement"]
    libraries = ", ".join(f"{name} {version}" for name, version in document["backends"].items())
    yield libraries or "nothing"
    yield from words(statement.get("processors", ()), statement.get("cores"))


def _threads(document: Mapping[str, Any]) -> Iterator[str]:
    statement = document["statement"]
    if statement.get("threads") is not None:
        of = f" (this machine has {statement['cores']} cores)" if statement.get("cores") else ""
        yield f"{statement['threads']}{of}"


def _memory(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"{document['statement']['memory_bytes'] / GIB:.1f} GiB for tensors"


def _power(document: Mapping[str, Any]) -> Iterator[str]:
    meters: Sequence[Mapping[str, str]] = document["statement"].get("meters", ())
    measuring = [row["name"] for row in meters if row.get("source") == "measured"]
    watts = document["statement"].get("power")
    if measuring:
        yield f"measured by {', '.join(measuring)}"
    elif watts:
        yield f"modelled: {watts['idle_w']:g} W idle, {watts['busy_w']:g} W busy"
    else:
        yield "no meter: its watts are assumed, unless --power says them"


def _connection(document: Mapping[str, Any]) -> Iterator[str]:
    found = document["statement"].get("connection") or {}
    words = [
        {"wired": "cable", "wifi": "WiFi"}.get(found.get("kind") or ""),
        f"{found['bytes_per_s'] * 8 / 1e6:.0f} Mbit/s" if found.get("bytes_per_s") else None,
        f"{found['frequency_hz'] / 1e9:.2f} GHz" if found.get("frequency_hz") else None,
        f"gateway {found['gateway']}" if found.get("gateway") else None,
    ]
    if any(words):
        yield ", ".join(word for word in words if word)


def _takes_part(document: Mapping[str, Any]) -> Iterator[str]:
    """When, by its owner's rules; and that it does not now."""
    statement = document["statement"]
    if statement.get("rules"):
        yield ", ".join(statement["rules"])
    if statement.get("leaving"):
        yield f"not now: {statement['leaving']}"


def _lacks(document: Mapping[str, Any]) -> Iterator[str]:
    present = document["backends"]
    if not present:
        yield NOTHING
    elif not document.get("chosen_backends"):  # its owner left out what is not chosen
        yield from (text for name, text in MORE.items() if name not in present)


def _notebooks(document: Mapping[str, Any]) -> Iterator[str]:
    for peer in document["notebooks"]:
        connected = ", connected" if peer["connected"] else ""
        yield f"{peer['name']} ({peer['fingerprint']}){connected}"
    if not document["notebooks"]:
        yield "nobody yet"


def _log(document: Mapping[str, Any]) -> Iterator[str]:
    yield document["log"]


LINES: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "listens on": _addresses,
    "relay": _relay,
    "fingerprint": _fingerprint,
    "computes with": _computes,
    "threads": _threads,
    "memory": _memory,
    "power": _power,
    "connection": _connection,
    "takes part": _takes_part,
    "lacks": _lacks,
    "paired with": _notebooks,
    "log": _log,
}
