"""A loaded ONNX segment: the same `forward`, `read` and `write` as an ATen segment.

It does not train.

An initialiser with a shape but no data is state that will be written; until then its values are
made up. The session is built at the first forward after a write, which may be the weight
source's. A size is fixed, or `batch`, or `batch*K`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime

from potluck_agent.worker import available_memory
from potluck_agent.worker.arrays.backends import Arrays
from potluck_agent.worker.forward_only import ForwardOnly, borrowed
from potluck_agent.worker.onnx.validator import validate
from potluck_agent.worker.tasks import LoadedSegment
from potluck_wire.graph import (
    BATCH,
    FLOATS,
    Expression,
    Graph,
    Input,
    Output,
    Parameter,
    Ref,
    SegmentError,
)
from potluck_wire.processors import PROVIDERS

Array = np.ndarray[Any, Any]
_ONNX = onnx.TensorProto
ELEMENTS: dict[int, str] = {
    _ONNX.FLOAT: "float32",
    _ONNX.DOUBLE: "float64",
    _ONNX.FLOAT16: "float16",
    _ONNX.INT64: "int64",
    _ONNX.INT32: "int32",
    _ONNX.INT16: "int16",
    _ONNX.INT8: "int8",
    _ONNX.UINT8: "uint8",
    _ONNX.BOOL: "bool",
}
MADE_UP = 0.015625  # small, and neither zero nor so small that arithmetic slows down
_BATCH = re.compile(r"batch(?:\*([1-9][0-9]{0,8}))?")


@dataclass(frozen=True, slots=True)
class OnnxProcessor:
    """What sessions compute on: an accelerator, by its short name, or the CPU with so many
    threads.
    """

    threads: int = 1
    provider: str = ""


_SINGLE = "1"  # onnxruntime's word for float32


@cache
def prepare(on: OnnxProcessor) -> onnxruntime.InferenceSession:
    """Let onnxruntime set up what all its sessions share, once: its threads too, as later none may
    be started, and an accelerator's driver, which stays open with this session.

    Returns a session.
    """
    if on.threads > 1:
        onnxruntime.set_global_thread_pool_sizes(on.threads, 1)
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph(
        [node], "prepare", [value], [onnx.helper.make_tensor_value_info("y", 1, [1])]
    )
    model = onnx.helper.make_model(
        graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 13)]
    )
    session = _session(model, on)
    session.run(None, {"x": np.zeros(1, "float32")})
    return session


def _session(
    model: onnx.ModelProto, on: OnnxProcessor, state: Mapping[str, Array] = MappingProxyType({})
) -> onnxruntime.InferenceSession:
    """A session over `state` as it lies, without a copy of its own.

    Memory that a run took is given back after it.
    """
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in state.values()]
    options.add_external_initializers(list(state), values)
    options.use_per_session_threads = on.threads == 1
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # else values that meet weights of eight bits may be rounded to eight bits, too, or may not:
    # that depends on what else is in the segment
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", _SINGLE)
    names = [PROVIDERS[on.provider]] if on.provider else []
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=[*names, "CPUExecutionProvider"]
    )


CPU = OnnxProcessor()


class OnnxSegment(ForwardOnly):
    """A piece of an ONNX model over tensors of `arrays`; its state is that of a `weight_source`.

    Raises SegmentError as `training.Segment` does.
    """

    what = "an ONNX segment"
    kind = "onnx"

    def __init__(
        self,
        document: bytes,
        arrays: Arrays,
        on: OnnxProcessor = CPU,
        weight_source: LoadedSegment | None = None,
    ) -> None:
        self._model = validate(document)
        self._arrays, self._on = arrays, on
        self._session: onnxruntime.InferenceSession | None = None
        # whose writes change the state: a session keeps what it made of constants
        self._source: OnnxSegment = (
            weight_source._source if isinstance(weight_source, OnnxSegment) else self
        )
        self._n_writes = self._n_writes_seen = 0
        graph = self._model.graph
        self._missing = {t.name: t for t in graph.initializer if _is_missing(t)}
        self._lent = weight_source is not None
        self._state = {
            n: _made_up(t)
            if weight_source is None
            else arrays.to_numpy(borrowed(weight_source, n, _element(t), t.dims, arrays))
            for n, t in self._missing.items()
        }
        own = {tensor.name for tensor in graph.initializer}
        self.graph = Graph(
            inputs=tuple(
                Input(name=v.name, dtype=_dtype(v), shape=_shape(v))
                for v in graph.input
                if v.name not in own
            ),
            parameters=tuple(
                Parameter(name=n, dtype=ELEMENTS[t.data_type], shape=tuple(t.dims), trainable=False)
                for n, t in self._missing.items()
            ),
            outputs=tuple(
                Output(name=v.name, ref=Ref(0), dtype=_dtype(v), shape=_shape(v))
                for v in graph.output
            ),
        )
        if not self._missing:
            self._open()  # a model that onnxruntime cannot read is refused at loading

    def forward(self, inputs: Sequence[Any], *, train: bool = False, **_: Any) -> tuple[Any, ...]:
        """The outputs."""
        if train:
            raise self.refusal()
        self._check(inputs)
        session = self._session
        if session is None or self._n_writes_seen != self._source._n_writes:
            session = self._open()
        feeds = {
            # which makes no value a list
            port.name: np.ascontiguousarray(self._arrays.to_numpy(x)).reshape(x.shape)
            for x, port in zip(inputs, self.graph.inputs, strict=True)
        }
        try:
            results = session.run([port.name for port in self.graph.outputs], feeds)
        except Exception as error:  # onnxruntime's classes share no other base
            raise SegmentError(*_cause(error)) from error
        return tuple(self._arrays.from_numpy(result) for result in results)

    @property
    def providers(self) -> tuple[str, ...]:
        """What onnxruntime computes it with, the first one first; nothing before it is opened."""
        return () if self._session is None else tuple(self._session.get_providers())

    def _check(self, inputs: Sequence[Any]) -> None:
        if len(inputs) != len(self.graph.inputs):
            raise SegmentError(
                "bad-input", f"{len(self.graph.inputs)} inputs are expected, {len(inputs)} came"
            )
        for x, port in zip(inputs, self.graph.inputs, strict=True):
            fits = len(x.shape) == len(port.shape) and all(
                size == expected
                for size, expected in zip(x.shape, port.shape, strict=True)
                if isinstance(expected, int)
            )
            if not fits or self._arrays.name_of(x) != port.dtype:
                raise SegmentError(
                    "bad-input",
                    f"input {port.name} is {x.dtype} {list(x.shape)}; expected {port.dtype} "
                    f"{port.shape}",
                )

    def _open(self) -> onnxruntime.InferenceSession:
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        for tensor in model.graph.initializer:
            # said to lie elsewhere: in our own memory, not in any file
            if tensor.name in self._state:
                tensor.data_location = onnx.TensorProto.EXTERNAL
                nbytes = str(self._state[tensor.name].nbytes)
                for key, value in (("location", "memory"), ("offset", "0"), ("length", nbytes)):
                    tensor.external_data.add(key=key, value=value)
        self._session, self._n_writes_seen = None, self._source._n_writes
        try:
            self._session = _session(model, self._on, self._state)
        except Exception as error:
            raise SegmentError(
                "document", f"onnxruntime cannot run it: {_first_line(error)}"
            ) from error
        return self._session

    # --- state ---

    def names(self) -> tuple[str, ...]:
        """Everything that `read` knows."""
        return tuple(self._state)

    def read(self, name: str) -> Any:
        """A named state."""
        return self._arrays.from_numpy(self._known(name))

    def write(self, name: str, tensor: Any) -> None:
        """Overwrite a named state; the shape and type must be its own."""
        state, new = self._known(name), self._arrays.to_numpy(tensor)
        if self._lent:
            raise SegmentError("bad-input", f"{name} is another segment's"[:200])
        if state.shape != new.shape or state.dtype != new.dtype:
            raise SegmentError(
                "bad-input", f"{name} is {state.dtype} {list(state.shape)}, not {list(new.shape)}"
            )
        state[...] = new
        self._session, self._n_writes = None, self._n_writes + 1

    def _known(self, name: str) -> Array:
        if name not in self._state:
            raise SegmentError("bad-input", f"there is no state {name!r} in this segment"[:200])
        return self._state[name]

    # --- measuring ---

    def example(self, rows: int) -> tuple[Any, ...]:
        """Made-up inputs of that many rows."""
        rng = np.random.default_rng(0)
        made = []
        for port in self.graph.inputs:
            shape = [_size(size, rows) for size in port.shape]
            _require(shape, "float64", port.name)
            values = rng.standard_normal(shape) if port.dtype in FLOATS else np.zeros(shape)
            made.append(self._arrays.from_numpy(values.astype(port.dtype)))
        return tuple(made)

    def kept_bytes(self, inputs: Sequence[Any]) -> int:
        """None: nothing is kept for backward."""
        return 0


def _is_missing(tensor: onnx.TensorProto) -> bool:
    """Whether an initialiser has a shape but no data."""
    return math.prod(tensor.dims) > 0 and not any(
        (
            tensor.raw_data,
            tensor.float_data,
            tensor.int32_data,
            tensor.int64_data,
            tensor.double_data,
            tensor.uint64_data,
        )
    )


def _element(tensor: onnx.TensorProto) -> str:
    if tensor.data_type not in ELEMENTS:
        raise SegmentError("document", f"the tensor {tensor.name!r} is of an unknown type"[:200])
    return ELEMENTS[tensor.data_type]


def _require(shape: Sequence[int], dtype: str, name: str) -> None:
    """Raise SegmentError where there is no room for a value of this name."""
    nbytes = available_memory.bytes_of(shape, np.dtype(dtype).itemsize, name)
    available_memory.require(nbytes, name)


def _made_up(tensor: onnx.TensorProto) -> Array:
    dtype, shape = _element(tensor), tuple(tensor.dims)
    _require(shape, dtype, tensor.name)
    try:
        if dtype not in FLOATS:
            return np.zeros(shape, dtype)
        made = np.empty(shape, dtype)
    except (ValueError, MemoryError) as error:
        raise SegmentError("out-of-memory", f"{tensor.name}: {error}"[:300]) from error
    made[...] = MADE_UP
    return made


def _dtype(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    if not value.type.HasField("tensor_type") or kind not in ELEMENTS:
        raise SegmentError("document", f"{value.name!r} is not a tensor of a known type"[:200])
    return ELEMENTS[kind]


def _shape(value: onnx.ValueInfoProto) -> tuple[Expression, ...]:
    sizes: list[Expression] = []
    for dim in value.type.tensor_type.shape.dim:
        found = _BATCH.fullmatch(dim.dim_param)
        if found and found[1]:
            sizes.append(("*", BATCH, int(found[1])))
        elif found or not dim.HasField("dim_value"):
            sizes.append(BATCH)
        else:
            sizes.append(dim.dim_value)
    return tuple(sizes)


def _size(size: Expression, rows: int) -> int:
    if isinstance(size, tuple):
        return rows * int(size[2])
    return rows if isinstance(size, str) else size


def _cause(error: Exception) -> tuple[str, str]:
    text = _first_line(error)
    signs = ("allocate", "bad_alloc", "out of memory")  # the last: of an accelerator
    if any(sign in text for sign in signs) or isinstance(error, MemoryError):
        return "out-of-memory", text
    return ("bad-input" if "INVALID_ARGUMENT" in text else "arithmetic"), text


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
