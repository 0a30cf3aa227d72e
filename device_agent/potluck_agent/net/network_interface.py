"""How this device is connected, as the operating system says without privileges: by cable or by
WiFi, how fast, on which frequency, through which gateway. What it does not say is None.
"""

import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

WIRED, WIFI = "wired", "wifi"
MBIT_BYTES = 125_000
NOWHERE = "192.0.2.1"  # set aside for examples (RFC 5737): only asked which way it would be
_ETHERNET = "1"  # ARPHRD_ETHER
_UP, _GATEWAY = 0x1, 0x2  # flags of a route
_GET_FREQUENCY = 0x8B05  # SIOCGIWFREQ
_REQUEST = "16sihBB8x"  # struct iwreq with a struct iw_freq: mantissa, exponent, number, flags


def connection(root: Path = Path("/")) -> dict[str, Any]:
    """What the capability statement says of the way to all others.

    Parameters
    ----------
    root
        Where /proc and /sys are.
    """
    found: dict[str, Any] = {
        "kind": None,
        "bytes_per_s": None,
        "frequency_hz": None,
        "gateway": None,
    }
    if sys.platform.startswith("linux"):
        with suppress(OSError, ValueError):
            interface, found["gateway"] = default_route((root / "proc/net/route").read_text())
            found |= _of_interface(root / "sys/class/net" / interface)
            if found["kind"] == WIFI:
                found["frequency_hz"] = _frequency_hz(interface)
    else:
        with suppress(OSError, ImportError):
            found["bytes_per_s"] = _of_address(_own_address())
    return found


def default_route(table: str) -> tuple[str, str]:
    """The interface and the gateway of the default route with the smallest metric.

    Parameters
    ----------
    table
        The text of /proc/net/route.

    Raises
    ------
    ValueError
        There is none.
    """
    routes = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[1] != "00000000":
            continue
        if int(fields[3], 16) & (_UP | _GATEWAY) == _UP | _GATEWAY:
            address = socket.inet_ntoa(struct.pack("=L", int(fields[2], 16)))
            routes.append((int(fields[6]), fields[0], address))
    if not routes:
        raise ValueError("no default route")
    _, interface, gateway = min(routes)
    return interface, gateway


def _of_interface(folder: Path) -> dict[str, Any]:
    """Kind and speed; neither of what is no device, such as a bridge or one end of a tunnel."""
    if (folder / "wireless").exists() or (folder / "phy80211").exists():
        return {"kind": WIFI}
    is_device = (folder / "device").exists()
    if not is_device or (folder / "type").read_text().strip() != _ETHERNET:
        return {}
    found: dict[str, Any] = {"kind": WIRED}
    with suppress(OSError, ValueError):  # some drivers refuse to be asked
        mbit_per_s = int((folder / "speed").read_text())
        if mbit_per_s > 0:
            found["bytes_per_s"] = float(mbit_per_s * MBIT_BYTES)
    return found


def _frequency_hz(interface: str) -> float | None:
    """Of the channel; None where the driver does not say."""
    import fcntl

    request = struct.pack(_REQUEST, interface.encode()[:15], 0, 0, 0, 0)
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _GET_FREQUENCY, request)
        return frequency_hz(answer)
    return None


def frequency_hz(answer: bytes) -> float | None:
    """The frequency in an answer of the kernel; None where it is the number of a channel.

    Parameters
    ----------
    answer
        A `struct iwreq`.
    """
    _, mantissa, exponent, _, _ = struct.unpack(_REQUEST, answer)
    hertz = float(mantissa * 10.0 ** min(max(exponent, 0), 9))
    return hertz if hertz > 1e6 else None


def _own_address() -> str:
    """Of the interface that leads to all others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((NOWHERE, 9))
        return str(probe.getsockname()[0])


def _of_address(address: str) -> float | None:
    """Bytes per second of the interface with this address; None where the system knows none."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            speed = psutil.net_if_stats()[name].speed
            return float(speed * MBIT_BYTES) if speed > 0 else None
    return None
