"""The network of a home as a document to read, edit and give back: which media there are, who
shares them, how fast they are, and how sure that is. Pure.

Rows are nested sets of devices. A `switch` row gives each of its devices a port of its own. All
devices of an `air` share one channel, which a flow between two of them crosses twice; on a `bus` it
crosses it once. An `uplink` joins what is behind it to all others: an air or a switch whose devices
are all among those of an uplink is behind it. An uplink whose devices are some of those of an air
is one station of that air.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan

from potluck.display_hooks import Tabular
from potluck.errors import UserError
from potluck.records import HOME, Network, Path
from potluck_wire.limits import is_device_name

AIR = "air"
BUS = "bus"
SWITCH = "switch"
UPLINK = "uplink"
KINDS = (AIR, BUS, SWITCH, UPLINK)
SHARED = (AIR, BUS)  # one medium both ways

MEASURED = "measured"
DECLARED = "declared"
LEARNED = "learned"
SOURCES = (MEASURED, DECLARED, LEARNED)
LONGEST_NAME = 200
MAX_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number, its standard error as a part of it, and where it comes from. None: nobody knows the
    error; infinite: nothing has filled the medium yet, it is this at least.
    """

    value: float
    error_frac: float | None = None
    source: str = DECLARED

    def __post_init__(self) -> None:
        if not 0 <= self.value < inf:
            raise UserError(f"a figure must be a finite number, 0 or more, got {self.value!r}.")
        if self.error_frac is not None and (isnan(self.error_frac) or self.error_frac < 0):
            raise UserError(f"error_frac must be a part, 0 or more, got {self.error_frac!r}.")
        if self.source not in SOURCES:
            raise UserError(f"a source is one of {', '.join(SOURCES)}, got {self.source!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMedium:
    """One row of the document. No rate: it is never full, or nobody knows it yet.

    `up_bytes_per_s` is what one device sends at most; without `down_bytes_per_s` both ways share
    it. `latency_s` is of one crossing, `jitter_s` how far the middle half of such waits lie apart.
    `stations`: devices of an air or a bus with rates of their own, which is else that of the row.
    """

    name: str
    kind: str
    devices: tuple[str, ...]
    up_bytes_per_s: Figure | None = None
    down_bytes_per_s: Figure | None = None
    latency_s: Figure | None = None
    jitter_s: float | None = None
    stations: Mapping[str, Figure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > LONGEST_NAME or not self.name.isprintable():
            raise UserError(
                f"a medium needs a name of 1 to {LONGEST_NAME} printable characters, got "
                f"{self.name[:80]!r}."
            )
        if self.kind not in KINDS:
            raise self._wrong(f"kind is one of {', '.join(KINDS)}, got {self.kind!r}.")
        if len(set(self.devices)) != len(self.devices) or not self.devices:
            raise self._wrong(f"devices are one or more, each once, got {list(self.devices)}.")
        if self.kind in SHARED and len(self.devices) < 2:
            raise self._wrong(
                f"one device alone shares no {self.kind}.",
                "Make it a switch; without down_bytes_per_s both ways share its port.",
            )
        if self.kind == UPLINK and len(self.devices) < 2:
            raise self._wrong("one device alone has no uplink but its port.", "Make it a switch.")
        if self.kind in SHARED and self.down_bytes_per_s is not None:
            raise self._wrong(
                f"an {self.kind} is one medium both ways, but down_bytes_per_s is given.",
                "Leave it out.",
            )
        if self.down_bytes_per_s is not None and self.up_bytes_per_s is None:
            raise self._wrong("down_bytes_per_s is given, but no up_bytes_per_s.")
        if not set(self.stations) <= (set(self.devices) if self.kind in SHARED else set()):
            raise self._wrong(
                f"stations are devices of an air or a bus, got {sorted(self.stations)}."
            )
        if any(figure.value <= 0 for figure in self.rates.values()):
            raise self._wrong("a rate must be above zero.", "Leave out what nobody knows.")
        if self.jitter_s is not None and not 0 <= self.jitter_s < inf:
            raise self._wrong(f"jitter_s must be 0 or more, got {self.jitter_s!r}.")

    @property
    def rates(self) -> dict[str, Figure]:
        """All bytes per second that it names, by where they are named."""
        named = {"up_bytes_per_s": self.up_bytes_per_s, "down_bytes_per_s": self.down_bytes_per_s}
        return {key: figure for key, figure in named.items() if figure is not None} | {
            f"stations.{name}": figure for name, figure in self.stations.items()
        }

    def _wrong(self, what: str, next_step: str = "") -> UserError:
        return UserError(f"medium {self.name!r}: {what}", next_step=next_step)


@dataclass(frozen=True, repr=False, kw_only=True)
class HomeNetwork(Tabular):
    """How the devices of a home are connected: what the owner reads, corrects with
    `dataclasses.replace` or as TOML, and gives back to `home.profile(model, network=...)`.

    A row speaks of a machine by the first of its devices, of the notebook's own as `home`.
    `is_declared`: the owner has said so, and profiles keep to these rows. `beside`: the paths that
    no row joins, such as those inside one machine, and all of a home that is played.
    """

    media: tuple[SharedMedium, ...] = ()
    is_declared: bool = False
    beside: Network | None = None

    def __post_init__(self) -> None:
        check(self.media)

    @property
    def devices(self) -> tuple[str, ...]:
        """All that rows speak of."""
        return tuple(dict.fromkeys(name for row in self.media for name in row.devices))

    @property
    def records(self) -> Network:
        """It as planners take it: by its rows, or as it is played where it has none."""
        from potluck.profile.network_rows import network

        if not self.media and self.beside is not None:
            return self.beside
        return network(self, self.devices)

    def path(self, source: str, target: str) -> Path:
        """The path from `source` to `target`.

        Raises
        ------
        UserError
            Nothing is known of the two.
        """
        known = set(self.devices)
        if {source, target} <= known or self.beside is None:
            return self.records.path(source, target)
        return self.beside.path(source, target)

    def bandwidth(self, source: str, target: str) -> float:
        """Bytes per second of one flow alone on its path; infinite from a device to itself."""
        if {source, target} <= set(self.devices) or self.beside is None:
            return self.records.bandwidth(source, target)
        return self.beside.bandwidth(source, target)

    def latency(self, source: str, target: str) -> float:
        """Seconds before the first byte arrives."""
        return 0.0 if source == target else self.path(source, target).latency_s

    def about(self, machines: Mapping[str, str]) -> "HomeNetwork":
        """The rows of these machines alone; a row with too few of them becomes a port, or goes.

        Parameters
        ----------
        machines
            Per device, what rows call the machine that it is on.
        """
        speaking: dict[str, str] = {}  # one device of each machine, that of its name if it is here
        for name in self.devices:
            machine = machines.get(name)
            if machine is not None and (machine not in speaking or name == machine):
                speaking[machine] = name
        named = {name: machine for machine, name in speaking.items()}
        return replace(self, media=tuple(_left(self.media, named, set(machines.values()))))

    def refreshed_by(self, measured: "HomeNetwork") -> "HomeNetwork":
        """All its rows, with the figures that were measured of those that are still there, and the
        rows of devices that it does not know.

        Parameters
        ----------
        measured
            Of some of the devices.
        """
        found = {(row.name, row.kind): row for row in measured.media}
        rows = tuple(_refreshed(row, found.get((row.name, row.kind))) for row in self.media)
        new = (row for row in measured.media if not set(row.devices) & set(self.devices))
        return replace(self, media=(*rows, *new))

    def joined_by(self, names: Iterable[str]) -> "HomeNetwork":
        """The rows, and a port of its own for each of these devices that none is about, but for
        uplinks.
        """
        behind = {
            (row.name, name)
            for row in self.media
            for uplink in self.media
            if uplink.kind == UPLINK and set(uplink.devices) < set(row.devices)
            for name in uplink.devices
        }
        joined = {
            name
            for row in self.media
            for name in row.devices
            if row.kind != UPLINK and (row.name, name) not in behind
        }
        taken = {row.name for row in self.media}
        ports = tuple(
            SharedMedium(name=_other(f"port of {name}", taken), kind=SWITCH, devices=(name,))
            for name in names
            if name not in joined
        )
        return replace(self, media=self.media + ports)


def _refreshed(row: SharedMedium, new: SharedMedium | None) -> SharedMedium:
    """The row with the figures of a newer one of some of its devices."""
    if new is None:
        return row
    return replace(
        row,
        up_bytes_per_s=new.up_bytes_per_s or row.up_bytes_per_s,
        down_bytes_per_s=new.down_bytes_per_s or row.down_bytes_per_s,
        latency_s=new.latency_s or row.latency_s,
        jitter_s=row.jitter_s if new.jitter_s is None else new.jitter_s,
        stations={**row.stations} | {n: it for n, it in new.stations.items() if n in row.devices},
    )


def _other(name: str, taken: Collection[str]) -> str:
    """The name, or one like it that nobody has."""
    while name in taken:
        name += "'"
    return name


def check(media: tuple[SharedMedium, ...]) -> None:
    """Refuse rows that no tree of switches has.

    Parameters
    ----------
    media
        All rows of a document.

    Raises
    ------
    UserError
        A name is there twice or is none, or two rows overlap.
    """
    if len(media) > MAX_ROWS:
        raise UserError(f"a network has {MAX_ROWS} media at most, got {len(media)}.")
    seen: set[str] = set()
    for row in media:
        if row.name in seen:
            raise UserError(f"two media are called {row.name!r}.", next_step="Rename one.")
        seen.add(row.name)
        for name in row.devices:
            if name != HOME and not is_device_name(name):
                raise UserError(f"medium {row.name!r}: {name!r} is no name of a device.")
    uplinks = [set(row.devices) for row in media if row.kind == UPLINK]
    for i, one in enumerate(media):
        for other in media[:i]:
            _check_pair(other, one, uplinks)


def _check_pair(one: SharedMedium, other: SharedMedium, uplinks: list[set[str]]) -> None:
    """Rows share no devices, or an uplink lies between them or is one of them."""
    a, b = set(one.devices), set(other.devices)
    less, more = (a, b) if a < b else (b, a)
    if not a & b or (
        UPLINK not in (one.kind, other.kind) and any(less <= behind < more for behind in uplinks)
    ):
        return
    both = f"{', '.join(sorted(a & b))} in {one.name!r} and in {other.name!r}"
    if UPLINK not in (one.kind, other.kind):
        raise UserError(
            f"a device has one medium beside uplinks, got {both}.",
            next_step="An uplink of a part of them would say what is behind what.",
        )
    if not (a <= b or b <= a):
        raise UserError(
            f"{one.name!r} and {other.name!r} overlap: {both}.",
            next_step="What is behind an uplink is behind it with all its devices.",
        )
    if a == b and one.kind == other.kind:
        raise UserError(f"{one.name!r} and {other.name!r} are uplinks of the same devices.")
    inner, outer = (one, other) if a < b else (other, one)
    if a != b and inner.kind == UPLINK and outer.kind == SWITCH:
        raise UserError(
            f"the uplink {inner.name!r} is among the ports of {outer.name!r}.",
            next_step=f"Leave {', '.join(sorted(inner.devices))} out of {outer.name!r}.",
        )
    if a != b and inner.kind == UPLINK and outer.kind in SHARED and inner.down_bytes_per_s:
        raise UserError(
            f"the uplink {inner.name!r} is a station of {outer.name!r}, which is one medium both "
            "ways, but has a down_bytes_per_s.",
            next_step="Leave it out.",
        )


def _left(
    media: tuple[SharedMedium, ...], machines: Mapping[str, str], everybody: set[str]
) -> Iterator[SharedMedium]:
    def left(row: SharedMedium) -> tuple[str, ...]:
        return tuple(dict.fromkeys(machines[name] for name in row.devices if name in machines))

    behind: set[frozenset[str]] = {frozenset(everybody)}  # nothing is on the other side
    uplinks = [row for row in media if row.kind == UPLINK]
    rows, alone = list[SharedMedium](), dict[str, SharedMedium]()
    for row in media:
        devices = left(row)
        if not devices or (row.kind == UPLINK and frozenset(devices) in behind):
            continue
        if row.kind == UPLINK:
            behind.add(frozenset(devices))
        if row.kind == UPLINK and len(devices) < 2:
            alone[devices[0]] = replace(row, devices=devices, kind=SWITCH)
            continue
        if row.kind in SHARED and any(
            set(uplink.devices) < set(row.devices) and set(devices) <= set(left(uplink))
            for uplink in uplinks
        ):
            continue  # of its stations only that uplink is left
        stations = {machines[name]: it for name, it in row.stations.items() if name in machines}
        kind = SWITCH if row.kind in SHARED and len(devices) < 2 else row.kind
        own = stations.get(devices[0]) if kind != row.kind else None
        rows.append(
            replace(
                row,
                devices=devices,
                kind=kind,
                stations={} if kind != row.kind else stations,
                up_bytes_per_s=own or row.up_bytes_per_s,
            )
        )
    yield from _joined(rows, alone)


def _joined(rows: Sequence[SharedMedium], alone: dict[str, SharedMedium]) -> Iterator[SharedMedium]:
    """The rows, and those of devices that are `alone` behind an uplink: it is the station of an
    air, or the port, that such a device has.
    """
    ports = {name: row for row in rows if row.kind == SWITCH for name in row.devices}
    alone |= {name: _in_series(alone[name], ports[name]) for name in alone if name in ports}
    behind = set(alone)
    for row in rows:
        if row.kind in SHARED:
            found = {name: alone.pop(name).rates for name in row.devices if name in alone}
            rates = {name: _slowest(*each.values()) for name, each in found.items() if each}
            yield replace(row, stations={**row.stations, **rates})
        elif row.kind == SWITCH:
            others = tuple(name for name in row.devices if name not in behind)
            if others:
                yield replace(row, devices=others)
        else:
            yield row
    yield from alone.values()


def _in_series(uplink: SharedMedium, port: SharedMedium) -> SharedMedium:
    """A port as slow as both."""
    rows = (uplink, port)
    ups = [row.up_bytes_per_s for row in rows if row.up_bytes_per_s is not None]
    downs = [row.down_bytes_per_s or row.up_bytes_per_s for row in rows if row.up_bytes_per_s]
    is_half = all(row.down_bytes_per_s is None for row in rows)
    return replace(
        uplink,
        up_bytes_per_s=_slowest(*ups) if ups else None,
        down_bytes_per_s=None if is_half else _slowest(*filter(None, downs)),
    )


def _slowest(*rates: Figure) -> Figure:
    return min(rates, key=lambda rate: rate.value)
