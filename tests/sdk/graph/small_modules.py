"""Functions of one line, as torch's documentation lists them: torch.*, torch.Tensor.*,
torch.nn.functional.*, torch.fft.*, torch.special.*, torch.linalg.*, and layers of torch.nn.

Each takes a tensor with rows first, of the shape of its group, and gives one with rows first.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

SHAPES = {
    "vector": (6,),
    "matrix": (3, 4),
    "square": (3, 3),
    "line": (4, 8),
    "image": (4, 6, 6),
    "volume": (2, 4, 4, 4),
}


def positive(x):
    return x.abs() + 0.5


def unit(x):
    return torch.tanh(x) * 0.9


def ints(x, n=4):
    """Indices below n, of the values."""
    return ((x * 7).abs().long()) % n


def other(x):
    return x.roll(1, -1) + 0.25


def distant(x):
    """Values that differ clearly, for what sorts."""
    return x + 10.0 * torch.arange(x.shape[-1]).flip(0)


def spd(x):
    """Symmetric, positive definite."""
    return x @ x.mT + 3.0 * torch.eye(x.shape[-1])


class WithStates(nn.Module):
    """A recurrent layer that begins with given states, and whose last ones are read."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x):
        begin = x.new_zeros(1, x.shape[0], 5), x.new_ones(1, x.shape[0], 5)
        return self.lstm(x, begin)[1][1].transpose(0, 1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Bag(nn.Module):
    """Indices of the values, and the values as their weights."""

    def __init__(self, weighted=False, **settings):
        super().__init__()
        self.bag, self.weighted = nn.EmbeddingBag(4, 5, **settings), weighted

    def forward(self, x):
        return self.bag(ints(x), per_sample_weights=x if self.weighted else None)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x):
        lengths = torch.full((x.shape[0],), 3)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        out = self.lstm(packed)[0]
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=3)[0]


def _assigned(x):
    y = x.clone()
    y[:, 0, :] = x[:, 1, :] * 2
    return y


ENTRIES = {
    "torch.abs": lambda x: torch.abs(x),
    "torch.acos": lambda x: torch.acos(unit(x)),
    "torch.acosh": lambda x: torch.acosh(positive(x) + 1),
    "torch.add alpha": lambda x: torch.add(x, other(x), alpha=2),
    "torch.addcdiv": lambda x: torch.addcdiv(x, other(x), positive(x), value=0.5),
    "torch.addcmul": lambda x: torch.addcmul(x, other(x), x, value=0.5),
    "torch.angle": lambda x: torch.angle(x),
    "torch.asin": lambda x: torch.asin(unit(x)),
    "torch.asinh": lambda x: torch.asinh(x),
    "torch.atan": lambda x: torch.atan(x),
    "torch.atan2": lambda x: torch.atan2(x, other(x)),
    "torch.atanh": lambda x: torch.atanh(unit(x)),
    "torch.bitwise_and": lambda x: torch.bitwise_and(ints(x), 3),
    "torch.bitwise_or": lambda x: torch.bitwise_or(ints(x), 1),
    "torch.bitwise_xor": lambda x: torch.bitwise_xor(ints(x), ints(other(x))),
    "torch.bitwise_xor number": lambda x: ints(x) ^ 3,
    "torch.bitwise_left_shift": lambda x: torch.bitwise_left_shift(ints(x), 2),
    "torch.bitwise_right_shift": lambda x: ints(x) >> 1,
    "torch.bitwise_not": lambda x: torch.bitwise_not(ints(x)),
    "torch.ceil": lambda x: torch.ceil(x),
    "torch.clamp": lambda x: torch.clamp(x, -0.5, 0.5),
    "torch.clamp tensors": lambda x: torch.clamp(x, -other(x).abs(), positive(x)),
    "torch.clip": lambda x: torch.clip(x, min=-0.5),
    "torch.copysign": lambda x: torch.copysign(x, other(x)),
    "torch.copysign number": lambda x: torch.copysign(x, -1.0),
    "torch.cos": lambda x: torch.cos(x),
    "torch.cosh": lambda x: torch.cosh(x),
    "torch.deg2rad": lambda x: torch.deg2rad(x),
    "torch.rad2deg": lambda x: torch.rad2deg(x),
    "torch.div floor": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "torch.div trunc": lambda x: torch.div(x, positive(other(x)), rounding_mode="trunc"),
    "torch.digamma": lambda x: torch.digamma(positive(x)),
    "torch.eq": lambda x: torch.eq(ints(x), 1),
    "torch.erf": lambda x: torch.erf(x),
    "torch.erfc": lambda x: torch.erfc(x),
    "torch.erfinv": lambda x: torch.erfinv(unit(x)),
    "torch.exp": lambda x: torch.exp(x),
    "torch.exp2": lambda x: torch.exp2(x),
    "torch.expm1": lambda x: torch.expm1(x),
    "torch.fix": lambda x: torch.fix(x),
    "torch.float_power": lambda x: torch.float_power(positive(x), 1.5),
    "torch.floor": lambda x: torch.floor(x),
    "torch.floor_divide": lambda x: torch.floor_divide(x, 0.5),
    "torch.fmax": lambda x: torch.fmax(x, other(x)),
    "torch.fmin": lambda x: torch.fmin(x, other(x)),
    "torch.fmod": lambda x: torch.fmod(x, 0.7),
    "torch.fmod tensor": lambda x: torch.fmod(x, positive(other(x))),
    "torch.frac": lambda x: torch.frac(x),
    "torch.gcd": lambda x: torch.gcd(ints(x, 12), ints(other(x), 12)),
    "torch.lcm": lambda x: torch.lcm(ints(x, 12), ints(other(x), 12)),
    "torch.heaviside": lambda x: torch.heaviside(x, other(x)),
    "torch.hypot": lambda x: torch.hypot(x, positive(x)),
    "torch.i0": lambda x: torch.i0(x),
    "torch.igamma": lambda x: torch.igamma(positive(x).detach(), positive(other(x))),
    "torch.isclose": lambda x: torch.isclose(x, other(x)),
    "torch.isfinite": lambda x: torch.isfinite(x),
    "torch.isinf": lambda x: torch.isinf(x),
    "torch.isnan": lambda x: torch.isnan(x),
    "torch.isneginf": lambda x: torch.isneginf(x),
    "torch.isposinf": lambda x: torch.isposinf(x),
    "torch.isreal": lambda x: torch.isreal(x),
    "torch.ldexp": lambda x: torch.ldexp(x, ints(x)),
    "torch.lerp": lambda x: torch.lerp(x, other(x), 0.3),
    "torch.lerp tensor": lambda x: torch.lerp(x, other(x), positive(x)),
    "torch.lgamma": lambda x: torch.lgamma(positive(x)),
    "torch.log": lambda x: torch.log(positive(x)),
    "torch.log10": lambda x: torch.log10(positive(x)),
    "torch.log1p": lambda x: torch.log1p(positive(x)),
    "torch.log2": lambda x: torch.log2(positive(x)),
    "torch.logaddexp": lambda x: torch.logaddexp(x, other(x)),
    "torch.logaddexp2": lambda x: torch.logaddexp2(x, other(x)),
    "torch.logical_and": lambda x: torch.logical_and(x > 0, other(x) > 0),
    "torch.logical_xor": lambda x: torch.logical_xor(x > 0, other(x) > 0),
    "torch.logit": lambda x: torch.logit(torch.sigmoid(x), eps=1e-6),
    "torch.maximum": lambda x: torch.maximum(x, other(x)),
    "torch.mvlgamma": lambda x: torch.mvlgamma(positive(x) + 2, 2),
    "torch.nan_to_num": lambda x: torch.nan_to_num(x / 0.5, nan=0.0),
    "torch.neg": lambda x: torch.neg(x),
    "torch.nextafter": lambda x: torch.nextafter(x.detach(), other(x).detach()),
    "torch.polygamma": lambda x: torch.polygamma(1, positive(x)),
    "torch.positive": lambda x: torch.positive(x) * 2,
    "torch.pow number": lambda x: torch.pow(positive(x), 1.7),
    "torch.pow of a number": lambda x: 2**x,
    "torch.pow tensors": lambda x: positive(x) ** other(x),
    "torch.reciprocal": lambda x: torch.reciprocal(positive(x)),
    "torch.remainder": lambda x: torch.remainder(x, 0.7),
    "torch.remainder tensor": lambda x: x % positive(other(x)),
    "torch.remainder of a number": lambda x: 5.0 % positive(x),
    "torch.round decimals": lambda x: torch.round(x, decimals=1),
    "torch.rsqrt": lambda x: torch.rsqrt(positive(x)),
    "torch.rsub": lambda x: torch.rsub(x, other(x)),
    "torch.sgn": lambda x: torch.sgn(x),
    "torch.sigmoid": lambda x: torch.sigmoid(x),
    "torch.sign": lambda x: torch.sign(x),
    "torch.signbit": lambda x: torch.signbit(x),
    "torch.sin": lambda x: torch.sin(x),
    "torch.sinc": lambda x: torch.sinc(x),
    "torch.sinh": lambda x: torch.sinh(x),
    "torch.sqrt": lambda x: torch.sqrt(positive(x)),
    "torch.square": lambda x: torch.square(x),
    "torch.sub alpha": lambda x: torch.sub(x, other(x), alpha=0.5),
    "torch.tan": lambda x: torch.tan(unit(x)),
    "torch.tanh": lambda x: torch.tanh(x),
    "torch.true_divide": lambda x: torch.true_divide(x, positive(x)),
    "torch.trunc": lambda x: torch.trunc(x),
    "torch.where numbers": lambda x: torch.where(x > 0, x, 0.0),
    "torch.where a number first": lambda x: torch.where(x > 0, 1.0, x),
    "torch.where two numbers": lambda x: torch.where(x > 0, 1.0, 2.0),
    "torch.where tensors": lambda x: torch.where(x > 0, x, other(x)),
    "torch.xlogy": lambda x: torch.xlogy(x, positive(other(x))),
    "torch.zeros_like": lambda x: torch.zeros_like(x) + x,
    "torch.empty_like fill": lambda x: torch.full_like(x, 2.0) * x,
    "torch.special.bessel_j0": lambda x: torch.special.bessel_j0(x.detach()),
    "torch.special.bessel_j1": lambda x: torch.special.bessel_j1(x.detach()),
    "torch.special.entr": lambda x: torch.special.entr(positive(x)),
    "torch.special.erfcx": lambda x: torch.special.erfcx(x),
    "torch.special.expit": lambda x: torch.special.expit(x),
    "torch.special.i0e": lambda x: torch.special.i0e(x),
    "torch.special.i1": lambda x: torch.special.i1(x),
    "torch.special.i1e": lambda x: torch.special.i1e(x),
    "torch.special.log_ndtr": lambda x: torch.special.log_ndtr(x),
    "torch.special.ndtr": lambda x: torch.special.ndtr(x),
    "torch.special.ndtri": lambda x: torch.special.ndtri(torch.sigmoid(x)),
    "torch.special.psi": lambda x: torch.special.psi(positive(x)),
    "torch.special.xlog1py": lambda x: torch.special.xlog1py(x, positive(other(x))),
    "torch.special.zeta": lambda x: torch.special.zeta(
        positive(x).detach() + 1, positive(other(x)).detach()
    ),
    "Tensor.bool": lambda x: (x > 0).bool() * x,
    "Tensor.bfloat16": lambda x: x.bfloat16() * 2,
    "Tensor.double": lambda x: x.double() ** 2,
    "Tensor.masked_fill": lambda x: x.masked_fill(x > 0.5, -1.0),
    "Tensor.masked_scatter": lambda x: x.masked_scatter(x > 0, other(x)),
    "Tensor.new_tensor": lambda x: x * x.new_tensor([2.0]),
    "Tensor.int": lambda x: (x * 3).int() + 1,
    "Tensor.__invert__": lambda x: (~(x > 0)).float() * x,
    "Tensor.__or__": lambda x: ((x > 0) | (x < -1)).float(),
    "Tensor.type": lambda x: x.type(torch.float64),
    "F.celu": lambda x: F.celu(x),
    "F.elu": lambda x: F.elu(x, 0.7),
    "F.gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "F.hardshrink": lambda x: F.hardshrink(x),
    "F.hardsigmoid": lambda x: F.hardsigmoid(x),
    "F.hardswish": lambda x: F.hardswish(x),
    "F.hardtanh": lambda x: F.hardtanh(x, -0.5, 0.5),
    "F.leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "F.logsigmoid": lambda x: F.logsigmoid(x),
    "F.mish": lambda x: F.mish(x),
    "F.relu6": lambda x: F.relu6(x * 4),
    "F.rrelu in evaluation": lambda x: F.rrelu(x, training=False),
    "F.selu": lambda x: F.selu(x),
    "F.silu": lambda x: F.silu(x),
    "F.softplus": lambda x: F.softplus(x, 2.0),
    "F.softshrink": lambda x: F.softshrink(x),
    "F.softsign": lambda x: F.softsign(x),
    "F.tanhshrink": lambda x: F.tanhshrink(x),
    "F.threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "F.alpha_dropout in evaluation": lambda x: F.alpha_dropout(x, 0.5, training=False) * 2,
}

VECTOR = {
    "torch.argsort": lambda x: torch.argsort(distant(x), -1),
    "torch.bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
    "torch.cummax": lambda x: torch.cummax(x, 1).values,
    "torch.cummin": lambda x: torch.cummin(x, -1)[0],
    "torch.cumprod": lambda x: torch.cumprod(x, 1),
    "torch.cumsum": lambda x: torch.cumsum(x, 1),
    "torch.logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "torch.cumulative_trapezoid": lambda x: torch.cumulative_trapezoid(x, dim=1),
    "torch.trapezoid": lambda x: torch.trapezoid(x, dim=1),
    "torch.diag_embed": lambda x: torch.diag_embed(x),
    "torch.diff": lambda x: torch.diff(x, dim=1),
    "torch.kthvalue": lambda x: torch.kthvalue(x, 2, 1).values,
    "torch.median": lambda x: torch.median(x, 1).values,
    "torch.nanmedian": lambda x: torch.nanmedian(x, 1).values,
    "torch.mode": lambda x: torch.mode(x, 1).values,
    "torch.msort of columns": lambda x: torch.sort(x.T, 0).values.T,
    "torch.quantile": lambda x: torch.quantile(x, 0.5, dim=1),
    "torch.renorm": lambda x: torch.renorm(x, 2, 0, 0.5),
    "torch.searchsorted": lambda x: torch.searchsorted(
        torch.sort(x, -1).values.detach(), other(x).detach()
    ),
    "torch.softmax": lambda x: torch.softmax(x, -1),
    "torch.sort": lambda x: torch.sort(x, 1).values,
    "torch.sort stable": lambda x: torch.sort(x, dim=1, descending=True, stable=True)[0],
    "torch.topk": lambda x: torch.topk(x, 3, 1).values,
    "torch.vander": lambda x: torch.vander(x[0].detach(), 3).sum() + x,
    "torch.var of rows": lambda x: x.var(-1),
    "torch.var biased": lambda x: x.var(1, unbiased=False),
    "torch.std of rows": lambda x: x.std(-1),
    "torch.std_mean": lambda x: torch.std_mean(x, 1)[0],
    "torch.var_mean": lambda x: sum(torch.var_mean(x, dim=-1, correction=0)),
    "torch.prod": lambda x: torch.prod(x, 1),
    "torch.nansum": lambda x: torch.nansum(x, 1),
    "torch.nanmean": lambda x: torch.nanmean(x, 1),
    "torch.logsumexp": lambda x: torch.logsumexp(x, 1),
    "torch.norm": lambda x: torch.norm(x, dim=1),
    "torch.norm 1": lambda x: torch.norm(x, p=1, dim=1),
    "torch.aminmax": lambda x: torch.aminmax(x, dim=1)[0],
    "torch.amax": lambda x: torch.amax(x, 1),
    "torch.argmax": lambda x: torch.argmax(x, 1),
    "torch.count_nonzero": lambda x: torch.count_nonzero(x > 0, dim=1),
    "torch.any": lambda x: torch.any(x > 1, 1),
    "torch.all dims": lambda x: torch.all(x > -5, dim=(1,)),
    "torch.max": lambda x: torch.max(x, 1).values,
    "torch.min": lambda x: torch.min(x, 1)[0],
    "torch.dist of rows": lambda x: torch.linalg.vector_norm(x - other(x), dim=1),
    "torch.outer of rows": lambda x: x[:, :, None] * x[:, None, :],
    "torch.linspace": lambda x: x * torch.linspace(0, 1, 6),
    "torch.logspace": lambda x: x * torch.logspace(0, 1, 6),
    "torch.arange": lambda x: x + torch.arange(6),
    "torch.eye": lambda x: x @ torch.eye(6),
    "torch.full": lambda x: x + torch.full((6,), 0.5),
    "torch.meshgrid": lambda x: (
        x[:, :, None] * torch.meshgrid(torch.arange(6), torch.arange(3), indexing="ij")[1]
    ),
    "torch.tril_indices": lambda x: x[:, torch.tril_indices(6, 6)[0]],
    "torch.triu_indices": lambda x: x[:, torch.triu_indices(3, 3)[1]],
    "torch.cartesian_prod": lambda x: (
        x @ torch.cartesian_prod(torch.arange(2.0), torch.arange(3.0))
    ),
    "torch.combinations": lambda x: x[:, :4] @ torch.combinations(torch.arange(4.0))[:4],
    "torch.block_diag": lambda x: x @ torch.block_diag(torch.ones(2, 2), torch.ones(4, 4)),
    "torch.gather": lambda x: torch.gather(x, 1, ints(x, 6)),
    "torch.take_along_dim": lambda x: torch.take_along_dim(x, ints(x, 6), 1),
    "torch.index_select": lambda x: torch.index_select(x, 1, torch.tensor([0, 2, 5])),
    "torch.index_add": lambda x: torch.zeros_like(x).index_add(1, torch.arange(6) // 2, x),
    "torch.index_copy": lambda x: x.index_copy(1, torch.tensor([0, 2]), x[:, 3:5]),
    "torch.index_fill": lambda x: x.index_fill(1, torch.tensor([1]), 0.5),
    "torch.index_put": lambda x: x.index_put((torch.tensor([0]),), torch.tensor(0.0)) * 0 + x,
    "torch.index_reduce": lambda x: x.detach().index_reduce(
        1, torch.tensor([0, 1]), x.detach()[:, 2:4], "amax"
    ),
    "torch.scatter": lambda x: torch.zeros_like(x).scatter(
        1, torch.arange(6).flip(0)[None] + ints(x, 1), x
    ),
    "torch.scatter value": lambda x: x.scatter(1, ints(x, 6), 1.0),
    "torch.scatter_add": lambda x: torch.zeros_like(x).scatter_add(1, ints(x, 6), x),
    "torch.scatter_reduce": lambda x: x.scatter_reduce(1, ints(x, 6), other(x), "sum"),
    "torch.scatter_reduce mean": lambda x: x.scatter_reduce(1, ints(x, 6), other(x), "mean"),
    "torch.scatter_reduce amax": lambda x: x.scatter_reduce(1, ints(x, 6), other(x), "amax"),
    "torch.select_scatter": lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, 3),
    "torch.slice_scatter": lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 2, 4),
    "torch.roll": lambda x: torch.roll(x, 2, 1),
    "torch.tile": lambda x: torch.tile(x, (1, 2)),
    "torch.repeat_interleave": lambda x: torch.repeat_interleave(x, 2, dim=1),
    "torch.tensor_split": lambda x: torch.tensor_split(x, 3, dim=1)[1],
    "torch.hsplit": lambda x: torch.hsplit(x, 2)[1],
    "torch.hstack": lambda x: torch.hstack([x, x * 2]),
    "torch.column_stack": lambda x: torch.column_stack([x, x]),
    "torch.dstack": lambda x: torch.dstack([x, other(x)]),
    "torch.stack": lambda x: torch.stack([x, other(x)], 1),
    "torch.concat": lambda x: torch.concat([x, x], dim=1),
    "torch.atleast_2d": lambda x: torch.atleast_2d(x) * 2,
    "torch.complex": lambda x: torch.complex(x, other(x)).abs(),
    "torch.polar": lambda x: torch.view_as_real(torch.polar(positive(x), other(x))),
    "torch.view_as_complex": lambda x: torch.view_as_complex(x.reshape(-1, 3, 2)).real,
    "torch.real and imag": lambda x: torch.imag(torch.fft.fft(x)) + torch.real(torch.fft.fft(x)),
    "torch.conj": lambda x: (torch.fft.fft(x) * torch.conj(torch.fft.fft(x))).real,
    "torch.fft.fft": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "torch.fft.ifft": lambda x: torch.fft.ifft(torch.fft.fft(x) * 2).real,
    "torch.fft.rfft": lambda x: torch.fft.rfft(x).abs(),
    "torch.fft.irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x) * 0.5, n=6),
    "torch.fft.hfft": lambda x: torch.fft.hfft(torch.complex(x, other(x))),
    "torch.fft.fftshift": lambda x: torch.fft.fftshift(x, dim=1),
    "torch.fft.fftfreq": lambda x: x * torch.fft.fftfreq(6),
    "torch.hann_window": lambda x: x * torch.hann_window(6),
    "torch.hamming_window": lambda x: x * torch.hamming_window(6),
    "torch.kaiser_window": lambda x: x * torch.kaiser_window(6),
    "torch.linalg.norm": lambda x: torch.linalg.norm(x, dim=1),
    "torch.linalg.vander": lambda x: torch.linalg.vander(x),
    "torch.linalg.vecdot": lambda x: torch.linalg.vecdot(x, other(x)),
    "torch.cosine_similarity": lambda x: F.cosine_similarity(x, other(x), dim=1),
    "F.pairwise_distance": lambda x: F.pairwise_distance(x, other(x)),
    "F.normalize": lambda x: F.normalize(x, dim=1),
    "F.one_hot": lambda x: F.one_hot(ints(x), 4).float(),
    "F.embedding": lambda x: F.embedding(ints(x), torch.arange(8.0).reshape(4, 2)) * x[..., None],
    "F.embedding_bag": lambda x: F.embedding_bag(ints(x), torch.arange(8.0).reshape(4, 2)),
    "F.glu": lambda x: F.glu(x, 1),
    "F.gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "F.softmin": lambda x: F.softmin(x, 1),
    "F.log_softmax": lambda x: F.log_softmax(x, 1),
    "F.layer_norm": lambda x: F.layer_norm(x, (6,)),
    "F.rms_norm": lambda x: F.rms_norm(x, (6,)),
    "F.local_response_norm": lambda x: F.local_response_norm(x[:, :, None], 2),
    "F.bilinear": lambda x: F.bilinear(x, other(x), torch.ones(2, 6, 6)),
    "F.linear": lambda x: F.linear(x, torch.eye(6)),
    "F.pad circular": lambda x: F.pad(x[:, None], (1, 2), mode="circular"),
    "Tensor.T": lambda x: (x.T * 2).T,
    "Tensor.unfold": lambda x: x.unfold(1, 3, 1),
    "Tensor.unflatten": lambda x: x.unflatten(1, (2, 3)),
    "Tensor.as_strided": lambda x: x.as_strided((x.shape[0], 3), (6, 2)),
    "Tensor.expand_as": lambda x: x[:, :1].expand_as(x) * x,
    "Tensor.nonzero": lambda x: (x > 0).nonzero().sum() + x,
    "Tensor.unique": lambda x: torch.unique(ints(x)).sum() + x,
    "Tensor.masked_select": lambda x: x.masked_select(x > 0).sum() + x,
    "Tensor.item": lambda x: x * x.abs().max().item(),
    "Tensor.tolist": lambda x: x * x[0].detach().tolist()[0],
    "Tensor.add_ of a view": lambda x: x.clone()[:, :3].add_(1.0),
    "torch.rand_like": lambda x: x + torch.rand_like(x),
    "torch.randn_like": lambda x: x + torch.randn_like(x),
    "torch.bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)) * x,
    "torch.multinomial": lambda x: torch.multinomial(torch.softmax(x, 1), 1) + x,
    "torch.randperm": lambda x: x[:, torch.randperm(6)],
    "torch.bincount": lambda x: torch.bincount(ints(x[0])).sum() + x,
    "torch.histc": lambda x: torch.histc(x.detach(), 4).sum() + x,
    "torch.stft": lambda x: torch.stft(x, 4, return_complex=True, window=torch.ones(4)).abs(),
    "nn.LSTMCell": nn.LSTMCell(6, 5),
    "nn.GRUCell": nn.GRUCell(6, 5),
    "nn.RNNCell": nn.RNNCell(6, 5),
    "nn.EmbeddingBag": lambda x: F.embedding_bag(
        ints(x), torch.arange(8.0).reshape(4, 2), mode="sum"
    ),
    "nn.EmbeddingBag of counted entries": Bag(mode="sum", padding_idx=1),
    "nn.EmbeddingBag of the mean of counted entries": Bag(mode="mean", padding_idx=-2),
    "nn.EmbeddingBag of the largest counted entries": Bag(mode="max", padding_idx=0),
    "nn.EmbeddingBag of weighted entries": Bag(weighted=True, mode="sum"),
    "nn.EmbeddingBag of weighted counted entries": Bag(weighted=True, mode="sum", padding_idx=0),
    "Tensor.conj of an imaginary part": lambda x: torch.fft.fft(x).conj().imag,
    "nn.Bilinear": lambda x: F.bilinear(x, x, torch.ones(2, 6, 6), torch.ones(2)),
    "nn.utils.weight_norm": nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)),
    "nn.utils.spectral_norm in evaluation": nn.utils.parametrizations.spectral_norm(
        nn.Linear(6, 4)
    ).eval(),
}

MATRIX = {
    "Tensor.mT": lambda x: x.mT @ x,
    "Tensor.mH": lambda x: x.mH,
    "Tensor.adjoint": lambda x: x.adjoint() * 2,
    "Tensor.swapdims": lambda x: x.swapdims(1, 2) * 2,
    "torch.moveaxis": lambda x: torch.moveaxis(x, 1, 2),
    "torch.movedim lists": lambda x: torch.movedim(x, (1, 2), (2, 1)),
    "torch.rot90": lambda x: torch.rot90(x, 1, (1, 2)),
    "torch.fliplr": lambda x: torch.fliplr(x),
    "torch.ravel of rows": lambda x: x.flatten(1) * 2,
    "torch.tril": lambda x: torch.tril(x),
    "torch.triu": lambda x: torch.triu(x, 1),
    "torch.einsum": lambda x: torch.einsum("nij,nkj->nik", x, x),
    "torch.tensordot": lambda x: torch.tensordot(x, torch.ones(4, 2), dims=1),
    "torch.kron of rows": lambda x: torch.kron(x, torch.ones(1, 2, 2)),
    "torch.baddbmm": lambda x: torch.baddbmm(x @ x.mT, x, x.mT, alpha=0.5),
    "torch.chain_matmul": lambda x: torch.linalg.multi_dot(
        [x.flatten(1), torch.ones(12, 3), torch.ones(3, 2)]
    ),
    "torch.cdist": lambda x: torch.cdist(x, x * 2 + 1),
    "torch.cross": lambda x: torch.cross(x.mT, x.mT + torch.arange(3.0), dim=-1),
    "torch.cov of rows": lambda x: (x - x.mean(-1, keepdim=True)) @ x.mT / 3,
    "torch.logdet": lambda x: torch.logdet(spd(x[:, :, :3])),
    "torch.diagonal": lambda x: torch.diagonal(x, dim1=1, dim2=2),
    "torch.diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[:, :, 0], 0, 1, 2),
    "torch.sum dims": lambda x: x.sum((1, 2)),
    "torch.var dims": lambda x: x.var((1, 2)),
    "torch.std dims": lambda x: torch.std(x, dim=(1, 2), keepdim=True),
    "torch.any dims": lambda x: torch.any(x > 1, dim=(1, 2)),
    "torch.amax dims": lambda x: x.amax((1, 2)),
    "torch.vsplit of dims": lambda x: torch.split(x, [1, 3], 2)[1],
    "torch.unravel": lambda x: x.reshape(-1, 2, 6),
    "torch.fft.fft2": lambda x: torch.fft.fft2(x).abs(),
    "torch.fft.rfft2": lambda x: torch.view_as_real(torch.fft.rfft2(x)),
    "torch.fft.irfft2": lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=(3, 4)),
    "torch.fft.fftn": lambda x: torch.fft.fftn(x, dim=(1, 2)).real,
    "torch.linalg.matrix_norm": lambda x: torch.linalg.matrix_norm(x),
    "torch.linalg.cross": lambda x: torch.linalg.cross(x.mT, other(x.mT)),
    "torch.linalg.svdvals": lambda x: torch.linalg.svdvals(x),
    "torch.index_select middle": lambda x: x[:, :, torch.tensor([0, 3])],
    "advanced indexing": lambda x: x[:, torch.tensor([0, 2]), torch.tensor([1, 3])],
    "ellipsis and None": lambda x: x[..., None, 1:3],
    "assignment to a slice": lambda x: _assigned(x),
    "F.scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "F.sdpa causal": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "F.sdpa boolean mask": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.ones(3, 3).tril().bool()
    ),
    "F.sdpa float mask": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT),
    "nn.RNN": nn.RNN(4, 5, batch_first=True),
    "nn.RNN relu, two layers": nn.RNN(4, 5, 2, nonlinearity="relu", batch_first=True),
    "nn.LSTM": nn.LSTM(4, 5, batch_first=True),
    "nn.LSTM with states": WithStates(),
    "nn.GRU both ways": nn.GRU(4, 5, bidirectional=True, batch_first=True),
    "nn.MultiheadAttention": Attention(),
    "packed sequences": Packed(),
    "nn.TransformerEncoderLayer": nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True),
    "F.sdpa of groups": lambda x: F.scaled_dot_product_attention(
        x[:, None].expand(-1, 2, -1, -1), x[:, None], x[:, None], enable_gqa=True
    ),
}

SQUARE = {
    "torch.trace of rows": lambda x: x.diagonal(dim1=1, dim2=2).sum(-1),
    "torch.det": lambda x: torch.linalg.det(spd(x)),
    "torch.inverse": lambda x: torch.inverse(spd(x)),
    "torch.linalg.cholesky": lambda x: torch.linalg.cholesky(spd(x)),
    "torch.linalg.eigvalsh": lambda x: torch.linalg.eigvalsh(spd(x)),
    "torch.linalg.matrix_exp": lambda x: torch.linalg.matrix_exp(x * 0.1),
    "torch.matrix_power": lambda x: torch.matrix_power(x, 3),
    "torch.linalg.qr": lambda x: torch.linalg.qr(spd(x)).R,
    "torch.linalg.solve": lambda x: torch.linalg.solve(spd(x), x),
    "torch.linalg.solve_triangular": lambda x: torch.linalg.solve_triangular(
        torch.tril(spd(x)), x, upper=False
    ),
    "torch.linalg.slogdet": lambda x: torch.linalg.slogdet(spd(x)).logabsdet,
    "torch.cholesky_inverse": lambda x: torch.cholesky_inverse(torch.linalg.cholesky(spd(x))),
}

LINE = {
    "F.avg_pool1d": lambda x: F.avg_pool1d(x, 2),
    "F.max_pool1d": lambda x: F.max_pool1d(x, 3, 2),
    "F.max_pool1d indices": lambda x: F.max_pool1d(x, 2, return_indices=True)[1] + 0.0,
    "F.max_unpool1d": lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2),
    "F.lp_pool1d": lambda x: F.lp_pool1d(positive(x), 2, 2),
    "F.adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, 3),
    "F.adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x, 3),
    "F.interpolate linear": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
    "F.interpolate nearest 1d": lambda x: F.interpolate(x, size=11),
    "F.pad reflect 1d": lambda x: F.pad(x, (2, 2), mode="reflect"),
    "F.pad replicate 1d": lambda x: F.pad(x, (2, 1), mode="replicate"),
    "F.conv1d": lambda x: F.conv1d(x, torch.ones(2, 4, 3)),
    "F.conv1d same": lambda x: F.conv1d(x, torch.ones(2, 4, 3), padding="same"),
    "F.conv_transpose1d": lambda x: F.conv_transpose1d(x, torch.ones(4, 2, 3), stride=2),
    "F.instance_norm 1d": lambda x: F.instance_norm(x),
    "nn.BatchNorm1d": nn.BatchNorm1d(4),
    "F.group_norm": lambda x: F.group_norm(x, 2),
    "F.dropout1d in evaluation": lambda x: F.dropout1d(x, 0.5, training=False) * 2,
    "F.channel_shuffle": lambda x: F.channel_shuffle(x[..., None], 2),
    "F.ctc_loss": lambda x: F.ctc_loss(
        F.log_softmax(x.permute(2, 0, 1), 2),
        torch.ones(x.shape[0], 2).long(),
        torch.full((x.shape[0],), 8),
        torch.full((x.shape[0],), 2),
        reduction="none",
    ),
    "nn.utils.weight_norm of a convolution": nn.utils.parametrizations.weight_norm(
        nn.Conv1d(4, 3, 3)
    ),
}

IMAGE = {
    "F.avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "F.max_pool2d": lambda x: F.max_pool2d(x, 2),
    "F.max_pool2d indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "F.max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "F.lp_pool2d": lambda x: F.lp_pool2d(positive(x), 2, 2),
    "F.fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x, 2, output_size=3),
    "F.adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "F.adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3),
    "F.interpolate bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "F.interpolate bilinear": lambda x: F.interpolate(x, size=(9, 7), mode="bilinear"),
    "F.interpolate antialias": lambda x: F.interpolate(
        x, size=(4, 4), mode="bilinear", antialias=True
    ),
    "F.interpolate bicubic antialias": lambda x: F.interpolate(
        x, size=(4, 4), mode="bicubic", antialias=True
    ),
    "F.interpolate area": lambda x: F.interpolate(x, size=(3, 3), mode="area"),
    "F.interpolate nearest": lambda x: F.interpolate(x, scale_factor=2),
    "F.interpolate nearest-exact": lambda x: F.interpolate(x, size=(9, 9), mode="nearest-exact"),
    "F.affine_grid": lambda x: F.grid_sample(
        x, F.affine_grid(x[:, 0, :2, :3] * 0.1, (x.shape[0], 4, 5, 5), align_corners=False)
    ),
    "F.grid_sample": lambda x: F.grid_sample(x, torch.tanh(x[:, :2].permute(0, 2, 3, 1))),
    "F.grid_sample nearest": lambda x: F.grid_sample(
        x, unit(x[:, :2].permute(0, 2, 3, 1)), mode="nearest", align_corners=True
    ),
    "F.grid_sample bicubic": lambda x: F.grid_sample(
        x, unit(x[:, :2].permute(0, 2, 3, 1)), mode="bicubic", padding_mode="border"
    ),
    "F.unfold": lambda x: F.unfold(x, 3, padding=1),
    "F.fold": lambda x: F.fold(F.unfold(x, 2, stride=2), (6, 6), 2, stride=2),
    "F.pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "F.pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "F.pad reflect 2d": lambda x: F.pad(x, (1, 2, 1, 0), mode="reflect"),
    "F.pad replicate 2d": lambda x: F.pad(x, (1, 2, 1, 0), mode="replicate"),
    "F.pad constant": lambda x: F.pad(x, (1, 2, 1, 0), value=0.5),
    "F.conv2d": lambda x: F.conv2d(x, torch.ones(2, 4, 3, 3)),
    "F.conv2d dilated": lambda x: F.conv2d(x, torch.ones(2, 4, 2, 2), dilation=2),
    "F.conv_transpose2d": lambda x: F.conv_transpose2d(x, torch.ones(4, 2, 3, 3), stride=2),
    "F.prelu": lambda x: F.prelu(x, torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "F.instance_norm": lambda x: F.instance_norm(x),
    "nn.BatchNorm2d": nn.BatchNorm2d(4),
    "nn.UpsamplingBilinear2d": nn.UpsamplingBilinear2d(scale_factor=2),
    "nn.Softmax2d": nn.Softmax2d(),
    "Tensor.unfold twice": lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2),
    "channels last": lambda x: x.to(memory_format=torch.channels_last) * 2,
}

VOLUME = {
    "F.avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "F.max_pool3d": lambda x: F.max_pool3d(x, 2),
    "F.max_unpool3d": lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2),
    "F.adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, 2),
    "F.adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 2),
    "F.interpolate trilinear": lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
    "F.interpolate nearest 3d": lambda x: F.interpolate(x, scale_factor=2),
    "F.grid_sample 3d": lambda x: F.grid_sample(
        x, unit(torch.stack([x[:, 0], x[:, 1], x[:, 0]], -1))
    ),
    "F.pad reflect 3d": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="reflect"),
    "F.pad replicate 3d": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"),
    "F.conv3d": lambda x: F.conv3d(x, torch.ones(3, 2, 2, 2, 2)),
    "F.conv_transpose3d": lambda x: F.conv_transpose3d(x, torch.ones(2, 3, 2, 2, 2)),
    "nn.BatchNorm3d": nn.BatchNorm3d(2),
    "nn.InstanceNorm3d": nn.InstanceNorm3d(2),
}

GROUPS = {
    "vector": ENTRIES | VECTOR,
    "matrix": MATRIX,
    "square": SQUARE,
    "line": LINE,
    "image": IMAGE,
    "volume": VOLUME,
}
LINES = {name: (SHAPES[group], f) for group, lines in GROUPS.items() for name, f in lines.items()}


class Net(nn.Module):
    """The line between two linear layers, so that gradients pass through it and two devices share
    it.
    """

    def __init__(self, name):
        super().__init__()
        self.shape, line = LINES[name]
        size = math.prod(self.shape)
        self.before, self.after = nn.Linear(8, size), nn.Linear(size, 3)
        self.line = line if isinstance(line, nn.Module) else None
        self._function = line

    def forward(self, x):
        hidden = self.before(x).reshape(-1, *self.shape)
        y = self._function(hidden) if self.line is None else self.line(hidden)
        y = (y[0] if isinstance(y, tuple) else y).float()
        # what several entries of a row make up, with weights that tell them apart
        flat = y.reshape(x.shape[0], -1)
        place = (flat * torch.cos(torch.arange(flat.shape[1]))).sum(1, keepdim=True)
        return self.after(hidden.flatten(1)) + place * 0.1
