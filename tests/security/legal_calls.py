"""For every listed operator calls that are legal: where `operator_calls` begins before it spoils
them.
"""

from dataclasses import dataclass

from potluck_wire.graph import Dtype
from potluck_wire.operators import KINDS, OPERATORS


@dataclass(frozen=True)
class Given:
    """A tensor: integers are below `below`; `layout` is how its elements lie in memory."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 3
    layout: str = "contiguous"


def tensor(*shape):
    return Given(shape)


def positive(*shape):
    """Between 0 and 1, as probabilities are."""
    return Given(shape, layout="probabilities")


def index(*shape, below=3):
    return Given(shape, "int64", below)


def mask(*shape):
    return Given(shape, "bool", 2)


F64 = Dtype("float64")
X = tensor(2, 3, 4)
FEW = tensor(3, 4)
IMAGE = tensor(2, 4, 6, 6)
LINE = tensor(2, 4, 6)
VECTOR, FOUR = tensor(3), tensor(4)


def cells(n_gates, n_layers, n_ways, biases=True):
    """Weights of a recurrent network with 3 features and 4 hidden ones."""
    rows = []
    for layer in range(n_layers):
        width = 3 if layer == 0 else 4 * n_ways
        for _ in range(n_ways):
            rows += [tensor(4 * n_gates, width), tensor(4 * n_gates, 4)] + [tensor(4 * n_gates)] * (
                2 * biases
            )
    return tuple(rows)


def states(n_layers, n_ways):
    return tensor(n_layers * n_ways, 2, 4)


def lstm(n_layers=1, n_ways=1, biases=True, dropout=0.0):
    hx, weights = (states(n_layers, n_ways),) * 2, cells(4, n_layers, n_ways, biases)
    return tensor(5, 2, 3), hx, weights, biases, n_layers, dropout, True, n_ways == 2, False


def gru(n_layers=1, n_ways=1, biases=True, dropout=0.0):
    hx, weights = states(n_layers, n_ways), cells(3, n_layers, n_ways, biases)
    return tensor(5, 2, 3), hx, weights, biases, n_layers, dropout, True, n_ways == 2, False


PROJECTED = (
    tensor(5, 2, 3),
    (tensor(1, 2, 2), tensor(1, 2, 4)),
    (tensor(16, 3), tensor(16, 2), tensor(16), tensor(16), tensor(2, 4)),
    True,
    1,
    0.0,
    False,
    False,
    False,
)
NORM = (IMAGE, FOUR, FOUR, FOUR, positive(4), True, 0.1, 1e-5, False)
CONV_1D, CONV_2D = (LINE, tensor(6, 2, 3), tensor(6)), (IMAGE, tensor(6, 2, 3, 3), tensor(6))
ATTENTION = tensor(2, 4, 5, 6)
SCORES, CLASSES = tensor(4, 5), index(4, below=5)
PLACES = tensor(2, 5, 3)

SPECIAL = {
    "conv1d": [(*CONV_1D, (2,), (1,), (1,), 2), (*CONV_1D, (1,), (0,), (2,), 2)],
    "conv2d": [
        (*CONV_2D, (1, 1), (1, 1), (1, 1), 2),
        (IMAGE, tensor(6, 4, 3, 3), None, (2, 2), (1, 1), (2, 2)),
    ],
    "conv3d": [(tensor(2, 2, 4, 4, 4), tensor(4, 2, 3, 3, 3), tensor(4), (1, 1, 1), (1, 1, 1))],
    "conv1d.padding": [(*CONV_1D, (1,), "same", (1,), 2)],
    "conv2d.padding": [
        (*CONV_2D, (1, 1), "same", (1, 1), 2),
        (*CONV_2D, (1, 1), "valid", (1, 1), 2),
    ],
    "conv3d.padding": [
        (tensor(2, 2, 4, 4, 4), tensor(4, 2, 3, 3, 3), tensor(4), (1, 1, 1), "same")
    ],
    "conv_transpose1d": [(LINE, tensor(4, 3, 3), tensor(6), (2,), (1,), (1,), 2, (1,))],
    "conv_transpose2d.input": [
        (IMAGE, tensor(4, 3, 3, 3), tensor(6), (2, 2), (1, 1), (1, 1), 2, (1, 1))
    ],
    "linear": [(X, tensor(5, 4), tensor(5))],
    "addmm": [(tensor(5), FEW, tensor(4, 5))],
    "matmul": [(X, tensor(4, 5)), (FOUR, FOUR), (tensor(2, 1, 3, 4), tensor(5, 4, 3))],
    "mm": [(FEW, tensor(4, 5))],
    "bmm": [(X, tensor(2, 4, 5))],
    "baddbmm": [(tensor(2, 3, 5), X, tensor(2, 4, 5))],
    "einsum": [
        ("bij,bjk->bik", (X, tensor(2, 4, 5))),
        ("ij,ij->", (FEW, FEW)),
        ("ii->i", (tensor(3, 3),)),
    ],
    "scaled_dot_product_attention": [
        (ATTENTION, ATTENTION, ATTENTION, None, 0.5, True),
        (ATTENTION, tensor(2, 4, 7, 6), tensor(2, 4, 7, 6), mask(2, 1, 5, 7)),
        (ATTENTION, ATTENTION, ATTENTION, tensor(5, 5), 0.0, False),
        (ATTENTION, tensor(2, 2, 5, 6), tensor(2, 2, 5, 6), {"enable_gqa": True}),
    ],
    "lstm.input": [lstm(), lstm(2, 2, dropout=0.5), lstm(2, 1, False), PROJECTED],
    "gru.input": [gru(), gru(2, 2, dropout=0.5), gru(2, 1, False)],
    "embedding": [
        (tensor(5, 3), index(2, 4, below=5)),
        (tensor(5, 3), index(4, below=5), 1, True, True),
    ],
    "batch_norm": [NORM, (IMAGE, None, None, None, None, True, 0.1, 1e-5, False)],
    "instance_norm": [NORM],
    "layer_norm": [(X, (4,), FOUR, FOUR), (X, (3, 4))],
    "group_norm": [(IMAGE, 2, FOUR, FOUR)],
    "rms_norm": [(X, (4,), FOUR, 1e-5)],
    "linalg_vector_norm": [(X, 2, (1,), True), (X, 0.5)],
    "gelu": [(X,), (X, {"approximate": "tanh"})],
    "hardtanh": [(X, -1, 1)],
    "leaky_relu": [(X, 0.1)],
    "elu": [(X, 1.0, 1.0, 1.0)],
    "softplus": [(X, 1.0, 20)],
    "prelu": [(X, VECTOR), (X, tensor(1))],
    "softmax.int": [(X, 1), (X, -1, F64)],
    "log_softmax.int": [(X, 1), (X, -1, F64)],
    "clamp": [(X, -0.5, 0.5), (X, None, 1)],
    "clamp_min": [(X, 0.5)],
    "clamp_max": [(X, 0.5)],
    "max_pool1d": [(LINE, (2,), (2,), (1,)), (LINE, (3,), (1,), (1,), (1,), True)],
    "max_pool2d": [(IMAGE, (2, 2), (2, 2), (1, 1)), (IMAGE, (3, 3), (2, 2), (1, 1), (1, 1), True)],
    "avg_pool1d": [(LINE, (2,), (2,), (1,))],
    "avg_pool2d": [(IMAGE, (2, 2), (2, 2), (1, 1), True, False, 3)],
    "adaptive_avg_pool1d": [(LINE, (3,))],
    "adaptive_avg_pool2d": [(IMAGE, (3, 2))],
    "adaptive_max_pool2d": [(IMAGE, (3, 2))],
    "upsample_nearest2d.vec": [(IMAGE, (9, 7), None), (IMAGE, None, (2.0, 1.5))],
    "upsample_bilinear2d.vec": [(IMAGE, (9, 7), True, None), (IMAGE, None, False, (2.0, 1.5))],
    "view": [(X, (6, 4)), (X, (-1, 2))],
    "reshape": [(X, (6, 4)), (X, (-1, 2))],
    "flatten.using_ints": [(X, 1, -1)],
    "unflatten.int": [(X, 2, (2, 2))],
    "permute": [(X, (2, 0, 1))],
    "transpose.int": [(X, 0, 2)],
    "t": [(FEW,)],
    "swapaxes": [(X, 0, 2)],
    "movedim.int": [(X, 0, 2)],
    "unsqueeze": [(X, 1)],
    "squeeze.dim": [(tensor(2, 1, 3), 1)],
    "squeeze.dims": [(tensor(2, 1, 3), (1,))],
    "expand": [(tensor(1, 4), (3, 4)), (FOUR, (2, -1))],
    "expand_as": [(FOUR, X)],
    "view_as": [(X, tensor(6, 4))],
    "reshape_as": [(X, tensor(6, 4))],
    "repeat": [(FEW, (2, 2, 1))],
    "repeat_interleave.self_int": [(FEW, 2), (FEW, 2, 1)],
    "select.int": [(X, 1, 2)],
    "slice.Tensor": [(X, 2, 1, 3, 1), (X, 1, 0, 9223372036854775807 >> 12)],
    "narrow": [(X, 2, 1, 2)],
    "diagonal": [(X, 1, 0, 2)],
    "index.Tensor": [
        (X, (index(2, below=2), index(2, below=3))),
        (X, (None, index(3, 1, below=3))),
    ],
    "index_select": [(X, 1, index(5, below=3))],
    "gather": [
        (PLACES, 1, index(2, 3, 3, below=5)),
        (SCORES, 1, index(4, 2, below=5), {"sparse_grad": True}),
    ],
    "broadcast_tensors": [((X, FOUR),)],
    "split.Tensor": [(X, 2, 2)],
    "split_with_sizes": [(X, (1, 3), 2)],
    "chunk": [(X, 2, 2)],
    "unbind.int": [(X, 1)],
    "cat": [((X, X, tensor(2, 1, 4)), 1)],
    "stack": [((X, X), 1)],
    "pad": [(X, (1, 2)), (X, (1, 1), "reflect"), (X, (1, 1), "circular"), (X, (1, 1), "replicate")],
    "constant_pad_nd": [(X, (1, 2, -1, 0), 0.5)],
    "roll": [(X, (1, 2), (0, 1)), (X, (2,))],
    "flip": [(X, (0, 2))],
    "tril": [(FEW, 1)],
    "triu": [(FEW, -1)],
    "pixel_shuffle": [(IMAGE, 2)],
    "pixel_unshuffle": [(IMAGE, 2)],
    "channel_shuffle": [(IMAGE, 2)],
    "arange": [(5,)],
    "arange.start": [(1, 5)],
    "arange.start_step": [(1, 5, 0.5)],
    "full": [((2, 3), 0.5)],
    "zeros": [((2, 3),), ((2, 3), {"dtype": F64})],
    "ones": [((2, 3),)],
    "full_like": [(X, 0.5)],
    "new_zeros": [(X, (2, 3))],
    "new_ones": [(X, (2, 3))],
    "new_full": [(X, (2, 3), 0.5)],
    "scalar_tensor": [(0.5,)],
    "div.Tensor_mode": [(X, FOUR, {"rounding_mode": "floor"})],
    "addcmul": [(X, FOUR, FEW, {"value": 0.5})],
    "to.dtype": [(X, F64)],
    "bitwise_not": [(index(2, 3),)],
    "where.self": [(mask(3, 4), X, FOUR)],
    "masked_fill.Scalar": [(X, mask(3, 4), 0.5)],
    "masked_fill.Tensor": [(X, mask(3, 4), tensor())],
    "diff": [(X, 1, 1), (X, 1, -1, tensor(2, 3, 1), tensor(2, 3, 2))],
    "topk": [(X, 2, 1)],
    "cross_entropy_loss": [
        (SCORES, CLASSES, tensor(5)),
        (SCORES, SCORES, None, 1, -100, 0.1),
        (IMAGE, index(2, 6, 6, below=4), None, 2, 1),
    ],
    "nll_loss": [(SCORES, CLASSES, tensor(5)), (tensor(5), index(below=5))],
    "nll_loss_nd": [(SCORES, CLASSES, tensor(5)), (IMAGE, index(2, 6, 6, below=4), FOUR, 0, 1)],
    "smooth_l1_loss": [(X, X, 1, 0.5)],
    "huber_loss": [(X, X, 1, 0.5)],
    "binary_cross_entropy": [
        (positive(2, 3), positive(2, 3)),
        (positive(2, 3), positive(2, 3), positive(2, 3), 0),
    ],
    "binary_cross_entropy_with_logits": [(X, X, FOUR, FOUR, 1)],
    "kl_div": [(X, X, 2, {"log_target": True})],
    "dropout": [(X, 0.5, True)],
    "feature_dropout": [(X, 0.5, True)],
    "add_.Tensor": [(Given((), "int64"), 1), (FOUR, tensor(1), {"alpha": 0.5})],
}

VOLUME = tensor(2, 2, 4, 4, 4)
SQUARE = tensor(2, 3, 3)


def complexes(*shape):
    return Given(shape, "complex64")


def rnn(n_layers=1, n_ways=1, biases=True, dropout=0.0):
    hx, weights = states(n_layers, n_ways), cells(1, n_layers, n_ways, biases)
    return tensor(5, 2, 3), hx, weights, biases, n_layers, dropout, True, n_ways == 2, False


SPECIAL |= {
    "conv_transpose3d.input": [
        (VOLUME, tensor(2, 3, 2, 2, 2), tensor(3), (2, 2, 2), (1, 1, 1), (1, 1, 1), 1)
    ],
    "convolution": [
        (IMAGE, tensor(6, 2, 3, 3), tensor(6), (1, 1), (1, 1), (1, 1), False, (0, 0), 2)
    ],
    "mv": [(FEW, FOUR)],
    "dot": [(FOUR, FOUR)],
    "addmv": [(VECTOR, FEW, FOUR)],
    "addbmm": [(tensor(3, 5), X, tensor(2, 4, 5))],
    "addr": [(FEW, VECTOR, FOUR)],
    "_trilinear": [(tensor(2, 3), tensor(5, 3, 4), tensor(2, 4), (1, 3), (0,), (1, 2), (2, 3))],
    "_cdist_forward": [(X, X, 2.0, None), (X, tensor(2, 5, 4), 1.0, None)],
    "linalg_cross": [(tensor(4, 3), tensor(4, 3)), (X, X, {"dim": 1})],
    "rnn_tanh.input": [rnn(), rnn(2, 2, dropout=0.5), rnn(2, 1, False)],
    "rnn_relu.input": [rnn(), rnn(2, 2, dropout=0.5), rnn(2, 1, False)],
    "native_layer_norm": [(X, (4,), FOUR, FOUR, 1e-5)],
    "native_group_norm": [(IMAGE, FOUR, FOUR, 2, 4, 36, 2, 1e-5)],
    "_native_batch_norm_legit_no_training": [(IMAGE, FOUR, FOUR, FOUR, positive(4), 0.1, 1e-5)],
    "renorm": [(X, 2.0, 0, 0.5)],
    "threshold": [(X, 0.1, 2.0)],
    "hardshrink": [(X,), (X, 0.3)],
    "softshrink": [(X,), (X, 0.3)],
    "glu": [(X, 2)],
    "_softmax": [(X, 1, False)],
    "_log_softmax": [(X, 1, False)],
    "max_pool3d": [(VOLUME, (2, 2, 2), (1, 1, 1), (1, 1, 1))],
    "max_pool1d_with_indices": [(LINE, (2,), (2,), (1,))],
    "max_pool2d_with_indices": [(IMAGE, (2, 2), (2, 2), (1, 1))],
    "max_pool3d_with_indices": [(VOLUME, (2, 2, 2), (2, 2, 2))],
    "avg_pool3d": [(VOLUME, (2, 2, 2), (2, 2, 2), (1, 1, 1), True, False, 3)],
    "adaptive_avg_pool3d": [(VOLUME, (3, 2, 2))],
    "_adaptive_avg_pool2d": [(IMAGE, (3, 2))],
    "_adaptive_avg_pool3d": [(VOLUME, (3, 2, 2))],
    "adaptive_max_pool1d": [(LINE, (3,))],
    "adaptive_max_pool3d": [(VOLUME, (3, 2, 2))],
    "max_unpool2d": [(IMAGE, index(2, 4, 6, 6, below=36), (9, 9))],
    "max_unpool3d": [(VOLUME, index(2, 2, 4, 4, 4, below=64), (5, 5, 5), (1, 1, 1), (0, 0, 0))],
    "upsample_nearest1d": [(LINE, (11,)), (LINE, (16,), 2.0)],
    "upsample_nearest2d": [(IMAGE, (9, 7))],
    "upsample_nearest3d": [(VOLUME, (5, 6, 7))],
    "upsample_linear1d": [(LINE, (11,), True), (LINE, (3,), False)],
    "upsample_bilinear2d": [(IMAGE, (9, 7), False, 1.5, None)],
    "upsample_trilinear3d": [(VOLUME, (5, 6, 7), False)],
    "upsample_bicubic2d": [(IMAGE, (9, 7), True), (IMAGE, (3, 4), False)],
    "_upsample_nearest_exact1d": [(LINE, (11,))],
    "_upsample_nearest_exact2d": [(IMAGE, (9, 7))],
    "_upsample_nearest_exact3d": [(VOLUME, (5, 6, 7))],
    "_upsample_bilinear2d_aa": [(IMAGE, (4, 3), False)],
    "_upsample_bicubic2d_aa": [(IMAGE, (4, 3), False)],
    "grid_sampler_2d": [
        (IMAGE, tensor(2, 5, 5, 2), 0, 0, False),
        (IMAGE, tensor(2, 5, 5, 2), 2, 1, True),
        (IMAGE, tensor(2, 5, 5, 2), 1, 2, True),
    ],
    "grid_sampler_3d": [(VOLUME, tensor(2, 3, 3, 3, 3), 0, 0, False)],
    "im2col": [(IMAGE, (3, 3), (1, 1), (1, 1), (2, 2))],
    "col2im": [(tensor(2, 16, 9), (6, 6), (2, 2), (1, 1), (0, 0), (2, 2))],
    "diag_embed": [(X,), (X, 1, 0, 2)],
    "unfold": [(X, 2, 2, 1)],
    "rot90": [(X, 1, (1, 2))],
    "_unsafe_view": [(X, (6, 4))],
    "unsafe_split.Tensor": [(X, 2, 2)],
    "reflection_pad1d": [(LINE, (2, 1))],
    "reflection_pad2d": [(IMAGE, (2, 1, 1, 0))],
    "reflection_pad3d": [(VOLUME, (2, 1, 1, 0, 1, 1))],
    "replication_pad1d": [(LINE, (2, 1))],
    "replication_pad2d": [(IMAGE, (2, 1, 1, 0))],
    "replication_pad3d": [(VOLUME, (2, 1, 1, 0, 1, 1))],
    "index_put": [
        (X, (index(2, below=2), index(2, below=3)), tensor(2, 4)),
        (X, (None, index(3, below=3)), tensor(2, 3, 4), True),
    ],
    "index_add": [(X, 1, index(5, below=3), tensor(2, 5, 4), {"alpha": 0.5})],
    "index_copy": [(X, 1, index(2, below=3), tensor(2, 2, 4))],
    "index_fill.int_Scalar": [(X, 1, index(2, below=3), 0.5)],
    "index_fill.int_Tensor": [(X, 1, index(2, below=3), tensor())],
    "scatter.src": [(PLACES, 1, index(2, 3, 3, below=5), tensor(2, 3, 3))],
    "scatter.value": [(PLACES, 1, index(2, 3, 3, below=5), 0.5)],
    "scatter_add": [(PLACES, 1, index(2, 3, 3, below=5), tensor(2, 3, 3))],
    "scatter_reduce.two": [
        (PLACES, 1, index(2, 3, 3, below=5), tensor(2, 3, 3), word)
        for word in ("sum", "mean", "amax", "prod")
    ],
    "select_scatter": [(X, tensor(2, 4), 1, 2)],
    "slice_scatter": [(X, tensor(2, 3, 2), 2, 1, 3, 1)],
    "diagonal_scatter": [(X, tensor(4, 2), 0, 0, 1)],
    "masked_scatter": [(FEW, mask(3, 4), FEW)],
    "take": [(X, index(5, below=24))],
    "fill.Scalar": [(X, 0.5)],
    "fill.Tensor": [(X, tensor())],
    "block_diag": [((FEW, FEW),)],
    "eye": [(3,)],
    "eye.m": [(3, 4)],
    "linspace": [(0.0, 1.0, 5)],
    "logspace": [(0.0, 1.0, 5)],
    "tril_indices": [(4, 4, 1)],
    "triu_indices": [(4, 4, 1)],
    "fft_fftfreq": [(6, 0.5)],
    "fft_rfftfreq": [(6, 0.5)],
    **{f"{name}_window": [(6,)] for name in ("hann", "hamming", "kaiser")},
    **{f"{name}_window.periodic": [(6, False)] for name in ("hann", "hamming", "kaiser")},
    "kaiser_window.beta": [(6, True, 10.0)],
    "polygamma": [(1, positive(2, 3))],
    "mvlgamma": [(Given((2, 3), "int64", 5), 1)],
    "remainder.Scalar_Tensor": [(5.0, positive(2, 3))],
    "pow.Scalar": [(2.0, X)],
    "lerp.Scalar": [(X, FOUR, 0.3)],
    "lerp.Tensor": [(X, FOUR, positive(3, 4))],
    "addcdiv": [(X, FOUR, FEW, {"value": 0.5})],
    "nan_to_num": [(X, 0.0, 1.0, -1.0)],
    "round.decimals": [(X, {"decimals": 1})],
    "gcd": [(index(2, 3), index(3))],
    "lcm": [(index(2, 3), index(3))],
    "ldexp.Tensor": [(X, index(4))],
    "clamp.Tensor": [(X, FOUR, None), (X, FEW, FEW)],
    "div.Scalar_mode": [(X, 0.3, {"rounding_mode": "floor"})],
    "logit": [(positive(2, 3), 1e-6)],
    "special_zeta": [(X, FOUR)],
    "prod.dim_int": [(X, 1)],
    "cumprod": [(X, 1)],
    "cummax": [(X, 1)],
    "cummin": [(X, 1)],
    "logcumsumexp": [(X, 1)],
    "any.dims": [(X, (1, 2))],
    "all.dims": [(X, (1, 2))],
    "sort": [(X, 1, True)],
    "sort.stable": [(X, {"stable": True, "dim": 1, "descending": True})],
    "median.dim": [(X, 1)],
    "nanmedian.dim": [(X, 1)],
    "mode": [(X, 1)],
    "kthvalue": [(X, 2, 1)],
    "aminmax": [(X, {"dim": 1}), (X,)],
    "var_mean.correction": [(X, (1,)), (X, (0, 2), {"correction": 0})],
    "std_mean.correction": [(X, (1,))],
    "nansum": [(X, (1,)), (X,)],
    "count_nonzero.dim_IntList": [(X, (1,))],
    "searchsorted.Tensor": [(X, tensor(2, 3, 2)), (FOUR, X)],
    "bucketize.Tensor": [(X, FOUR)],
    "isin.Tensor_Tensor": [(index(2, 3), index(2))],
    "multi_margin_loss": [(SCORES, CLASSES), (SCORES, CLASSES, 2, 1.0, tensor(5), 0)],
    "soft_margin_loss": [(X, X, 1)],
    "complex": [(X, X)],
    "polar": [(X, X)],
    "view_as_complex": [(tensor(2, 3, 2),)],
    "view_as_real": [(complexes(2, 3),)],
    "_conj": [(complexes(2, 3),)],
    "_fft_r2c": [(X, (2,), 0, True), (X, (1, 2), 1, False)],
    "_fft_c2c": [(complexes(2, 6), (1,), 0, True), (complexes(2, 6), (0, 1), 2, False)],
    "_fft_c2r": [(complexes(2, 4), (1,), 0, 6)],
    "_linalg_det": [(SQUARE,)],
    "_linalg_slogdet": [(SQUARE,)],
    "linalg_qr": [(SQUARE,), (X, "reduced")],
    "linalg_matrix_exp": [(SQUARE,)],
    "linalg_solve_triangular": [(SQUARE, X, {"upper": True})],
}
SPECIAL |= {
    f"{name}.{form}": [(index(2, 3), other)]
    for name in ("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
    for form, other in (
        [("Tensor", index(3)), ("Scalar", 1)]
        if name.startswith("__")
        else [("Tensor", index(3)), ("Tensor_Scalar", 1)]
    )
} | {f"bitwise_{name}.Scalar": [(index(2, 3), 2)] for name in ("and", "or", "xor")}

_DIMS = [
    "sum.dim_IntList",
    "mean.dim",
    "amax",
    "amin",
    "logsumexp",
    "var.correction",
    "std.correction",
]
_DIM = ["max.dim", "min.dim", "argmax", "argmin", "any.dim", "all.dim", "cumsum"]
SPECIAL |= {name: [(X, (1,)), (X, (0, 2), True)] for name in _DIMS[:5]} | {
    name: [(X, (1,))] for name in _DIMS[5:]
}
SPECIAL |= {name: [(X, 1)] for name in _DIM}
SPECIAL |= {
    "potluck.pack_int8": [(X, 1), (X, 2), (IMAGE, 2)],
    "potluck.unpack_int8": [(tensor(2, 3, 2), (4,)), (tensor(2, 7), (4, 6))],
    "potluck.cache_scatter": [(tensor(3, 5, 4), 1, index(2, 3, 4, below=5), tensor(2, 3, 4))],
}


def _usual(name):
    """Most operators take one tensor, or two, or one and a number."""
    integers = name.startswith(("bitwise", "__"))
    if name.endswith("Scalar"):
        return [(X, 0.5), (index(2, 3), 2)]
    if name.endswith((".Tensor", "_Tensor")) or name in _PAIRS:
        return [(index(2, 3), index(3))] if integers else [(X, FOUR), (index(2, 3), index(3))]
    return [(X,), (index(2, 3),)]


_PAIRS = frozenset(
    [
        "maximum",
        "minimum",
        "floor_divide",
        "type_as",
        "logical_and",
        "logical_or",
        "logical_xor",
        "mse_loss",
        "l1_loss",
        *("atan2", "hypot", "heaviside", "igamma", "igammac", "logaddexp", "logaddexp2"),
        *("fmax", "fmin", "nextafter", "special_xlog1py"),
    ]
)


def _short(op):
    name = op.removeprefix("aten.")
    return name.removesuffix(".default")


LEGAL = {op: SPECIAL.get(_short(op)) or _usual(_short(op)) for op in sorted(OPERATORS)}
USUAL = frozenset(op for op in OPERATORS if _short(op) not in SPECIAL)
assert set(SPECIAL) <= {_short(op) for names in KINDS.values() for op in names}
