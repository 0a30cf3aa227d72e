"""The document of a network as TOML, beside the keys of the notebook: read with every field
checked, written so that reading gives the same document.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isinf
from pathlib import Path
from typing import Any

from potluck.documents import NEXT_STEP, file_path, read_text, read_toml, write_whole
from potluck.errors import FileError, UserError
from potluck.profile.home_network import Figure, HomeNetwork, SharedMedium
from potluck.profile.network import network_of
from potluck.records import Network

FILE = "network.toml"
SCHEMA = 1
MOST_BYTES = 2**20
MOST = 1e18  # of any figure: sums over a path stay finite
RATES = ("up_bytes_per_s", "down_bytes_per_s", "latency_s")
HEAD = """\
# How the devices of this home are connected. Profiles write it while is_declared is false. To
# correct it, edit it and say is_declared = true: profiles keep to its media then, and fit rates.
#   kind     "switch": each device at a port of its own; "air": one channel that all share; "bus":
#            one cable that all share; "uplink": what joins these devices to all others
#   figures  a number, or { value, error_frac, source }; without down_bytes_per_s both ways are one
"""
STEP = "Mend it there, or delete the file: the next profile writes it anew."


def load_network(path: str | Path) -> HomeNetwork:
    """The document in this file.

    Parameters
    ----------
    path
        A TOML file, such as `network.toml` beside the keys.

    Raises
    ------
    FileError
        It cannot be read, or says what cannot be: file and field, what was expected and got.
    """
    path = file_path(path)
    try:
        text = read_text(path, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        raise FileError(f"{path} cannot be read: {why}.", path=str(path)) from error
    try:
        table = read_toml(text, str(path))
    except FileError as error:
        text = str(error).removesuffix(NEXT_STEP).rstrip()
        raise FileError(text, next_step=STEP, path=str(path)) from error
    return _Reader(path).document(table)


def save_network(document: HomeNetwork, path: str | Path) -> None:
    """Write the document, all or nothing, readable by the owner only.

    Parameters
    ----------
    document
        What is written; `beside` is not, since no row says it.
    path
        The file; its folder is made.

    Raises
    ------
    FileError
        It cannot be written.
    """
    write_whole(file_path(path), as_toml(document))


def declared(network: Any, folder: Path | None) -> HomeNetwork | None:
    """What the owner says: this document or file, else that in the folder of the keys.

    Parameters
    ----------
    network
        A document, the path of one, or None.
    folder
        Of the keys; None where there are none.

    Raises
    ------
    UserError
        It is neither; a file cannot be used.
    """
    if network is None:
        kept = kept_network(folder)
        return kept if kept is not None and kept.is_declared else None
    document = load_network(network) if isinstance(network, str | Path) else network
    if not isinstance(document, HomeNetwork):
        raise UserError(
            f"network is a document or the path of one, got {type(network).__name__}.",
            next_step="Correct home.network and give it: home.profile(model, network=...).",
        )
    return replace(document, is_declared=True)


def network_now(
    folder: Path | None, played: Network | None, capabilities: Mapping[str, Mapping[str, Any]]
) -> HomeNetwork:
    """The network of a home that nobody has measured yet: as its lab plays it, as the file beside
    the keys has it, or as its devices say.

    Parameters
    ----------
    folder
        Of the keys; None where there are none.
    played
        By a lab, if this is one.
    capabilities
        Per device, its capability statement.
    """
    if played is not None:
        return HomeNetwork(beside=played)
    return replace(kept_network(folder) or HomeNetwork(), beside=network_of(capabilities, {}))


def kept_network(folder: Path | None) -> HomeNetwork | None:
    """The document in the folder of the keys, if there is one.

    Parameters
    ----------
    folder
        Of the keys; None where there are none.

    Raises
    ------
    FileError
        It is there and cannot be used.
    """
    path = None if folder is None else folder / FILE
    return load_network(path) if path is not None and path.exists() else None


def keep_network(
    document: HomeNetwork | None, folder: Path | None, known: HomeNetwork | None = None
) -> None:
    """Keep the document in the folder of the keys, where both are there; with what was declared of
    devices that are away.

    Parameters
    ----------
    document
        What was measured.
    folder
        Of the keys; None where there are none.
    known
        What the owner has declared; default: what is kept there and declared.

    Raises
    ------
    FileError
        It cannot be written.
    """
    if document is not None and document.media and folder is not None:
        known = known or declared(None, folder)
        if known is not None and not set(known.devices) <= set(document.devices):
            document = known.refreshed_by(document)
        save_network(document, folder / FILE)


def as_toml(document: HomeNetwork) -> str:
    """The text of the file.

    Parameters
    ----------
    document
        What is written.
    """
    declared = "true" if document.is_declared else "false"
    rows = "".join("\n" + "\n".join(_lines(row)) + "\n" for row in document.media)
    return f"{HEAD}schema = {SCHEMA}\nis_declared = {declared}\n{rows}"


def _lines(row: SharedMedium) -> Iterator[str]:
    yield "[[media]]"
    yield f"name = {_text(row.name)}"
    yield f"kind = {_text(row.kind)}"
    yield f"devices = [{', '.join(map(_text, row.devices))}]"
    for field in RATES:
        figure = getattr(row, field)
        if figure is not None:
            yield f"{field} = {_figure(figure)}"
    if row.jitter_s is not None:
        yield f"jitter_s = {_number(row.jitter_s)}"
    if row.stations:
        yield "[media.stations]"
        yield from (f"{_text(name)} = {_figure(rate)}" for name, rate in row.stations.items())


def _figure(figure: Figure) -> str:
    error = "" if figure.error_frac is None else f", error_frac = {_number(figure.error_frac)}"
    return f"{{ value = {_number(figure.value)}{error}, source = {_text(figure.source)} }}"


def _number(value: float) -> str:
    return "inf" if isinf(value) else repr(float(value))


def _text(value: str) -> str:
    """A basic string of TOML; names hold printable characters only."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class _Reader:
    """Takes every field of a file once, and names it where it is wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def document(self, table: dict[str, Any]) -> HomeNetwork:
        schema = self._take(table, "", "schema", int, f"{SCHEMA}")
        if schema != SCHEMA:
            raise self._wrong("schema", f"{SCHEMA}", schema)
        is_declared = self._take(table, "", "is_declared", bool, "true or false")
        rows = self._take(table, "", "media", list, "[[media]] tables") if "media" in table else []
        self._done(table, "")
        media = tuple(self._row(row, f"media[{index}]") for index, row in enumerate(rows))
        try:
            return HomeNetwork(media=media, is_declared=is_declared)
        except UserError as error:
            raise self._refused("media", error) from error

    def _row(self, row: Any, where: str) -> SharedMedium:
        if not isinstance(row, dict):
            raise self._wrong(where, "a [[media]] table", row)
        name = self._take(row, where, "name", str, "text")
        kind = self._take(row, where, "kind", str, "text")
        devices = self._take(row, where, "devices", list, "a list of names")
        if not all(isinstance(device, str) for device in devices):
            raise self._wrong(f"{where}.devices", "a list of names", devices)
        figures = {
            field: self._figure(row.pop(field), f"{where}.{field}")
            for field in RATES
            if field in row
        }
        jitter_s = (
            self._number(row.pop("jitter_s"), f"{where}.jitter_s") if "jitter_s" in row else None
        )
        stations = self._take(row, where, "stations", dict, "a table") if "stations" in row else {}
        self._done(row, where)
        rates = {
            device: self._figure(rate, f"{where}.stations.{device}")
            for device, rate in stations.items()
        }
        try:
            return SharedMedium(
                name=name,
                kind=kind,
                devices=tuple(devices),
                jitter_s=jitter_s,
                stations=rates,
                **figures,
            )
        except UserError as error:
            raise self._refused(where, error) from error

    def _figure(self, value: Any, where: str) -> Figure:
        expected = "a number or { value, error_frac, source }"
        table = dict(value) if isinstance(value, dict) else {"value": value}
        number = self._number(table.pop("value", None), where, expected)
        more: dict[str, Any] = {}
        if "error_frac" in table:
            more["error_frac"] = self._number(table.pop("error_frac"), f"{where}.error_frac")
        if "source" in table:
            more["source"] = self._take(table, where, "source", str, "text")
        self._done(table, where)
        try:
            return Figure(value=number, **more)
        except UserError as error:
            raise self._refused(where, error) from error

    def _number(self, value: Any, where: str, expected: str = "a number") -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(where, expected, value)
        try:
            number = float(value)
        except OverflowError:
            raise self._wrong(where, expected, value) from None
        if number > MOST:
            raise self._wrong(where, f"{expected}, at most {MOST:g}", value)
        return number

    def _take(
        self, table: dict[str, Any], where: str, field: str, kind: type, expected: str
    ) -> Any:
        value = table.pop(field, None)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self._wrong(_at(where, field), expected, value)
        return value

    def _done(self, table: Mapping[str, Any], where: str) -> None:
        for field, value in table.items():
            raise self._wrong(_at(where, field), "no such field here", value)

    def _wrong(self, where: str, expected: str, got: object) -> FileError:
        shown = "nothing" if got is None else repr(str(got)[:80])
        return FileError(
            f"{self._path}: {where[:200]}: expected {expected}, got {shown}.",
            next_step=STEP,
            path=str(self._path),
            field=where,
        )

    def _refused(self, where: str, error: UserError) -> FileError:
        return FileError(
            f"{self._path}: {where[:200]}: {error}",
            next_step=STEP,
            path=str(self._path),
            field=where,
        )


def _at(where: str, field: str) -> str:
    return f"{where}.{field}" if where else field
