"""An ONNX model run on a few rows, in a process of its own: a file that ends that process, or would
take all memory or time, costs its owner an error and nothing else.

The process gets one line of JSON and the model; it says one line of JSON, and arrays. It loads
numpy and onnxruntime, and nothing else of the model's.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from potluck.documents import read_json
from potluck.errors import FileError, ModelError
from potluck.sanitized_text import quoted

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = "np.ndarray[Any, Any]"

ROWS, PART = 3, 1
LASTS_S = 300  # of all runs together
MOST_OF_MEMORY = 0.5  # of this machine's; only Linux keeps a process to it
LIBRARY_BYTES = 256 << 20  # onnxruntime itself, and the stacks of its threads
OUTPUT_BYTES = 512 << 20  # beside as much as the model has
_TOLERANCE = 1e-3
# what reading raises where the process said anything else
_NONSENSE = (FileError, ValueError, KeyError, TypeError, EOFError, OSError, MemoryError)
_NUMBERS = "biuf"


@dataclass(frozen=True, slots=True)
class TrialValue:
    """One value of the model: its type, its shape at `ROWS`, `PART` and the other rows, and the
    dimension along which these parts make up the whole; None where they do not.
    """

    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    rows_dim: int | None

    @property
    def is_by_rows(self) -> bool:
        """Whether its first dimension counts rows."""
        return self.rows_dim == 0


@dataclass(frozen=True, slots=True)
class TrialRun:
    """What was seen of every value; the arrays of those that are the same at any number of rows,
    and of those that were asked for, at `ROWS`.
    """

    values: Mapping[str, TrialValue]
    still: Mapping[str, "Array"]
    wanted: Mapping[str, "Array"]


def run_apart(
    model: bytes,
    inputs: Iterable[tuple[str, str, tuple[int, ...], int]],
    *,
    watched: Iterable[str],
    still: Iterable[str] = (),
    wanted: Iterable[str] = (),
    file: str = "the model",
) -> TrialRun:
    """Run the model on made-up rows.

    Parameters
    ----------
    model
        An ONNX model whose outputs are `watched`.
    inputs
        Of each its name, its type, its shape at one row, and the dimension that counts rows.
    watched
        The names of its outputs.
    still
        Of these the arrays are told where they are the same at any number of rows.
    wanted
        Of these they are told in any case.
    file
        For errors.

    Raises
    ------
    ModelError
        onnxruntime refuses it, or it ended the process, or took too much memory or time.
    """
    order = {
        "inputs": [*inputs],
        "watched": [*watched],
        "still": [*still],
        "wanted": [*wanted],
        "told_bytes": OUTPUT_BYTES + len(model),
        "memory_bytes": memory_bytes(),
        "lasts_s": LASTS_S,
    }
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.run(
                [sys.executable, "-P", "-m", __name__],
                input=json.dumps(order).encode() + b"\n" + model,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                timeout=LASTS_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ModelError(f"{file} did not answer {ROWS} rows within {LASTS_S} s.") from None
        output.seek(0)
        if process.returncode:
            raise ModelError(
                f"{file} ended the process that ran it ({_ending(process.returncode)}).",
                next_step="A number in it may be one that no processor divides by, or it takes "
                "more memory than this machine has.",
            )
        return _read(output, file)


def _read(output: IO[bytes], file: str) -> TrialRun:
    try:
        header = read_json(output.readline(), file)
        if "error" in header:
            raise ModelError(f"onnxruntime cannot run it: {quoted(header['error'], 240)}")
        values = {
            name: TrialValue(dtype, tuple(map(tuple, shapes)), rows_dim)
            for name, dtype, shapes, rows_dim in header["values"]
        }
        arrays = (_array(output, dtype, shape) for dtype, shape in header["arrays"])
        still = dict(zip(header["still"], arrays, strict=False))
        return TrialRun(values, still, dict(zip(header["wanted"], arrays, strict=True)))
    except _NONSENSE as error:
        raise ModelError(f"{file}: the process that ran it said nothing that holds.") from error


def _array(output: IO[bytes], dtype: str, shape: Sequence[int]) -> Any:
    """The next array of those that follow one another."""
    import numpy as np

    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if n_bytes > os.fstat(output.fileno()).st_size - output.tell():  # else memory is asked for
        raise EOFError(f"an array of {n_bytes} bytes")
    return np.frombuffer(output.read(n_bytes), dtype).reshape(shape).copy()


def _ending(code: int) -> str:
    if code > 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def memory_bytes() -> int:
    """What the runs may take; 0 where the system does not say what there is."""
    try:
        return int(MOST_OF_MEMORY * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 0


# --- in the process of its own --------------------------------------------------------------------


def main(orders: IO[bytes], tell: IO[bytes]) -> None:
    """Run what is asked for; tell what was seen of it, or why it cannot be run.

    Raises
    ------
    ValueError
        Constants of it come to more bytes than there may be.
    """
    order = json.loads(orders.readline())
    import numpy as np
    import onnxruntime

    _keep_within(order["memory_bytes"] + LIBRARY_BYTES, order["told_bytes"], order["lasts_s"])
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            orders.read(), options, providers=["CPUExecutionProvider"]
        )
        runs = tuple(_runs(session, order))
        values = [_seen(name, runs) for name in runs[0]]
        still = [n for n in order["still"] if np.array_equal(runs[0][n], runs[1][n])]
        arrays = [runs[0][name] for name in (*still, *order["wanted"])]
        n_bytes = sum(array.nbytes for array in arrays)
        if n_bytes > order["told_bytes"] // 2:
            raise ValueError(f"its constants come to {n_bytes} bytes")
    except Exception as error:  # onnxruntime's classes share no other base
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        tell.write(json.dumps({"error": text[:1000]}).encode() + b"\n")
        return
    head = {
        "values": values,
        "still": still,
        "wanted": order["wanted"],
        "arrays": [(array.dtype.str, array.shape) for array in arrays],
    }
    tell.write(json.dumps(head).encode() + b"\n")
    for array in arrays:
        tell.write(np.ascontiguousarray(array).tobytes())


def _keep_within(memory_bytes: int, output_bytes: int, lasts_s: int) -> None:
    """So much memory, output and time of the processor from now on, where the system can."""
    with suppress(OSError):  # whoever needs memory most ends first: this process
        Path("/proc/self/oom_score_adj").write_text("1000")
    if sys.platform == "win32":
        return
    import resource

    for which, bound in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, output_bytes),
        (resource.RLIMIT_CPU, lasts_s * (os.cpu_count() or 1)),
        (resource.RLIMIT_DATA, memory_bytes),
    ):
        hard = resource.getrlimit(which)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(which, (bound, bound))


def _runs(session: Any, order: dict[str, Any]) -> "Iterator[dict[str, Array]]":
    """Every value, on three rows, on the first of them, and on the other two."""
    inputs = {
        name: _example(dtype, [*shape[:dim], ROWS * shape[dim], *shape[dim + 1 :]], seed)
        for seed, (name, dtype, shape, dim) in enumerate(order["inputs"])
    }
    names = order["watched"]
    for start, stop in ((0, ROWS), (0, PART), (PART, ROWS)):
        fed = {
            name: inputs[name][(*[slice(None)] * dim, slice(start * shape[dim], stop * shape[dim]))]
            for name, _, shape, dim in order["inputs"]
        }
        yield fed | dict(zip(names, session.run(names, fed), strict=True))


def _example(dtype: str, shape: list[int], seed: int) -> "Array":
    import numpy as np

    rng = np.random.default_rng(seed)
    if np.issubdtype(np.dtype(dtype), np.floating):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)  # valid as tokens, types and masks


def _seen(
    name: str, runs: "tuple[dict[str, Array], ...]"
) -> tuple[str, str, list[tuple[int, ...]], int | None]:
    arrays = [run[name] for run in runs]
    if any(getattr(getattr(a, "dtype", None), "kind", "O") not in _NUMBERS for a in arrays):
        raise ValueError(f"the value {name} is not made of numbers")
    if len({array.ndim for array in arrays}) > 1:
        raise ValueError(f"the number of dimensions of {name} depends on the batch")
    shapes = [array.shape for array in arrays]
    return name, arrays[0].dtype.name, shapes, _rows_dim(*arrays)


def _rows_dim(full: "Array", first: "Array", second: "Array") -> int | None:
    import numpy as np

    dims = [
        i for i, sizes in enumerate(zip(full.shape, first.shape, strict=True)) if len({*sizes}) > 1
    ]
    if len(dims) != 1:
        return None
    (dim,) = dims
    sizes = [array.shape[dim] for array in (full, first, second)]
    others = {(*array.shape[:dim], *array.shape[dim + 1 :]) for array in (full, first, second)}
    if len(others) > 1 or sizes != [first.shape[dim] * n for n in (ROWS, PART, ROWS - PART)]:
        return None
    joined = np.concatenate([first, second], dim).astype(np.float64)
    scale = float(
        np.abs(np.nan_to_num(full.astype(np.float64), posinf=0, neginf=0)).max(initial=0.0)
    )
    tolerance = {"rtol": _TOLERANCE, "atol": _TOLERANCE * scale}
    return dim if np.allclose(full, joined, equal_nan=True, **tolerance) else None


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
