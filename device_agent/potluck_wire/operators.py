"""The exact list of operators that a graph document may name.

The SDK, the agent and its worker compare with this one.

Forward ATen operators only: the device's autograd makes the backward calls itself, from values that
it computed. Left out on purpose: whatever reads files (from_file), hands out memory as it lies
(empty), takes indices without checking them (every *_backward), or draws random numbers that a
split would change (rand, randn, bernoulli).
"""

from typing import Any


def _names(text: str) -> tuple[str, ...]:
    return tuple(f"aten.{word}" if "." in word else f"aten.{word}.default" for word in text.split())


# by what they are, for readers; a word without an overload is `.default`
KINDS: dict[str, tuple[str, ...]] = {
    "convolution": _names(
        "conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding conv_transpose1d "
        "conv_transpose2d.input"
    ),
    "product": _names("linear addmm matmul mm bmm baddbmm einsum"),
    "attention": _names("scaled_dot_product_attention"),
    "recurrent": _names("lstm.input gru.input"),
    "embedding": _names("embedding"),
    "normalisation": _names(
        "batch_norm layer_norm group_norm instance_norm rms_norm linalg_vector_norm"
    ),
    "activation": _names(
        "relu relu6 gelu silu sigmoid tanh hardtanh hardswish hardsigmoid leaky_relu elu selu celu "
        "softplus mish prelu log_sigmoid softmax.int log_softmax.int clamp clamp_min clamp_max"
    ),
    "pooling": _names(
        "max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_max_pool2d upsample_nearest2d.vec upsample_bilinear2d.vec"
    ),
    "shape": _names(
        "view reshape flatten.using_ints unflatten.int permute transpose.int t numpy_T swapaxes "
        "movedim.int unsqueeze squeeze squeeze.dim squeeze.dims expand expand_as view_as "
        "reshape_as repeat repeat_interleave.self_int contiguous clone detach alias select.int "
        "slice.Tensor narrow diagonal index.Tensor index_select gather broadcast_tensors "
        "split.Tensor split_with_sizes chunk unbind.int cat stack pad constant_pad_nd roll flip "
        "tril triu pixel_shuffle pixel_unshuffle channel_shuffle"
    ),
    "creation": _names(
        "arange arange.start arange.start_step full zeros ones full_like zeros_like ones_like "
        "new_zeros new_ones new_full scalar_tensor"
    ),
    "arithmetic": _names(
        "add.Tensor add.Scalar sub.Tensor sub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar "
        "div.Tensor_mode rsub.Scalar neg abs sign exp expm1 log log1p log2 sqrt rsqrt reciprocal "
        "square pow.Tensor_Scalar pow.Tensor_Tensor sin cos erf floor ceil round trunc maximum "
        "minimum remainder.Scalar floor_divide addcmul to.dtype type_as"
    ),
    "comparison": _names(
        "eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor "
        "gt.Scalar ge.Tensor ge.Scalar logical_and logical_or logical_not logical_xor "
        "bitwise_and.Tensor bitwise_or.Tensor bitwise_not __and__.Tensor __or__.Tensor isnan isinf "
        "where.self masked_fill.Scalar masked_fill.Tensor"
    ),
    "reduction": _names(
        "sum sum.dim_IntList mean mean.dim amax amin max min max.dim min.dim argmax argmin "
        "var.correction std.correction logsumexp cumsum diff topk any any.dim all all.dim"
    ),
    "loss": _names(
        "cross_entropy_loss nll_loss nll_loss_nd mse_loss l1_loss smooth_l1_loss huber_loss "
        "binary_cross_entropy binary_cross_entropy_with_logits kl_div"
    ),
    "random": _names("dropout feature_dropout"),
    # in place, on a buffer alone: how batch normalisation counts its batches
    "buffer": _names("add_.Tensor"),
}

KIND_OF: dict[str, str] = {name: kind for kind, names in KINDS.items() for name in names}
OPERATORS: frozenset[str] = frozenset(KIND_OF)

# Operators that behave otherwise in training: (operator, position of the argument, its value in
# evaluation).
TRAINING_ARGUMENT: dict[str, tuple[int, object]] = {
    "aten.batch_norm.default": (5, False),
    "aten.instance_norm.default": (5, False),
    "aten.dropout.default": (2, False),
    "aten.feature_dropout.default": (2, False),
    "aten.scaled_dot_product_attention.default": (4, 0.0),
    "aten.lstm.input": (6, False),
    "aten.gru.input": (6, False),
}
_NORMALISATIONS = ("aten.batch_norm.default", "aten.instance_norm.default")


def in_evaluation(op: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an operator as they are outside training: normalisation by its statistics,
    no dropout.

    A normalisation that keeps no statistics (its fourth argument is None) takes those of its input,
    then as ever.
    """
    if op not in TRAINING_ARGUMENT:
        return args
    place, value = TRAINING_ARGUMENT[op]
    if len(args) <= place or (op in _NORMALISATIONS and args[3] is None):
        return args
    return (*args[:place], value, *args[place + 1 :])


def outside(names: tuple[str, ...] | list[str]) -> str:
    """The first of `names` that is not on the list; empty where all are."""
    return next((name for name in names if name not in OPERATORS), "")
