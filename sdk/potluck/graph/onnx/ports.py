"""What an ONNX piece takes and gives, with sizes that depend on the batch."""

import numpy as np
import onnx

from potluck.errors import ModelError
from potluck_wire.graph import BATCH, Expression


def port(name: str, dtype: str, shape: tuple[Expression, ...]) -> onnx.ValueInfoProto:
    """What a piece takes or gives.

    Parameters
    ----------
    name, dtype
        Of the value.
    shape
        Its sizes, which may be multiples of the batch.

    Raises
    ------
    ModelError
        A size depends on the batch other than by a factor.
    """
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, element, [_dim(name, size) for size in shape])


def _dim(name: str, size: Expression) -> int | str:
    """A fixed size, `batch`, or `batch*K`."""
    match size:
        case int():
            return size
        case str():
            return size
        case ("*", str(), int(times)) | ("*", int(times), str()):
            return f"{BATCH}*{times}"
        case _:
            raise ModelError(
                f"the size of {name} depends on the batch in another way than by a factor."
            )
