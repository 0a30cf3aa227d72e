"""Make segments from documents, and say which ones can be made here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from potluck_agent.worker.arrays.backends import Arrays
from potluck_agent.worker.measure import Measurable
from potluck_agent.worker.tasks import LoadedSegment
from potluck_wire.graph import Graph, SegmentError
from potluck_wire.operators import OPERATORS
from potluck_wire.segment import loads
from potluck_wire.statement import BACKEND_OF

if TYPE_CHECKING:
    from potluck_agent.worker.onnx import segment


class Loader:
    """What can be computed here: `present` are the backends, with their versions.

    `provider`: the accelerator that ONNX segments compute on; empty: the CPU.
    """

    def __init__(
        self, present: Mapping[str, str], arrays: Arrays, threads: int = 1, provider: str = ""
    ) -> None:
        self._present = present
        self._arrays = arrays
        self._threads, self._provider = threads, provider
        if threads > 1 or provider:  # later, no thread may be started and no driver opened
            self.prepare("onnx")

    def capabilities(self) -> dict[str, Any]:
        """Backends with their versions, operators of graph documents and element types."""
        operators = sorted(OPERATORS) if "torch" in self._present else []
        return {
            "backends": dict(self._present),
            "operators": operators,
            "dtypes": list(self._arrays.DTYPES),
        }

    def prepare(self, kind: str) -> None:
        """Load the library for this kind of document, if it is not there yet."""
        if kind == "onnx" and BACKEND_OF[kind] in self._present:
            from potluck_agent.worker.onnx import segment

            segment.prepare(self._processor())

    def load(self, kind: str, document: bytes, *, seed: int, made_up: bool = False) -> Measurable:
        """A segment from its document, its weights zeros, or `made_up` for being timed.

        `ValueError` where this worker has no such kind.
        """
        self._check(kind)
        if kind == "aten":
            from potluck_agent.worker import training

            graph = loads(document)
            self._check_dtypes(graph)
            return training.TrainingSegment(
                graph, seed, made_up=made_up, device=self._arrays.device
            )
        from potluck_agent.worker.onnx import segment

        return segment.OnnxSegment(document, self._arrays, self._processor())

    def borrow(self, kind: str, document: bytes, weight_source: LoadedSegment) -> LoadedSegment:
        """A segment from its document with the state of `weight_source`. Raises as `load` does."""
        self._check(kind)
        # torch would not see that the memory of an ONNX segment changes under its own tensors
        if getattr(weight_source, "kind", "aten") != kind:
            raise SegmentError("document", f"the weights of a segment of another kind than {kind}")
        if kind == "aten":
            from potluck_agent.worker.shared_state import SharedWeightSegment

            return SharedWeightSegment(loads(document), weight_source, self._arrays.device)
        from potluck_agent.worker.onnx import segment

        return segment.OnnxSegment(document, self._arrays, self._processor(), weight_source)

    def _check_dtypes(self, graph: Graph) -> None:
        """Raise SegmentError where its tensors are of a type that no tensor can have here."""
        dtypes = {port.name: port.dtype for port in graph.inputs}
        dtypes |= {port.name: port.dtype for port in graph.outputs}
        dtypes |= {held.name: held.dtype for held in graph.parameters}
        dtypes |= {held.name: held.dtype for held in graph.buffers}
        for name, dtype in dtypes.items():
            if dtype not in self._arrays.DTYPES:
                has = ", ".join(self._arrays.DTYPES)
                text = f"{name} is {dtype}; this device's accelerator computes with {has}"
                raise SegmentError("bad-input", text)

    def _processor(self) -> "segment.OnnxProcessor":
        from potluck_agent.worker.onnx import segment

        return segment.OnnxProcessor(self._threads, self._provider)

    def _check(self, kind: str) -> None:
        needed = BACKEND_OF.get(kind)
        if needed not in self._present:
            has = ", ".join(self._present) or "nothing that computes"
            raise ValueError(
                f"a segment of the kind {kind} needs {needed or 'what nobody has'}; here is {has}"
            )
