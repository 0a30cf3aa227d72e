"""Make segments from documents, and say which ones can be made here."""

from typing import Any

import torch

from potluck_agent.worker.tasks import Segment
from potluck_wire.tensors import DTYPES


def capabilities() -> dict[str, Any]:
    """Backends with their versions, operators and element types."""
    return {"backends": {"torch": torch.__version__}, "operators": [], "dtypes": list(DTYPES)}


def load_segment(kind: str, document: bytes, *, seed: int) -> Segment:
    """A segment from its document. `ValueError` where this worker has no such kind."""
    raise ValueError(f"this worker loads no segments of kind {kind!r} yet")
