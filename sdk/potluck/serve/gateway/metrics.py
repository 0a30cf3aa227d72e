"""What Prometheus scrapes: counts and times of every service, in its text format. Pure."""

from collections.abc import Callable, Iterable, Mapping

from potluck.serve.stats import BUCKETS_S, ServiceStats, TextStats

TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text(services: Mapping[str, ServiceStats], devices: Mapping[str, Mapping[str, int]]) -> str:
    """The page.

    Parameters
    ----------
    services
        What each has done.
    devices
        Those that have each service now, those that write among them; each with the rows that it
        takes at once.
    """
    lines = [
        *_metric("requests_total", "counter", "Requests that came", services, _requests),
        *_metric("answers_total", "counter", "Requests that were answered", services, _answered),
        *_metric("late_total", "counter", "Answers after the limit", services, _late),
        *_metric("refused_total", "counter", "Requests that were refused", services, _refused),
        *_metric("failed_total", "counter", "Requests that failed", services, _failed),
        *_metric("again_total", "counter", "Rows computed again after a loss", services, _again),
        *_metric("under_way", "gauge", "Requests without an answer yet", services, _under_way),
        *_metric("rows_total", "counter", "Rows that each device computed", services, _rows),
    ]
    lines += _head("devices", "gauge", "Devices that have it")
    lines += [_line("devices", {"service": n}, len(d)) for n, d in devices.items()]
    lines += _head("batch_rows", "gauge", "Rows at once on each device that has it")
    for name, at_once in devices.items():
        for device, rows in at_once.items():
            lines.append(_line("batch_rows", {"service": name, "device": device}, rows))
    lines += _head("latency_seconds", "histogram", "Seconds from request to answer")
    for name, stats in services.items():
        lines += _histogram(name, stats)
    return "\n".join(lines) + "\n"


def texts(services: Mapping[str, TextStats]) -> str:
    """The part of the page that is about services which write; empty where there is none.

    Parameters
    ----------
    services
        What each has written.
    """
    if not services:
        return ""
    kinds: list[tuple[str, str, str, Callable[[TextStats], float]]] = [
        ("texts_total", "counter", "Texts that were asked for", lambda s: s.n_asked),
        ("texts_refused_total", "counter", "Texts that were refused", lambda s: s.n_refused),
        ("texts_failed_total", "counter", "Texts that failed", lambda s: s.n_failed),
        ("texts_under_way", "gauge", "Texts that are written, or wait", lambda s: s.n_under_way),
        ("tokens_total", "counter", "Tokens that were written", lambda s: s.n_tokens),
        ("tokens_seconds_total", "counter", "Seconds that they took", lambda s: s.total_s),
    ]
    lines = []
    for name, kind, about, value in kinds:
        lines += _head(name, kind, about)
        lines += [_line(name, {"service": n}, value(stats)) for n, stats in services.items()]
    return "\n".join(lines) + "\n"


Rows = Iterable[tuple[Mapping[str, str], float]]


def _requests(stats: ServiceStats) -> Rows:
    return [({}, stats.n_asked)]


def _answered(stats: ServiceStats) -> Rows:
    return [({}, stats.n_answered)]


def _late(stats: ServiceStats) -> Rows:
    return [({}, stats.n_late)]


def _refused(stats: ServiceStats) -> Rows:
    return [({"reason": reason}, n) for reason, n in stats.refused.items()]


def _failed(stats: ServiceStats) -> Rows:
    return [({}, stats.n_failed)]


def _again(stats: ServiceStats) -> Rows:
    return [({}, stats.n_again)]


def _under_way(stats: ServiceStats) -> Rows:
    return [({}, stats.n_under_way)]


def _rows(stats: ServiceStats) -> Rows:
    return [({"device": device}, n) for device, n in stats.by_device.items()]


def _metric(
    name: str,
    kind: str,
    about: str,
    services: Mapping[str, ServiceStats],
    rows: Callable[[ServiceStats], Rows],
) -> list[str]:
    lines = _head(name, kind, about)
    for service, stats in services.items():
        lines += [_line(name, {"service": service, **more}, n) for more, n in rows(stats)]
    return lines


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP potluck_{name} {about}.", f"# TYPE potluck_{name} {kind}"]


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"potluck_{name}{{{pairs}}} {value}" if pairs else f"potluck_{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _histogram(name: str, stats: ServiceStats) -> list[str]:
    counts = stats.buckets or (0,) * len(BUCKETS_S)
    bounds = [*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"]
    lines = [
        _line("latency_seconds_bucket", {"service": name, "le": bound}, n)
        for bound, n in zip(bounds, (*counts, stats.n_answered), strict=True)
    ]
    lines.append(_line("latency_seconds_sum", {"service": name}, stats.total_s))
    lines.append(_line("latency_seconds_count", {"service": name}, stats.n_answered))
    return lines
