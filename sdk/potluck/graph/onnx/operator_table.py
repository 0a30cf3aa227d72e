"""What the operators of ONNX are in torch: a table from their names to functions, exact but for the
order of sums.

Each gets the tensors that it computes with, and a `Call` that knows the rest: attributes, arguments
that are sizes or axes, and the shape that comes out. What is not in there, or is used in a way that
torch does not have, is refused.
"""

# mypy: disable-error-code=no-any-return
# Calling a function of torch that is chosen at run time is typed as Any.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from potluck.errors import ModelError

_DTYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One node: `fixed` holds the values of its inputs that do not depend on the data, None for the
    others; `shapes` are those of its outputs.
    """

    op: str
    opset: int
    attributes: Mapping[str, Any]
    fixed: Sequence["np.ndarray[Any, Any] | None"]
    shapes: Sequence[tuple[Any, ...]]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def numbers(self, place: int, name: str = "") -> list[int] | None:
        """Whole numbers given as that input, or in older models as that attribute.

        None where they are not given.
        """
        if place < len(self.fixed) and self.fixed[place] is not None:
            return [int(n) for n in np.asarray(self.fixed[place]).reshape(-1)]
        found = self.get(name)
        return None if found is None else [int(n) for n in np.atleast_1d(found)]

    def number(self, place: int, name: str = "", default: Any = None) -> Any:
        """One number given as that input or attribute.

        Parameters
        ----------
        place
            Of the input.
        name
            Of the attribute, in older versions.
        default
            Where neither is given.
        """
        if place < len(self.fixed) and self.fixed[place] is not None:
            return np.asarray(self.fixed[place]).reshape(-1)[0].item()
        return self.get(name, default)

    def refuse(self, why: str) -> ModelError:
        """The error that says what torch does not have."""
        return ModelError(f"the ONNX operator {self.op} {why}.", operator=self.op)


def _pads(
    call: Call, n: int, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int]
) -> list[list[int]]:
    """Rows of padding (before, behind) for each of `n` spatial dimensions."""
    auto = call.get("auto_pad", b"NOTSET").decode()
    if auto in ("NOTSET", ""):
        flat = call.get("pads") or [0] * (2 * n)
        return [[flat[d], flat[n + d]] for d in range(n)]
    if auto == "VALID":
        return [[0, 0]] * n
    found = []
    dilations = call.get("dilations") or [1] * n
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + dilation * (window - 1) + 1 - size, 0)
        less, more = total // 2, total - total // 2
        found.append([less, more] if auto == "SAME_UPPER" else [more, less])
    return found


def _padded(x: Tensor, pads: list[list[int]], fill: float = 0.0) -> tuple[Tensor, list[int]]:
    """The tensor and the padding that is left for the operator: none where the two sides differ."""
    if all(before == behind for before, behind in pads):
        return x, [before for before, _ in pads]
    return functional.pad(x, [n for pair in reversed(pads) for n in pair], value=fill), [0] * len(
        pads
    )


def _conv(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    n = x.dim() - 2
    strides, dilations = call.get("strides") or [1] * n, call.get("dilations") or [1] * n
    x, padding = _padded(x, _pads(call, n, x.shape[2:], weight.shape[2:], strides))
    run = (functional.conv1d, functional.conv2d, functional.conv3d)[n - 1]
    return run(x, weight, bias, strides, padding, dilations, call.get("group", 1))


def _conv_transpose(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    n = x.dim() - 2
    to_size = call.get("output_shape") or call.get("auto_pad", b"NOTSET").startswith(b"SAME")
    pads = [] if to_size else _pads(call, n, (), (), ())
    if to_size or n > 2 or any(a != b for a, b in pads):
        raise call.refuse("pads its two sides differently, or to a given size")
    strides, dilations = call.get("strides") or [1] * n, call.get("dilations") or [1] * n
    extra = call.get("output_padding") or [0] * n
    run = functional.conv_transpose1d if n == 1 else functional.conv_transpose2d
    return run(
        x, weight, bias, strides, [a for a, _ in pads], extra, call.get("group", 1), dilations
    )


def _gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    a = a.t() if call.get("transA", 0) else a
    b = b if call.get("transB", 0) else b.t()
    if alpha == beta == 1.0 and (c is None or c.dim() == 1):
        return functional.linear(a, b, c)
    made = functional.linear(a, b) * alpha
    return made if c is None else made + c * beta


def _batch_norm(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    return functional.batch_norm(x, mean, var, scale, bias, False, 0.0, call.get("epsilon", 1e-5))


def _layer_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    over = list(x.shape[call.get("axis", -1) % x.dim() :])
    return functional.layer_norm(x, over, scale.reshape(over), bias, call.get("epsilon", 1e-5))


def _instance_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return functional.instance_norm(x, weight=scale, bias=bias, eps=call.get("epsilon", 1e-5))


def _max_pool(call: Call, x: Tensor) -> Tensor:
    n, kernel = x.dim() - 2, call.get("kernel_shape")
    strides = call.get("strides") or [1] * n
    if len(call.shapes) > 1 or n > 2:
        raise call.refuse("gives indices, or has more than two dimensions")
    x, padding = _padded(x, _pads(call, n, x.shape[2:], kernel, strides), float("-inf"))
    run = functional.max_pool1d if n == 1 else functional.max_pool2d
    return run(
        x,
        kernel,
        strides,
        padding,
        call.get("dilations") or [1] * n,
        bool(call.get("ceil_mode", 0)),
    )


def _average_pool(call: Call, x: Tensor) -> Tensor:
    n, kernel = x.dim() - 2, call.get("kernel_shape")
    strides, counted = call.get("strides") or [1] * n, bool(call.get("count_include_pad", 0))
    pads = _pads(call, n, x.shape[2:], kernel, strides)
    if (
        n > 2
        or any(d != 1 for d in call.get("dilations") or ())
        or (not counted and any(a != b for a, b in pads))
    ):
        raise call.refuse("has holes in its window, or pads its two sides differently")
    x, padding = _padded(x, pads)
    ceil_mode, counted = bool(call.get("ceil_mode", 0)), counted or not any(padding)
    if n == 1:
        return functional.avg_pool1d(x, kernel, strides, padding, ceil_mode, counted)
    return functional.avg_pool2d(x, kernel, strides, padding, ceil_mode, counted)


def _resize(call: Call, x: Tensor) -> Tensor:
    mode = call.get("mode", b"nearest").decode()
    place = call.get(
        "coordinate_transformation_mode", b"half_pixel" if call.op == "Resize" else b"asymmetric"
    ).decode()
    size = list(call.shapes[0][2:])
    if x.dim() != 4 or tuple(call.shapes[0][1:2]) != tuple(x.shape[1:2]):
        raise call.refuse("changes something else than height and width")
    if mode == "nearest":
        rounded = call.get("nearest_mode", b"round_prefer_floor").decode()
        is_multiple = all(new % old == 0 for new, old in zip(size, x.shape[2:], strict=True))
        even = place == "asymmetric" and (rounded == "floor" or call.op == "Upsample")
        if is_multiple and (
            even or (place in ("half_pixel", "pytorch_half_pixel") and rounded.startswith("round"))
        ):
            return functional.interpolate(x, size=size, mode="nearest")
    if mode == "linear" and place in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return functional.interpolate(
            x, size=size, mode="bilinear", align_corners=place == "align_corners"
        )
    raise call.refuse(f"resizes by {mode}, {place}")


def _depth_to_space(call: Call, x: Tensor) -> Tensor:
    n = call.get("blocksize")
    if call.get("mode", b"DCR") == b"CRD":
        return functional.pixel_shuffle(x, n)
    _, c, h, w = x.shape
    parts = x.reshape(-1, n, n, c // (n * n), h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(-1, c // (n * n), h * n, w * n)


def _space_to_depth(call: Call, x: Tensor) -> Tensor:
    n = call.get("blocksize")
    _, c, h, w = x.shape
    return (
        x.reshape(-1, c, h // n, n, w // n, n)
        .permute(0, 3, 5, 1, 2, 4)
        .reshape(-1, c * n * n, h // n, w // n)
    )


def _sliced(call: Call, x: Tensor) -> Tensor:
    starts, ends = call.numbers(1, "starts") or [], call.numbers(2, "ends") or []
    axes, steps = (
        call.numbers(3, "axes") or list(range(len(starts))),
        call.numbers(4) or [1] * len(starts),
    )
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 1:
            raise call.refuse("goes backwards")
        index: list[slice] = [slice(None)] * x.dim()
        index[axis] = slice(start, min(end, 2**62), step)
        x = x[tuple(index)]
    return x


def _gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.dim()
    given = call.fixed[1]
    if given is not None and given.size == 1 and given.ndim == 0:
        return x.select(axis, int(given))
    if given is not None and given.ndim == 1:
        wrapped = [int(i) % x.shape[axis] for i in given]
        if wrapped == list(range(wrapped[0], wrapped[0] + len(wrapped))):
            return x.narrow(axis, wrapped[0], len(wrapped))
        return x.index_select(axis, indices % x.shape[axis])
    if axis == 0 and x.dim() == 2 and call.fixed[0] is not None:
        return functional.embedding(indices, x)
    raise call.refuse("takes entries that only the data tell")


def _pad(call: Call, x: Tensor) -> Tensor:
    if call.get("mode", b"constant") != b"constant":
        raise call.refuse("pads with something else than a constant")
    flat, axes = call.numbers(1, "pads") or [], call.numbers(3) or list(range(x.dim()))
    amounts = {axis % x.dim(): (flat[i], flat[len(axes) + i]) for i, axis in enumerate(axes)}
    pairs = [amounts.get(axis, (0, 0)) for axis in reversed(range(x.dim()))]
    return functional.pad(
        x, [n for pair in pairs for n in pair], value=float(call.number(2, "value", 0.0))
    )


def _clip(call: Call, x: Tensor) -> Tensor:
    low, high = call.number(1, "min"), call.number(2, "max")
    if (low, high) == (0, 6):
        return functional.relu6(x)
    return x if low is None and high is None else x.clamp(low, high)


def _softmax(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(call: Call, x: Tensor) -> Tensor:
        axis = call.get("axis", -1 if call.opset >= 13 else 1) % x.dim()
        if call.opset < 13 and axis != x.dim() - 1:
            raise call.refuse("of this age works on flattened dimensions")
        return run(x, axis)

    return made


def _hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    alpha, beta = call.get("alpha", 0.2), call.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return functional.hardsigmoid(x)
    return (x * alpha + beta).clamp(0.0, 1.0)


def _reduced(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(call: Call, x: Tensor) -> Tensor:
        axes = call.numbers(1, "axes")
        if not axes and call.get("noop_with_empty_axes", 0):
            return x
        axes = [axis % x.dim() for axis in axes or range(x.dim())]
        return run(x, axes, bool(call.get("keepdims", 1)))

    return made


def _over_image(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda call, x: run(x, list(range(2, x.dim())), True)


def _folded(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda call, *tensors: reduce(run, tensors)


def _plain(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda call, *tensors: run(*tensors)


def _reshaped(call: Call, x: Tensor) -> Tensor:
    return x.reshape(call.shapes[0])


def _divided(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _split(call: Call, x: Tensor) -> tuple[Tensor, ...]:
    axis = call.get("axis", 0) % x.dim()
    return torch.split(x, [shape[axis] for shape in call.shapes], axis)


def _extreme(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(call: Call, x: Tensor) -> Tensor:
        if call.get("select_last_index", 0):
            raise call.refuse("takes the last of equals")
        return run(x, call.get("axis", 0), bool(call.get("keepdims", 1)))

    return made


def _prelu(_: Call, x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """One slope for all or for each channel, or any that broadcasts to the input."""
    of_channels = [1] * (x.ndim - 2)
    if slope.numel() == 1 or (x.ndim > 1 and [*slope.shape] == [x.shape[1], *of_channels]):
        return functional.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, x * slope, x)


def _pow(_: Call, x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Of the type of the base, whatever the exponent's is."""
    is_whole = not x.dtype.is_floating_point and exponent.dtype.is_floating_point
    return torch.pow(x.double() if is_whole else x, exponent).to(x.dtype)


_Operator = tuple[int, Callable[..., Any]]
ALL = 64

# name -> (how many of its inputs are tensors that it computes with, the first ones; the function)
TABLE: dict[str, _Operator] = {
    "Conv": (3, _conv),
    "ConvTranspose": (3, _conv_transpose),
    "Gemm": (3, _gemm),
    "MatMul": (2, _plain(torch.matmul)),
    "Einsum": (ALL, lambda call, *xs: torch.einsum(call.get("equation").decode(), *xs)),
    "BatchNormalization": (5, _batch_norm),
    "LayerNormalization": (3, _layer_norm),
    "InstanceNormalization": (3, _instance_norm),
    "Relu": (1, _plain(torch.relu)),
    "LeakyRelu": (1, lambda call, x: functional.leaky_relu(x, call.get("alpha", 0.01))),
    "PRelu": (2, _prelu),
    "Elu": (1, lambda call, x: functional.elu(x, call.get("alpha", 1.0))),
    "Gelu": (
        1,
        lambda call, x: functional.gelu(x, approximate=call.get("approximate", b"none").decode()),
    ),
    "Sigmoid": (1, _plain(torch.sigmoid)),
    "HardSigmoid": (1, _hard_sigmoid),
    "HardSwish": (1, _plain(functional.hardswish)),
    "Tanh": (1, _plain(torch.tanh)),
    "Softplus": (1, _plain(functional.softplus)),
    "Softsign": (1, _plain(lambda x: x / (1.0 + x.abs()))),
    "Mish": (1, _plain(functional.mish)),
    "Softmax": (1, _softmax(torch.softmax)),
    "LogSoftmax": (1, _softmax(torch.log_softmax)),
    "Clip": (1, _clip),
    "MaxPool": (1, _max_pool),
    "AveragePool": (1, _average_pool),
    "GlobalAveragePool": (1, _over_image(torch.mean)),
    "GlobalMaxPool": (1, _over_image(torch.amax)),
    "Resize": (1, _resize),
    "Upsample": (1, _resize),
    "DepthToSpace": (1, _depth_to_space),
    "SpaceToDepth": (1, _space_to_depth),
    "Reshape": (1, _reshaped),
    "Flatten": (1, _reshaped),
    "Squeeze": (1, _reshaped),
    "Unsqueeze": (1, _reshaped),
    "Transpose": (1, lambda call, x: x.permute(call.get("perm") or list(reversed(range(x.dim()))))),
    "Expand": (1, lambda call, x: x.expand(call.shapes[0])),
    "Tile": (1, lambda call, x: x.repeat(call.numbers(1))),
    "Concat": (ALL, lambda call, *xs: torch.cat(xs, call.get("axis"))),
    "Split": (1, _split),
    "Slice": (1, _sliced),
    "Gather": (2, _gather),
    "Pad": (1, _pad),
    "Identity": (1, _plain(lambda x: x)),
    "Dropout": (1, _plain(lambda x: x)),
    "Cast": (1, lambda call, x: x.to(_DTYPES[call.get("to")])),
    "ConstantOfShape": (
        0,
        lambda call: torch.full(
            call.shapes[0], call.get("value", np.zeros(1, np.float32)).reshape(-1)[0].item()
        ),
    ),
    "Add": (2, _plain(torch.add)),
    "Sub": (2, _plain(torch.sub)),
    "Mul": (2, _plain(torch.mul)),
    "Div": (2, _plain(_divided)),
    "Pow": (2, _pow),
    "Neg": (1, _plain(torch.neg)),
    "Abs": (1, _plain(torch.abs)),
    "Exp": (1, _plain(torch.exp)),
    "Log": (1, _plain(torch.log)),
    "Sqrt": (1, _plain(torch.sqrt)),
    "Reciprocal": (1, _plain(torch.reciprocal)),
    "Sin": (1, _plain(torch.sin)),
    "Cos": (1, _plain(torch.cos)),
    "Erf": (1, _plain(torch.erf)),
    "Floor": (1, _plain(torch.floor)),
    "Ceil": (1, _plain(torch.ceil)),
    "Round": (1, _plain(torch.round)),
    "Sum": (ALL, _folded(torch.add)),
    "Max": (ALL, _folded(torch.maximum)),
    "Min": (ALL, _folded(torch.minimum)),
    "Equal": (2, _plain(torch.eq)),
    "Less": (2, _plain(torch.lt)),
    "LessOrEqual": (2, _plain(torch.le)),
    "Greater": (2, _plain(torch.gt)),
    "GreaterOrEqual": (2, _plain(torch.ge)),
    "And": (2, _plain(torch.logical_and)),
    "Or": (2, _plain(torch.logical_or)),
    "Not": (1, _plain(torch.logical_not)),
    "Where": (3, _plain(torch.where)),
    "ReduceSum": (1, _reduced(torch.sum)),
    "ReduceMean": (1, _reduced(torch.mean)),
    "ReduceMax": (1, _reduced(torch.amax)),
    "ReduceMin": (1, _reduced(torch.amin)),
    "ArgMax": (1, _extreme(torch.argmax)),
    "ArgMin": (1, _extreme(torch.argmin)),
}
