"""The exact list of operators that a graph document may name.

The SDK, the agent and its worker compare with this one.

Forward ATen operators, and three of our own: the device's autograd makes the backward calls itself,
from values that it computed. Left out on purpose: whatever reads files (from_file), hands out
memory as it lies (empty), or takes indices without checking them (every *_backward). What draws
random numbers otherwise than as many as a value has (bernoulli, multinomial) is written out in
`draw`.
"""

from typing import Any


def aten(text: str) -> tuple[str, ...]:
    """The full names of operators in a text; a word without an overload is `.default`."""
    return tuple(f"aten.{word}" if "." in word else f"aten.{word}.default" for word in text.split())


# by what they are, for readers
KINDS: dict[str, tuple[str, ...]] = {
    "convolution": aten(
        "conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding conv_transpose1d "
        "conv_transpose2d.input conv_transpose3d.input convolution"
    ),
    "product": aten(
        "linear addmm matmul mm bmm baddbmm einsum mv dot addmv addbmm addr _trilinear "
        "_cdist_forward linalg_cross"
    ),
    "attention": aten("scaled_dot_product_attention"),
    "recurrent": aten("lstm.input gru.input rnn_tanh.input rnn_relu.input"),
    "embedding": aten("embedding"),
    "normalisation": aten(
        "batch_norm layer_norm group_norm instance_norm rms_norm linalg_vector_norm "
        "native_layer_norm native_group_norm "
        "_native_batch_norm_legit_no_training renorm"
    ),
    "activation": aten(
        "relu relu6 gelu silu sigmoid tanh hardtanh hardswish hardsigmoid leaky_relu elu selu "
        "celu softplus mish prelu log_sigmoid softmax.int log_softmax.int clamp clamp_min "
        "clamp_max threshold hardshrink softshrink glu _softmax _log_softmax"
    ),
    "pooling": aten(
        "max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_max_pool2d upsample_nearest2d.vec upsample_bilinear2d.vec max_pool3d "
        "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices avg_pool3d "
        "adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool1d "
        "adaptive_max_pool3d max_unpool2d max_unpool3d upsample_nearest1d upsample_nearest2d "
        "upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d "
        "upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
        "grid_sampler_2d grid_sampler_3d im2col col2im"
    ),
    "shape": aten(
        "view reshape flatten.using_ints unflatten.int permute transpose.int t numpy_T "
        "swapaxes movedim.int unsqueeze squeeze squeeze.dim squeeze.dims expand expand_as "
        "view_as reshape_as repeat repeat_interleave.self_int contiguous clone detach alias "
        "select.int slice.Tensor narrow diagonal index.Tensor index_select gather "
        "broadcast_tensors split.Tensor split_with_sizes chunk unbind.int cat stack pad "
        "constant_pad_nd roll flip tril triu pixel_shuffle pixel_unshuffle channel_shuffle "
        "diag_embed unfold rot90 _unsafe_view unsafe_split.Tensor reflection_pad1d "
        "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
        "replication_pad3d index_put index_add index_copy index_fill.int_Scalar "
        "index_fill.int_Tensor scatter.src scatter.value scatter_add scatter_reduce.two "
        "select_scatter slice_scatter diagonal_scatter masked_scatter take fill.Scalar "
        "fill.Tensor block_diag"
    ),
    "creation": aten(
        "arange arange.start arange.start_step full zeros ones full_like zeros_like ones_like "
        "new_zeros new_ones new_full scalar_tensor eye eye.m linspace logspace tril_indices "
        "triu_indices hann_window hann_window.periodic hamming_window hamming_window.periodic "
        "kaiser_window kaiser_window.periodic kaiser_window.beta fft_fftfreq fft_rfftfreq"
    ),
    "arithmetic": aten(
        "add.Tensor add.Scalar sub.Tensor sub.Scalar mul.Tensor mul.Scalar div.Tensor "
        "div.Scalar div.Tensor_mode rsub.Scalar neg abs sign exp expm1 log log1p log2 sqrt "
        "rsqrt reciprocal square pow.Tensor_Scalar pow.Tensor_Tensor sin cos erf floor ceil "
        "round trunc maximum minimum remainder.Scalar floor_divide addcmul to.dtype type_as "
        "acos acosh asin asinh atan atan2 atanh tan cosh sinh log10 exp2 erfc erfinv digamma "
        "lgamma polygamma mvlgamma sinc frac fmod.Scalar fmod.Tensor remainder.Tensor "
        "remainder.Scalar_Tensor pow.Scalar hypot copysign.Tensor copysign.Scalar heaviside "
        "i0 igamma igammac lerp.Scalar lerp.Tensor addcdiv logaddexp logaddexp2 xlogy.Tensor "
        "nan_to_num round.decimals deg2rad rad2deg gcd lcm ldexp.Tensor rsub.Tensor "
        "clamp.Tensor clamp_min.Tensor clamp_max.Tensor fmax fmin nextafter angle "
        "div.Scalar_mode logit special_bessel_j0 special_bessel_j1 special_entr special_erfcx "
        "special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_xlog1py "
        "special_zeta"
    ),
    "comparison": aten(
        "eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar "
        "gt.Tensor gt.Scalar ge.Tensor ge.Scalar logical_and logical_or logical_not "
        "logical_xor bitwise_and.Tensor bitwise_or.Tensor bitwise_not __and__.Tensor "
        "__or__.Tensor isnan isinf where.self masked_fill.Scalar masked_fill.Tensor "
        "bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Tensor bitwise_xor.Scalar "
        "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar "
        "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar __lshift__.Scalar "
        "__lshift__.Tensor __rshift__.Scalar __rshift__.Tensor isneginf isposinf signbit"
    ),
    "reduction": aten(
        "sum sum.dim_IntList mean mean.dim amax amin max min max.dim min.dim argmax argmin "
        "var.correction std.correction logsumexp cumsum diff topk any any.dim all all.dim "
        "any.dims all.dims prod prod.dim_int cumprod cummax cummin logcumsumexp sort "
        "sort.stable median median.dim nanmedian.dim mode kthvalue aminmax "
        "var_mean.correction std_mean.correction nansum count_nonzero.dim_IntList"
    ),
    "loss": aten(
        "cross_entropy_loss nll_loss nll_loss_nd mse_loss l1_loss smooth_l1_loss huber_loss "
        "binary_cross_entropy binary_cross_entropy_with_logits kl_div soft_margin_loss "
        "multi_margin_loss"
    ),
    "random": aten("dropout feature_dropout"),
    # as many random numbers as a value has, whatever its values: in training alone
    "draw": aten("rand_like randn_like"),
    "complex": aten("complex polar view_as_complex view_as_real _conj _fft_r2c _fft_c2c _fft_c2r"),
    # of one value in another: not entry by entry, and without derivative
    "search": aten("searchsorted.Tensor bucketize.Tensor isin.Tensor_Tensor"),
    "matrix": aten(
        "_linalg_det _linalg_slogdet linalg_qr linalg_matrix_exp linalg_solve_triangular"
    ),
    # of our own (`worker/blocks.py`): smaller values, whose gradients are as small
    "code": ("potluck.pack_int8.default", "potluck.unpack_int8.default"),
    # in place, on a buffer alone: how batch normalisation counts its batches
    "buffer": aten("add_.Tensor"),
    # of our own (`worker/caches.py`), in place, on a buffer: what a request leaves to the next
    "cache": ("potluck.cache_scatter.default",),
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
    "aten.rnn_tanh.input": (6, False),
    "aten.rnn_relu.input": (6, False),
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
