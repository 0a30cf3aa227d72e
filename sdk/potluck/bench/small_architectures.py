"""Architectures of transformers made small from their configurations, with random weights and a few
rows: a corpus that nobody chose by hand.

Every number of a configuration that makes a network wide, deep or long is set to a small one. What
then cannot be built, or does not run, says nothing about potluck and is left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

MAX_PARAMETERS = 3_000_000
ROWS = 4
TOKENS = 8
VOCABULARY = 96
PIXELS = 32
SAMPLES = 4_000
# what a configuration may call each size, and the small one
_SIZES: Mapping[str, int] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim"), 32
    ),
    **dict.fromkeys(("hidden_dim", "projection_dim", "word_embed_proj_dim", "d_embed"), 32),
    **dict.fromkeys(
        (
            *("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff"),
            *("n_inner", "moe_intermediate_size", "mlp_dim", "shared_expert_intermediate_size"),
            *("dim_feedforward", "hidden_features", "moe_shared_expert_intermediate_size"),
        ),
        64,
    ),
    **dict.fromkeys(
        (
            *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers"),
            *("decoder_layers", "num_decoder_layers", "num_encoder_layers", "depth"),
        ),
        2,
    ),
    **dict.fromkeys(
        (
            *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
            *("decoder_attention_heads", "num_key_value_heads", "num_kv_heads"),
        ),
        4,
    ),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size"), 8),
    **dict.fromkeys(("vocab_size", "n_vocab", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_source_positions"), 64
    ),
    **dict.fromkeys(("max_target_positions", "max_seq_len"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k", "moe_topk"), 2),
    "image_size": PIXELS,
    "patch_size": 8,
}
SOME_ROWS = 2
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A small network and an example of its inputs, by name; each [ROWS, ...]."""

    name: str
    net: torch.nn.Module
    inputs: Mapping[str, torch.Tensor]


class SingleOutput(torch.nn.Module):
    """An architecture that gives one of its outputs alone, so that a loss is taken of it.

    `place`: which of those that are tensors of numbers, the last hidden state mostly.
    """

    def __init__(self, net: torch.nn.Module, names: tuple[str, ...], place: int = 0) -> None:
        super().__init__()
        self.model = net
        self._names = names
        self._place = place

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """That output."""
        outputs = self.model(**dict(zip(self._names, inputs, strict=True)))
        return _numbers(outputs)[self._place]


def _numbers(outputs: Any) -> list[torch.Tensor]:
    """Of what a model gives, the tensors of numbers."""
    values = outputs.values() if hasattr(outputs, "values") else outputs
    each = [values] if isinstance(values, torch.Tensor) else values
    return [v for v in each if isinstance(v, torch.Tensor) and v.is_floating_point()]


def names() -> tuple[str, ...]:
    """Every kind of model that AutoModel knows."""
    from transformers.models.auto import modeling_auto

    return tuple(sorted(modeling_auto.MODEL_MAPPING_NAMES))


def made(name: str) -> Architecture | None:
    """A small one of that kind; None where it cannot be made small, or does not run as it is."""
    import transformers

    torch.manual_seed(0)
    try:
        config = transformers.AutoConfig.for_model(name)
        _shrink(config)
        with torch.device("meta"):
            empty = transformers.AutoModel.from_config(config)
        if sum(p.numel() for p in empty.parameters()) > MAX_PARAMETERS:
            return None
        net = transformers.AutoModel.from_config(config)
    except Exception:  # whatever a configuration that was changed by rule leads to
        return None
    net.eval()
    for inputs in _examples(net, config):
        place = _place(net, inputs)
        if place is not None:
            return Architecture(
                name=name, net=SingleOutput(net, tuple(inputs), place), inputs=inputs
            )
    return None


def _place(net: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> int | None:
    """Which output is taken: the first that is the same of some rows alone, as scores of all
    images for all texts are not; the first where none is. None: these are not its inputs.
    """
    try:
        with torch.no_grad():
            full = _numbers(net(**inputs))
            some = _numbers(net(**{name: x[:SOME_ROWS] for name, x in inputs.items()}))
    except Exception:  # whatever it raises over inputs of another kind
        return None
    if not full or full[0].shape[:1] != (ROWS,) or not full[0].isfinite().all():
        return None
    return next((i for i, (a, b) in enumerate(zip(full, some, strict=True)) if _alike(a, b)), 0)


def _alike(full: torch.Tensor, some: torch.Tensor) -> bool:
    rows = full[:SOME_ROWS] if full.dim() else full
    return (
        full.shape[:1] == (ROWS,)
        and rows.shape == some.shape
        and bool(full.isfinite().all())
        and torch.allclose(rows, some, rtol=1e-3, atol=1e-3)
    )


def _shrink(config: Any) -> None:
    """Small sizes in a configuration, and in those inside it; no dropout, no cache."""
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _shrink(value)
        elif key in _SIZES and isinstance(value, int) and not isinstance(value, bool):
            setattr(config, key, min(value, _SIZES[key]))
        elif ("drop" in key or "mask_time_prob" in key) and isinstance(value, float):
            setattr(config, key, 0.0)
        elif key in _TOKENS and isinstance(value, int):
            setattr(config, key, min(value, VOCABULARY - 1))
        elif key == "layer_types" and isinstance(value, list):
            config.layer_types = _kinds(value)
        elif key in ("depths", "num_layers_per_stage") and isinstance(value, list | tuple):
            setattr(config, key, [1] * len(value))
        elif key in ("hidden_sizes", "embed_dims", "neck_hidden_sizes") and isinstance(value, list):
            setattr(config, key, [min(size, 8 * 2 ** min(i, 3)) for i, size in enumerate(value)])
    config._experts_implementation = "batched_mm"  # experts by token: shapes do not follow the data
    if hasattr(config, "use_cache"):
        config.use_cache = False


def _kinds(kinds: list[str]) -> list[str]:
    """Two layers, of different kinds where there are some."""
    return [kinds[0], next((kind for kind in kinds if kind != kinds[0]), kinds[0])]


def _examples(net: Any, config: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Inputs of the kinds that architectures take, the likely one first."""
    main = net.main_input_name if isinstance(net.main_input_name, str) else "input_ids"
    text = torch.randint(4, VOCABULARY - 1, (ROWS, TOKENS))
    inner = getattr(config, "vision_config", config)
    size = getattr(inner, "image_size", PIXELS)
    high, wide = size if isinstance(size, list | tuple) else (size, size)
    image = torch.randn(ROWS, getattr(inner, "num_channels", 3), high or PIXELS, wide or PIXELS)
    mels: Any = getattr(config, "num_mel_bins", None) or getattr(config, "feature_size", 80)
    kinds = {
        "input_ids": [{"input_ids": text}, {"input_ids": text, "decoder_input_ids": text}],
        "pixel_values": [{"pixel_values": image}, {"input_ids": text, "pixel_values": image}],
        "input_features": [
            {"input_features": torch.randn(ROWS, 64, mels)},
            {"input_features": torch.randn(ROWS, mels, 128), "decoder_input_ids": text},
            {"input_features": torch.randn(ROWS, mels, 128)},
        ],
        "input_values": [
            {"input_values": torch.randn(ROWS, SAMPLES)},
            {"input_values": torch.randn(ROWS, 1, SAMPLES)},
        ],
    }
    yield from kinds.pop(main, [])
    for several in kinds.values():
        yield from several
