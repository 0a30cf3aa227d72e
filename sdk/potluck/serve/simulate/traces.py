"""Arrivals from a file of one's own in the form of the public traces: their text in, arrivals out.

Azure Functions 2021: `app,func,end_timestamp,duration`, seconds. A call begins at its end less its
duration. Azure LLM inference 2023: `TIMESTAMP,ContextTokens,GeneratedTokens`, a date and time of
day. Reading the file is the caller's.
"""

import calendar
import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from potluck.errors import FileError
from potluck.serve.scheduling.records import Frequency, Request, ServiceSpec
from potluck.serve.simulate.arrivals import ANSWER, FRAMES, Arrival, request

FUNCTION_COLUMNS = ["app", "func", "end_timestamp", "duration"]
LLM_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_CLOCK = re.compile(
    r"(?:(\d{4})-(\d\d)-(\d\d)[ T])?([01]\d|2[0-3]):([0-5]\d):([0-5]\d(?:\.\d+)?)(?:Z|\+00:00)?"
)


def function_arrivals(
    lines: Iterable[str],
    services: Sequence[ServiceSpec],
    servers: Sequence[str],
    rng: Random,
    *,
    speed: float = 1.0,
    n_frames: int = FRAMES,
) -> list[Arrival]:
    """Calls of an Azure Functions trace: functions go to services and servers in turn.

    Parameters
    ----------
    lines
        Of the file, the header first.
    services
        In turn for each function as it first appears.
    servers
        The entrances, likewise.
    rng
        For what the trace does not say: lengths of answers.
    speed
        How many times faster than recorded.
    n_frames
        Of a stream.

    Raises
    ------
    FileError
        If a line is not of this form; names it.
    """
    called: dict[tuple[str, str], int] = {}
    calls = []
    for number, row in _rows(lines, FUNCTION_COLUMNS):
        end_s, duration_s = _number(row[2], number), _number(row[3], number)
        function = called.setdefault((row[0], row[1]), len(called))
        calls.append(((end_s - duration_s) / speed, function))
    calls.sort()
    first_s = calls[0][0] if calls else 0.0
    return [
        Arrival(
            server=servers[function % len(servers)],
            request=request(
                index, services[function % len(services)], at_s - first_s, n_frames, rng
            ),
        )
        for index, (at_s, function) in enumerate(calls)
    ]


def llm_arrivals(
    lines: Iterable[str], service: ServiceSpec, servers: Sequence[str], *, speed: float = 1.0
) -> list[Arrival]:
    """Requests of an Azure LLM inference trace for one service, at the servers in turn.

    An answer takes as much longer than the mean one as it has more tokens.

    Parameters
    ----------
    lines
        Of the file, the header first.
    service
        With a latency limit.
    servers
        The entrances.
    speed
        How many times faster than recorded.

    Raises
    ------
    FileError
        If a line is not of this form, or the service has no latency limit.
    """
    if isinstance(service.slo, Frequency):
        raise FileError(f"service {service.name} is a stream; these are single requests.")
    rows = sorted(
        (_clock_s(row[0], number) / speed, _number(row[2], number))
        for number, row in _rows(lines, LLM_COLUMNS)
    )
    first_s = rows[0][0] if rows else 0.0
    found = []
    for index, (at_s, tokens) in enumerate(rows):
        work = max(1.0, tokens) / ANSWER.mean
        arrived_s = at_s - first_s
        deadline_s = arrived_s + service.slo.limit_s * max(1.0, work)
        request = Request(index, service.name, arrived_s, deadline_s, work=work)
        found.append(Arrival(server=servers[index % len(servers)], request=request))
    return found


def _rows(lines: Iterable[str], columns: list[str]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines)
    try:
        header = next(reader, [])
        if [name.strip() for name in header] != columns:
            raise FileError(f"line 1: expected {','.join(columns)}, got {','.join(header)[:80]!r}.")
        for row in reader:
            if len(row) != len(columns):
                raise FileError(
                    f"line {reader.line_num}: expected {len(columns)} fields, got {len(row)}."
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise FileError(f"line {reader.line_num}: this is no CSV ({error}).") from error


def _number(text: str, line: int) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise FileError(f"line {line}: expected a number, not below zero, got {text[:40]!r}.")
    return number


def _clock_s(text: str, line: int) -> float:
    """Seconds since 1970; of times without a date, since midnight."""
    match = _CLOCK.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        year, month, day, hours, minutes, seconds = match.groups(default="0")
        date = int(year), int(month), int(day)
        if match[1] is None:
            date = 1970, 1, 1
        elif not 1 <= date[2] <= calendar.monthrange(*date[:2])[1]:
            raise ValueError
    except ValueError:
        raise FileError(f"line {line}: expected a date and time, got {text[:40]!r}.") from None
    return calendar.timegm((*date, int(hours), int(minutes), 0)) + float(seconds)
