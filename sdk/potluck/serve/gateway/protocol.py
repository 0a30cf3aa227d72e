"""The Open Inference Protocol v2 (KServe, Triton), requests and answers: JSON, and the binary
tensor extension, whose bytes follow the JSON. Pure: bytes in, arrays out.

Nothing is trusted: shapes and sizes are compared before memory is taken, JSON is counted before it
is read, and every refusal names the field.
"""

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError

if TYPE_CHECKING:
    import numpy as np

# the protocol's names of types, and numpy's, which has none of bfloat16: two bytes, as they are
BF16 = "|V2"
DTYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": BF16,
}
NAMES = {numpy: name for name, numpy in DTYPES.items()} | {"bfloat16": "BF16"}
MAX_TENSORS = 64
MAX_DIMS = 16
MAX_NAME = 256
MAX_VALUES = 2**31
MAX_JSON_BYTES = 16 * 2**20  # 800,000 values; of more, bytes behind the JSON take a fifth of it
# An empty list or mapping takes 56 or 64 bytes of memory for 3 of text, a name and its value 200.
MAX_LISTS = 250_000  # 1,000 images of 224 rows have 224,000 rows
MAX_FIELDS = 10_000  # 64 tensors have some 500
MAX_TIMEOUT_US = 2**64  # what other servers of the protocol take
LONGEST_S = 86_400.0


class BadRequest(UserError):
    """A request that is none. Facts: `field`."""

    status = 400  # of HTTP


class NotFound(BadRequest):
    """A request to what is not there."""

    status = 404


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model, as its metadata says; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def document(self) -> dict[str, object]:
        """As JSON data."""
        return {"name": self.name, "datatype": self.datatype, "shape": [*self.shape]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Infer:
    """A request: inputs by name, and the outputs that are wanted, with whether as bytes each."""

    inputs: "Mapping[str, np.ndarray[Any, Any]]"
    id: str = ""
    outputs: Mapping[str, bool] = field(default_factory=dict)
    binary: bool = False  # of outputs that are not named
    timeout_s: float | None = None


def read(body: bytes, json_bytes: int | None) -> Infer:
    """The request of a body.

    Parameters
    ----------
    body
        All of it.
    json_bytes
        How much of it is JSON, as `Inference-Header-Content-Length` says; None: all.

    Raises
    ------
    BadRequest
        Names the field.
    """
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise _bad(
            "Inference-Header-Content-Length", f"{json_bytes} of {len(body)} bytes is no length"
        )
    data = body if json_bytes is None else body[:json_bytes]
    document = read_document(data, "; send large tensors as bytes behind it (binary_data_size)")
    raw = memoryview(body)[len(body) if json_bytes is None else json_bytes :]
    rows = _rows(document, "inputs")
    if not rows:
        raise _bad("inputs", "one tensor or more is expected, got none")
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for place, row in enumerate(rows):
        name, tensor, raw = _tensor(row, f"inputs[{place}]", raw)
        if name in inputs:
            raise _bad(f"inputs[{place}].name", f"{name!r} is there twice")
        inputs[name] = tensor
    if len(raw):
        raise _bad("body", f"{len(raw)} bytes more than the tensors take")
    parameters = _parameters(document, "parameters")
    return Infer(
        inputs=inputs,
        id=_text(document, "id", "id", default=""),
        outputs=dict(_wanted(document)),
        binary=parameters.get("binary_data_output") is True,
        timeout_s=_timeout_s(parameters.get("timeout")),
    )


def read_document(data: bytes, advice: str = "") -> dict[str, Any]:
    """The object in a body of JSON.

    Parameters
    ----------
    data
        The body.
    advice
        What else whoever sends too much of it may do.

    Raises
    ------
    BadRequest
        It is none, or would take much more memory than its text.
    """

    def strict(name: str) -> object:
        raise ValueError(f"{name} is not JSON")

    _check_counts(data, advice)
    try:
        document = json.loads(data, parse_constant=strict)
    except (ValueError, RecursionError) as error:
        raise _bad("body", f"it is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise _bad("body", f"an object is expected, got {type(document).__name__}")
    return document


def write(
    model: str, request: Infer, outputs: "Mapping[str, np.ndarray[Any, Any]]", **more: object
) -> tuple[bytes, int | None]:
    """The answer as a body, and how much of it is JSON; None: all.

    Parameters
    ----------
    model
        Its name.
    request
        What is answered.
    outputs
        By name.
    **more
        For `parameters`.

    Raises
    ------
    BadRequest
        An output is asked for that there is not.
    """
    unknown = [name for name in request.outputs if name not in outputs]
    if unknown:
        raise _bad("outputs", f"no output is called {unknown[0]!r}; there is {', '.join(outputs)}")
    rows, raw = [], []
    for name, tensor in outputs.items():
        if request.outputs and name not in request.outputs:
            continue
        datatype = NAMES[str(tensor.dtype)]
        row: dict[str, Any] = {"name": name, "datatype": datatype, "shape": [*tensor.shape]}
        if request.outputs.get(name, request.binary):
            raw.append(tensor.tobytes())
            row["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            flat = tensor.reshape(-1)
            row["data"] = _finite((_from_bf16(flat) if datatype == "BF16" else flat).tolist())
        rows.append(row)
    document: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": rows}
    if request.id:
        document["id"] = request.id
    if more:
        document["parameters"] = more
    header = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return b"".join((header, *raw)), len(header) if raw else None


def _from_bf16(tensor: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """The same numbers in float32, whose upper half a bfloat16 is."""
    import numpy as np

    return (tensor.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _to_bf16(tensor: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """The nearest to numbers in float32, the even one of two."""
    import numpy as np

    bits = tensor.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(BF16)


def _finite(values: list[Any]) -> list[Any]:
    """JSON has no NaN and no infinity: null, as other servers of the protocol write them."""
    return [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]


def _check_counts(data: bytes, advice: str) -> None:
    """Refuse what takes much more memory than its text, or long, before any of it is read."""
    if len(data) > MAX_JSON_BYTES:
        raise _bad(
            "body", f"at most {MAX_JSON_BYTES} bytes of JSON are taken, got {len(data)}{advice}"
        )
    for kind, limit, n in (
        ("lists and objects", MAX_LISTS, data.count(b"[") + data.count(b"{")),
        ("fields", MAX_FIELDS, data.count(b":")),
    ):
        if n > limit:
            raise _bad("body", f"at most {limit} {kind} are taken, got {n}")


def _rows(document: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    rows = document.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _bad(name, "a list of objects is expected")
    if len(rows) > MAX_TENSORS:
        raise _bad(name, f"at most {MAX_TENSORS} are taken, got {len(rows)}")
    return rows


def _text(document: Mapping[str, Any], key: str, name: str, default: str | None = None) -> str:
    value = document.get(key, default)
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise _bad(name, f"a text of up to {MAX_NAME} characters is expected")
    return value


def _parameters(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get("parameters", {})
    if not isinstance(value, dict):
        raise _bad(name, "an object is expected")
    return value


def _timeout_s(value: object) -> float | None:
    """The protocol's timeout is in microseconds."""
    if value is None:
        return None
    if type(value) is not int or not 0 < value <= MAX_TIMEOUT_US:
        raise _bad("parameters.timeout", f"microseconds above zero are expected, got {_of(value)}")
    return min(value / 1e6, LONGEST_S)


def _wanted(document: Mapping[str, Any]) -> Sequence[tuple[str, bool]]:
    found = []
    for place, row in enumerate(_rows(document, "outputs")):
        where = f"outputs[{place}]"
        parameters = _parameters(row, f"{where}.parameters")
        found.append((_text(row, "name", f"{where}.name"), parameters.get("binary_data") is True))
    return found


def _tensor(
    row: Mapping[str, Any], where: str, raw: memoryview
) -> "tuple[str, np.ndarray[Any, Any], memoryview]":
    import numpy as np

    name = _text(row, "name", f"{where}.name")
    datatype = _text(row, "datatype", f"{where}.datatype")
    if datatype not in DTYPES:
        raise _bad(f"{where}.datatype", f"{_of(datatype)} is none of {', '.join(DTYPES)}")
    dtype = np.dtype(DTYPES[datatype])
    shape = _shape(row.get("shape"), f"{where}.shape")
    count = math.prod(shape)
    size = _parameters(row, f"{where}.parameters").get("binary_data_size")
    if size is not None:
        if type(size) is not int or size != count * dtype.itemsize:
            raise _bad(
                f"{where}.parameters.binary_data_size",
                f"{count * dtype.itemsize} bytes are expected for {datatype} of {[*shape]}, "
                f"got {_of(size)}",
            )
        if size > len(raw):
            raise _bad(f"{where}.parameters.binary_data_size", f"{len(raw)} bytes came")
        stored = np.dtype(np.uint16) if datatype == "BF16" else dtype
        tensor = np.frombuffer(raw[:size], dtype=stored.newbyteorder("<")).astype(stored)
        return name, tensor.view(dtype).reshape(shape), raw[size:]
    values = _flat(row.get("data"), f"{where}.data")
    if len(values) != count:
        raise _bad(
            f"{where}.data", f"{count} values are expected for {[*shape]}, got {len(values)}"
        )
    is_bf16 = datatype == "BF16"
    dtype = np.dtype(np.float32) if is_bf16 else dtype
    kinds = {"b": (bool,), "f": (int, float)}.get(dtype.kind, (int,))
    if not set(map(type, values)) <= set(kinds):
        odd = next(v for v in values if type(v) not in kinds)
        raise _bad(f"{where}.data", f"{_of(odd)} is no {datatype}")
    try:
        with np.errstate(over="ignore"):  # it is infinite then, and refused
            flat = np.array(values, dtype=dtype)
    except (OverflowError, ValueError):
        raise _bad(f"{where}.data", f"a number is too large for {datatype}") from None
    tensor = _to_bf16(flat) if is_bf16 else flat
    if dtype.kind == "f" and not np.isfinite(_from_bf16(tensor) if is_bf16 else tensor).all():
        raise _bad(f"{where}.data", f"a number is too large for {datatype}")
    return name, tensor.reshape(shape), raw


def _shape(shape: object, where: str) -> tuple[int, ...]:
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_DIMS
        or any(type(n) is not int or not 0 <= n < 2**31 for n in shape)
    ):
        raise _bad(where, f"up to {MAX_DIMS} whole numbers are expected, got {_of(shape)}")
    if math.prod(n or 1 for n in shape) > MAX_VALUES:  # with a 0 among them, too
        raise _bad(where, f"sizes that come to {MAX_VALUES} at most are expected, got {_of(shape)}")
    return tuple(shape)


def _flat(data: object, where: str) -> list[Any]:
    """Values in row-major order, whether they are nested or not."""
    if not isinstance(data, list):
        raise _bad(where, "a list of values, or bytes behind the JSON, are expected")
    for _ in range(MAX_DIMS + 1):
        if not data or not isinstance(data[0], list):
            return data
        if not all(isinstance(part, list) for part in data):
            raise _bad(where, "lists and values are mixed")
        data = [value for part in data for value in part]
    raise _bad(where, f"lists are nested more than {MAX_DIMS} deep")


def _of(value: object) -> str:
    """A value in an error: a few words of it, however large it is."""
    return reprlib.repr(value)


def _bad(name: str, text: str) -> BadRequest:
    return BadRequest(f"{name}: {text}.", field=name)
