"""The library of known devices, networks, homes and models: `profiles/`, read strictly.

Every number says whence.

A number is `{ value, basis, source }`, basis one of measured, specification, estimate. What nobody
knows is absent, and asking for it is an error that names the field and the file, unless a home
states its own estimate with a reason.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from potluck.documents import file_path, read_text, read_toml
from potluck.errors import FileError, UserError
from potluck.graph.modelgraph import ModelGraph
from potluck.profile.roofline import copy_bytes_per_s
from potluck.profile.topology import TOPOLOGIES, Attachment, Cable, HomeWiring, build
from potluck.records import HOME, Device, Network
from potluck_wire.statement import BACKEND_OF

BASES = ("measured", "specification", "estimate")
SUFFIX = {"devices": ".toml", "networks": ".toml", "homes": ".toml", "models": ".json"}
DEVICE_KINDS = ("board", "gpu", "jetson", "laptop", "mac", "pc", "phone")
DEVICE_NUMBERS = (
    "memory_bytes",
    "memory_bytes_per_s",
    "peak_fp32_flop_per_s",
    "peak_fp16_flop_per_s",
    "tdp_w",
    "idle_w",
    "busy_w",
    "radio_w",
    "launch_s",
    "copy_bytes_per_s",
)
NETWORK_NUMBERS = ("capacity_bytes_per_s", "cable_bytes_per_s", "bus_bytes_per_s", "latency_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A value, what it rests on (`basis`), where it is printed (`source`), and for a home's own
    estimate why.
    """

    value: float
    basis: str
    source: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """What is known of a kind of device. `file` is where it is written; systems call such a device
    one of `known_as`.
    """

    name: str
    title: str
    kind: str
    backends: tuple[str, ...]
    numbers: Mapping[str, Number]
    file: str
    known_as: tuple[str, ...] = ()

    def get(self, field: str) -> float | None:
        """The value of `field`, None where nobody knows it."""
        return self.numbers[field].value if field in self.numbers else None

    def need(self, field: str) -> float:
        """The value of `field`.

        Raises
        ------
        FileError
            Nobody knows it.
        """
        if field not in self.numbers:
            raise FileError(
                f"{self.file}: {field} of {self.name} is not known, and it is needed here.",
                next_step=f"Measure the device, or state your own in the home file: "
                f"[assume.{self.name}] {field} = "
                f'{{ value = ..., basis = "estimate", source = ..., reason = ... }}.',
                file=self.file,
                field=field,
            )
        return self.numbers[field].value

    def device(self, name: str = "") -> Device:
        """The device as planners see it, called `name`. Needs its memory.

        Leaves unknown watts unknown.

        It copies as fast as its memory's bandwidth lets it; where nobody knows that, a `Device`'s
        default stands.

        Raises
        ------
        FileError
            Nobody knows its memory, or it draws more idle than busy.
        """
        idle_w, busy_w = self.get("idle_w"), self.get("busy_w")
        if idle_w is not None and busy_w is not None and idle_w > busy_w:
            raise FileError(
                f"{self.file}: {name or self.name} draws {idle_w:g} W idle and {busy_w:g} W busy; "
                "expected idle_w to be no more than busy_w.",
                next_step="Mend the one or the other, in the device's file or the home's [assume].",
                file=self.file,
                field="idle_w",
            )
        known = "copy_bytes_per_s" in self.numbers or "memory_bytes_per_s" in self.numbers
        return Device(
            name=name or self.name,
            memory_bytes=int(self.need("memory_bytes")),
            idle_w=idle_w,
            busy_w=busy_w,
            radio_w=self.get("radio_w"),
            power_note=f"those of {self.name} in the library",
            kind=self.name,
            backends=self.backends,
            **({"copy_bytes_per_s": copy_bytes_per_s(self)} if known else {}),  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeSpec:
    """A home: its devices and network as planners see them, and per device name what it is made of
    (`specs`).
    """

    name: str
    title: str
    source: str
    devices: tuple[Device, ...]
    network: Network
    specs: Mapping[str, DeviceSpec]
    home_at: str
    file: str


def names(kind: str) -> tuple[str, ...]:
    """All names of a kind: devices, networks, homes or models."""
    return tuple(sorted(path.stem for path in (folder() / kind).glob("*" + _suffix(kind))))


def file_of(kind: str, name: str) -> Path:
    """The file of a known name.

    Raises
    ------
    UserError
        The name is not known; has those that are near it.
    """
    path = folder() / kind / (name + _suffix(kind))
    if name in names(kind):
        return path
    near = _near(name, names(kind))
    hint = (
        f"Did you mean {' or '.join(near)}?"
        if near
        else f"Known {kind}: {', '.join(names(kind)) or 'none'}."
    )
    raise UserError(
        f"there is no {kind[:-1]} called {name[:80]!r}.", next_step=hint, name=name, near=near
    )


def load_device(name: str | Path) -> DeviceSpec:
    """A device by its name, or from a file of your own."""
    path = _resolve("devices", name)
    table = _Table(_toml(path), str(path))
    spec = DeviceSpec(
        name=table.named(path.stem),
        title=table.text("title"),
        kind=table.choice("kind", DEVICE_KINDS),
        backends=table.backends(),
        numbers=table.numbers(DEVICE_NUMBERS),
        file=str(path),
        known_as=table.texts("known_as") if "known_as" in table.fields else (),
    )
    table.done()
    return spec


def load_network(name: str | Path) -> HomeWiring:
    """How a home is wired, by its name or from a file of your own."""
    path = _resolve("networks", name)
    table = _Table(_toml(path), str(path))
    table.named(path.stem)
    return _wiring(table)


def load_model(name: str | Path) -> ModelGraph:
    """A model's graph by its name, or from a file of your own."""
    path = _resolve("models", name)
    return ModelGraph.from_text(_read(path), file=str(path))


def load_home(name: str | Path) -> HomeSpec:
    """A home by its name, or from a file of your own.

    Raises
    ------
    FileError
        The file cannot be read, or does not hold.
    UserError
        The name is not known.
    """
    path = _resolve("homes", name)
    table = _Table(_toml(path), str(path))
    assumed = {kind: sub.numbers(DEVICE_NUMBERS, own=True) for kind, sub in table.tables("assume")}
    specs, members = _members(table, assumed)
    home_at = table.choice("home_at", tuple(specs))
    network = table.take("network", (str, dict), "a network's name, or a table")
    wiring = (
        _named_in(path, load_network, network)
        if isinstance(network, str)
        else _wiring(_Table(network, str(path), "network."))
    )
    head = {field: table.text(field) for field in ("title", "source")}
    table.optional_text("note")
    for kind in assumed:
        if kind not in {spec.name for spec in specs.values()}:
            raise _wrong(str(path), f"assume.{kind}", "a device of this home", kind)
    spec = HomeSpec(
        name=table.named(path.stem),
        **head,
        devices=tuple(spec.device(name) for name, spec in specs.items()),
        network=_network(wiring, members, home_at, path),
        specs=specs,
        home_at=home_at,
        file=str(path),
    )
    table.done()
    return spec


def assumed(device: str) -> Mapping[str, Number]:
    """What the homes of the library assume of a device where its own file is silent.

    The first home that does.
    """
    found: dict[str, Number] = {}
    for home in names("homes"):
        path = file_of("homes", home)
        table = _Table(_toml(path), str(path))
        for kind, sub in table.tables("assume"):
            if kind == device:
                found = {**sub.numbers(DEVICE_NUMBERS, own=True), **found}
    return found


def _network(wiring: HomeWiring, members: list[Attachment], home_at: str, path: Path) -> Network:
    try:
        return build(wiring, members, home_at)
    except UserError as error:
        raise FileError(f"{path}: {error}", file=str(path)) from error


def _members(
    table: "_Table", assumed: Mapping[str, Mapping[str, Number]]
) -> tuple[dict[str, DeviceSpec], list[Attachment]]:
    """The devices of a home in order: `[[devices]]` with name, profile, and optionally port, site,
    wired, and the backends that its paper takes it to have.
    """
    specs: dict[str, DeviceSpec] = {}
    members = []
    for entry in table.entries("devices"):
        name, profile = entry.text("name"), entry.text("profile")
        if name in specs or name == HOME:
            raise _wrong(table.file, f"{entry.prefix}name", "a name of its own", name)
        spec = _named_in(Path(table.file), load_device, profile)
        numbers = {**spec.numbers, **assumed.get(profile, {})}
        backends = entry.backends() if "backends" in entry.fields else spec.backends
        specs[name] = replace(spec, backends=backends, numbers=numbers)
        members.append(
            Attachment(
                name=name,
                port=entry.optional_text("port") or name,
                site=entry.optional_text("site"),
                wired=entry.flag("wired"),
            )
        )
        entry.done()
    return specs, members


def _wiring(table: "_Table") -> HomeWiring:
    topology = table.choice("topology", TOPOLOGIES)
    numbers = table.numbers(NETWORK_NUMBERS)
    if "capacity_bytes_per_s" not in numbers:
        raise _wrong(table.file, f"{table.prefix}capacity_bytes_per_s", "a number", "nothing")
    links = tuple(_link(entry) for entry in (table.entries("links") if topology == "sites" else ()))
    table.optional_text("title")
    table.optional_text("note")
    table.done()
    values = {field: number.value for field, number in numbers.items()}
    return HomeWiring(topology=topology, links=links, **values)


def _link(entry: "_Table") -> Cable:
    sites = entry.texts("sites")
    if len(sites) != 2:
        raise _wrong(entry.file, f"{entry.prefix}sites", "two sites", sites)
    numbers = entry.numbers(("there_bytes_per_s", "back_bytes_per_s", "latency_s"))
    for field in ("there_bytes_per_s", "back_bytes_per_s"):
        if field not in numbers:
            raise _wrong(entry.file, f"{entry.prefix}{field}", "a number", "nothing")
    entry.done()
    return Cable(
        sites=(sites[0], sites[1]), **{field: number.value for field, number in numbers.items()}
    )


class _Table:
    """One TOML table being read: every field is taken once, and what is left at the end is an
    error.
    """

    def __init__(self, fields: Mapping[str, Any], file: str, prefix: str = "") -> None:
        self.fields = dict(fields)
        self.file = file
        self.prefix = prefix

    def take(self, field: str, kind: type | tuple[type, ...], expected: str) -> Any:
        value = self.fields.pop(field, None)
        if value is None or not isinstance(value, kind):
            raise _wrong(
                self.file, self.prefix + field, expected, "nothing" if value is None else value
            )
        return value

    def text(self, field: str) -> str:
        value = self.take(field, str, "text")
        if not value.strip():
            raise _wrong(self.file, self.prefix + field, "text", "an empty string")
        return str(value)

    def optional_text(self, field: str) -> str:
        return self.text(field) if field in self.fields else ""

    def flag(self, field: str) -> bool:
        return bool(self.take(field, bool, "true or false")) if field in self.fields else False

    def choice(self, field: str, allowed: Iterable[str]) -> str:
        value = self.text(field)
        if value not in (allowed := tuple(allowed)):
            raise _wrong(self.file, self.prefix + field, f"one of {', '.join(allowed)}", value)
        return value

    def named(self, stem: str) -> str:
        """The name, which has to be that of the file: it is found by it."""
        name = self.text("name")
        if name != stem:
            raise _wrong(self.file, self.prefix + "name", f"{stem!r}, as the file is called", name)
        return name

    def texts(self, field: str) -> tuple[str, ...]:
        values = self.take(field, list, "a list of text")
        if not values or not all(isinstance(value, str) for value in values):
            raise _wrong(self.file, self.prefix + field, "a list of text", values)
        return tuple(values)

    def backends(self) -> tuple[str, ...]:
        values = self.texts("backends")
        known = tuple(BACKEND_OF.values())
        for value in values:
            if value not in known:
                raise _wrong(
                    self.file, f"{self.prefix}backends", f"some of {', '.join(known)}", value
                )
        return values

    def entries(self, field: str) -> list["_Table"]:
        values = self.take(field, list, f"[[{field}]] tables")
        if not values or not all(isinstance(value, dict) for value in values):
            raise _wrong(self.file, self.prefix + field, f"[[{field}]] tables", values)
        return [
            _Table(value, self.file, f"{self.prefix}{field}[{index}].")
            for index, value in enumerate(values)
        ]

    def tables(self, field: str) -> list[tuple[str, "_Table"]]:
        values = self.take(field, dict, "a table") if field in self.fields else {}
        for name, value in values.items():
            if not isinstance(value, dict):
                raise _wrong(self.file, f"{field}.{name}", "a table", value)
        return [
            (name, _Table(value, self.file, f"{field}.{name}.")) for name, value in values.items()
        ]

    def numbers(self, allowed: Iterable[str], *, own: bool = False) -> dict[str, Number]:
        """Those of the fields that are there.

        `own`: a home's estimates, each with its reason, and nothing else.
        """
        found = {field: self._number(field, own=own) for field in allowed if field in self.fields}
        if own:
            self.done()
        return found

    def _number(self, field: str, *, own: bool) -> Number:
        entry = _Table(
            self.take(field, dict, "{ value, basis, source }"), self.file, f"{self.prefix}{field}."
        )
        value = entry.take("value", (int, float), "a number")
        least = "0 or more" if field.endswith(("idle_w", "radio_w", "latency_s")) else "above 0"
        if (
            isinstance(value, bool)
            or not isfinite(value)
            or value < 0
            or (value == 0 and least == "above 0")
        ):
            raise _wrong(self.file, f"{entry.prefix}value", f"a finite number, {least}", value)
        basis = entry.choice("basis", ("estimate",) if own else BASES)
        number = Number(
            value=value,
            basis=basis,
            source=entry.text("source"),
            reason=entry.text("reason") if own else entry.optional_text("reason"),
        )
        entry.done()
        return number

    def done(self) -> None:
        """Refuse what nobody took."""
        if self.fields:
            unknown = sorted(self.fields)
            raise _wrong(
                self.file, self.prefix + unknown[0], "no such field here", self.fields[unknown[0]]
            )


def _wrong(file: str, field: str, expected: str, got: object) -> FileError:
    return FileError(
        f"{file}: {field}: expected {expected}, got {str(got)[:80]!r}.", file=file, field=field
    )


def _near(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Up to three names like it: those that contain it, then those spelled alike.

    Case and hyphens do not matter.
    """
    plain = {"".join(c for c in each.lower() if c.isalnum()): each for each in known}
    wanted = "".join(c for c in name.lower() if c.isalnum())
    inside = [each for key, each in plain.items() if len(wanted) > 2 and wanted in key]
    alike = [plain[key] for key in get_close_matches(wanted, plain, n=3, cutoff=0.6)]
    return tuple(dict.fromkeys([*inside, *alike]))[:3]


def _suffix(kind: str) -> str:
    if kind not in SUFFIX:
        raise UserError(f"there is no kind {kind!r}.", next_step=f"Kinds: {', '.join(SUFFIX)}.")
    return SUFFIX[kind]


def folder() -> Path:
    """Where the profiles are: inside the installed package, else in the repository that this file
    is part of.

    Raises
    ------
    FileError
        They are missing.
    """
    this_file = Path(__file__).resolve()
    packaged, repository = this_file.parents[1] / "profiles", this_file.parents[3] / "profiles"
    for place in (packaged, repository):
        if (place / "devices").is_dir():
            return place
    raise FileError(
        f"the profiles are missing: neither {packaged} nor {repository} is there.",
        next_step="Install potluck again.",
    )


def _resolve(kind: str, name: str | Path) -> Path:
    path = file_path(name)
    is_path = isinstance(name, Path) or _is_path(name)
    return path if is_path else file_of(kind, str(name))


def _is_path(name: str) -> bool:
    return name.endswith((".toml", ".json")) or "/" in name or "\\" in name


Named = TypeVar("Named")


def _named_in(home: Path, load: Callable[[str | Path], Named], name: str) -> Named:
    """What the file of a home names: a name of the library, or a file, seen from the home's
    folder.
    """
    try:
        return load(home.parent / name if _is_path(name) else name)
    except UserError as error:
        raise FileError(f"{home}: {error}", file=str(home)) from error


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = getattr(error, "strerror", error)
        raise FileError(f"{path} cannot be read: {why}.", file=str(path)) from error


def _toml(path: Path) -> dict[str, Any]:
    return read_toml(_read(path), str(path))
