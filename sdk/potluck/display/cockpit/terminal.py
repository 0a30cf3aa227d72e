"""The cockpit in a terminal: the sections of a page as tables of text. Pure, but for `follow`."""

import http.client
import struct
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from itertools import compress
from typing import Any
from urllib.parse import urlsplit

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from potluck import units
from potluck.display.cockpit.frames import FrameReader
from potluck.display.http_deadline import within
from potluck.errors import HomeError
from potluck.provenance import marked
from potluck.sanitized_text import harmless

LENGTH = struct.Struct("<I")
MOST_FRAME_BYTES = 64 << 20
MOST_EVENTS = 8
SILENCE_S = 30.0
BAR = 12  # letters


def screen(reader: FrameReader, width: int = 120) -> RenderableType:
    """All that fits a terminal: the run, the devices, the media, plans and the latest events.

    Of a narrow one, columns that matter less are left out.
    """
    sections = reader.sections
    parts: list[RenderableType] = [_headline(sections), _devices(sections, width)]
    if sections.get("media"):
        parts.append(_media(sections["media"]))
    if len(sections.get("plans", {})) > 1:
        parts.append(_plans(sections["plans"], width))
    return Group(*parts, *_events(reader))


def _headline(sections: Mapping[str, Any]) -> Text:
    run, headline = sections.get("run") or {}, Text()
    if sections.get("home", {}).get("closed"):
        return headline.append("the home is closed", style="bold")
    if not run:
        return headline.append(
            f"{units.number(len(sections.get('devices', {})), 'device')}, nothing runs"
        )
    headline.append(run["model"], style="bold")
    headline.append(f"  {run['state']}, {run['noun']} {run['n_done']}, plan by {run['planner']}")
    if "step_s" in run:
        headline.append(f"  {units.duration(run['step_s'])} a {run['noun']}")
    if "predicted_s" in run:
        headline.append(f", predicted {units.duration(run['predicted_s'])}", style="dim")
    return headline


def _ordered(things: Mapping[str, Any]) -> Iterator[Any]:
    return iter(sorted(things.values(), key=lambda item: item["at"]))


def _table(width: int, **columns: int) -> tuple[Table, list[bool]]:
    """A table of those columns that a terminal so wide has room for, and which they are."""
    table, fit = Table(box=None), [width >= least for least in columns.values()]
    for name in compress(columns, fit):
        title = name.replace("_", " ").strip()
        table.add_column(title, no_wrap=True, overflow="ellipsis", max_width=max(12, width // 4))
    return table, fit


def _devices(sections: Mapping[str, Any], width: int) -> Table:
    table, fit = _table(
        width, _=0, device=0, status=60, layers=40, memory=80, power=0, battery=100, port=100
    )
    for d in _ordered(sections.get("devices", {})):
        layers = ", ".join(f"{a}-{b - 1}" if b - a > 1 else str(a) for a, b in d.get("layers", []))
        memory = units.size(d["allowed"]) if "allowed" in d else ""
        if "used" in d:
            memory = f"{units.size(d['used'])} of {memory}"
        watts = (
            units.power(d["watts"]) + (" est." if d["estimated"] else "") if "watts" in d else ""
        )
        battery = units.percent(d["battery"]) if "battery" in d else ""
        port = " ".join(f"{way} {units.percent(load)}" for way, load in d.get("port", {}).items())
        lit = Text("●", style="green") if d["lit"] else Text("○", style="dim")
        cells = (d["shown"], d["status"], layers, memory, watts, battery, port)
        table.add_row(*compress((lit, *map(Text, cells)), fit))
    return table


def _media(media: Mapping[str, Any]) -> Table:
    table = Table("", "medium", "capacity", "load", box=None)
    for m in _ordered(media):
        full = round(BAR * m["load"])
        bar = Text("█" * full, style="red") + Text("░" * (BAR - full), style="dim")
        table.add_row(
            "", Text(m["shown"]), units.rate(m["rate"]), bar + f" {units.percent(m['load'])}"
        )
    return table


def _plans(plans: Mapping[str, Any], width: int) -> Table:
    table, fit = _table(width, _=0, plan=0, devices=70, time=0, energy=50, highest_memory=80)
    for p in [*_ordered(plans)][:6]:
        mark = Text("▶", style="red") if p["here"] else Text("")
        energy = marked(units.energy(p.get("j")), p.get("mark", ""))
        names = Text(", ".join(p["devices"]))
        figures = units.duration(p["s"]), energy, units.size(p["bytes"])
        table.add_row(*compress((mark, Text(p["planner"]), names, *map(Text, figures)), fit))
    return table


def _events(reader: FrameReader) -> list[Text]:
    latest = [*reader.texts.get("events", {}).values()][-MOST_EVENTS:]
    return [
        Text(f"{units.duration(event['at']):>8}  {harmless(event['words'])}", style="dim")
        for event in reversed(latest)
    ]


def follow(url: str) -> Iterator[FrameReader]:
    """The state after every frame that the page at `url` gets.

    Raises
    ------
    HomeError
        Nobody answers there.
    """
    reader = FrameReader()
    with closing(frames(url)) as coming:
        try:
            yield from (reader for frame in coming if reader.take(frame))
        except (ValueError, struct.error) as error:
            raise _silent() from error


def frames(url: str) -> Generator[bytes, None, None]:
    """Every frame that the page at `url` gets.

    Raises
    ------
    HomeError
        Nobody answers there.
    """
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=SILENCE_S)
    try:
        connection.connect()
        peer = connection.sock
        with within(peer, SILENCE_S):
            connection.request("GET", f"{where.path}frames")
            stream = connection.getresponse()
        if stream.status != http.HTTPStatus.OK:
            raise HomeError(
                f"the page lets nobody else look now (HTTP {stream.status}).",
                next_step="Close another page of this home, and try again.",
            )
        while head := stream.read(LENGTH.size):
            (length,) = LENGTH.unpack(head)
            if length > MOST_FRAME_BYTES:
                raise HomeError("the page sends frames that are too long.")
            with within(peer, SILENCE_S):
                frame = stream.read(length)
            yield frame
    except (OSError, http.client.HTTPException, struct.error) as error:
        raise _silent() from error
    finally:
        connection.close()


def _silent() -> HomeError:
    return HomeError("the process that has this home open answers no more.")
