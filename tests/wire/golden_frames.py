"""The bytes of one sample of every message between machines, kept in `golden/VERSION.json`, and how
they were made.

After adding a message, or a field in a new minor version: `python -m tests.wire.golden_frames`
appends what is missing. It never changes a frame that is there: bytes that were once on the wire
stay as they are.
"""

import json
from pathlib import Path

from tests.wire.samples import sample, sample_buffers

from potluck_wire.frames import encode
from potluck_wire.messages import MESSAGES, Channel
from potluck_wire.version import parse, show

FOLDER = Path(__file__).parent / "golden"


# An agent and its worker are always of one installation, so their messages may change.
LASTING = tuple(entry for entry in MESSAGES.values() if entry.channel is not Channel.WORKER)


def golden() -> dict[str, dict[str, list[str]]]:
    """Version -> message name -> its frames in hexadecimal."""
    paths = sorted(FOLDER.glob("*.json"), key=lambda path: parse(path.stem))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def add_missing() -> None:
    """Append samples of the messages that no version has yet, or only with fewer fields."""
    # the newest of each
    known = {name: frames for older in golden().values() for name, frames in older.items()}
    path = FOLDER / f"{show()}.json"
    frames = json.loads(path.read_text()) if path.exists() else {}
    for entry in LASTING:
        today = [bytes(f).hex() for f in encode(sample(entry), sample_buffers(entry))]
        if known.get(entry.type.__name__) != today:
            frames.setdefault(entry.type.__name__, today)
    path.parent.mkdir(exist_ok=True)
    rows = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in frames.items()
    )
    path.write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    add_missing()
