"""What the makers call this machine and its processor, as the operating system says without
privileges.
"""

from pathlib import Path

MODELS = (
    "proc/device-tree/model",  # boards
    "sys/devices/virtual/dmi/id/product_name",  # PCs
    "sys/devices/virtual/dmi/id/product_version",  # what Lenovo prints on the lid
)
MOST = 128  # characters of one name


def hardware(root: Path = Path("/")) -> list[str]:
    """The names, the machine's first; none where the system tells none.

    Parameters
    ----------
    root
        Where /proc and /sys are.
    """
    found = [_text(root / path).strip().strip("\0") for path in MODELS]
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            found.append(value.strip())
            break
    return [name[:MOST] for name in dict.fromkeys(found) if name and name.isprintable()]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
