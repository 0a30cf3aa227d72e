"""Make segments from documents, and say which ones can be made here."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch

from potluck_agent.worker import training
from potluck_agent.worker.borrowing import BorrowingSegment
from potluck_agent.worker.measure import Measurable
from potluck_agent.worker.tasks import Segment
from potluck_wire.operators import OPERATORS
from potluck_wire.segment import loads
from potluck_wire.tensors import DTYPES


def capabilities() -> dict[str, Any]:
    """Backends with their versions, operators and element types."""
    backends = {"torch": str(torch.__version__)}
    if find_spec("onnx") is not None and find_spec("onnxruntime") is not None:
        try:
            backends["onnxruntime"] = version("onnxruntime")
        except PackageNotFoundError:  # a build of it under another name
            backends["onnxruntime"] = "unknown"
    return {"backends": backends, "operators": sorted(OPERATORS), "dtypes": list(DTYPES)}


def load_segment(kind: str, document: bytes, *, seed: int, made_up: bool = False) -> Measurable:
    """A segment from its document, its weights zeros, or `made_up` for being timed.

    `ValueError` where this worker has no such kind.
    """
    if kind == "aten":
        return training.Segment(loads(document), seed, made_up=made_up)
    if kind == "onnx":
        from potluck_agent.worker import onnx_backend

        return onnx_backend.OnnxSegment(document)
    raise ValueError(f"a worker loads no segments of kind {kind!r}")


def borrow_segment(kind: str, document: bytes, lender: Segment) -> Segment:
    """A segment from its document that has the state of `lender`. Raises as `load_segment` does."""
    if kind == "aten":
        return BorrowingSegment(loads(document), lender)
    if kind == "onnx":
        from potluck_agent.worker import onnx_backend

        return onnx_backend.OnnxSegment(document, lender=lender)
    raise ValueError(f"a worker loads no segments of kind {kind!r}")
