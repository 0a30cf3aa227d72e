"""Makes `profiles/models/*.json` again: `python -m potluck.profile.catalog [NAME...] [--into
FOLDER]`.

Networks on the meta device: shapes and no weights, so a few seconds and little memory even for
billions of parameters.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from potluck.errors import UserError
from potluck.graph.costed_graph import priced
from potluck.graph.modelgraph import ModelGraph
from potluck.graph.trace import trace
from potluck.graph.traced import Traced
from potluck.profile import architectures

ROWS = 2  # of the example: one would be taken for a constant


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One model of the catalog: how to build it and one row of its inputs (shapes; `int` for token
    numbers).
    """

    title: str
    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    tokens: int | None = None


def _hf(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        try:
            import transformers
        except ImportError as error:
            raise UserError(
                f"{model} comes from transformers, which is not installed.",
                next_step="pip install 'transformers>=5' (without torchvision).",
            ) from error
        return getattr(transformers, model)(getattr(transformers, config)(**settings))  # type: ignore[no-any-return]

    return build


def _image(title: str, family: str, pixels: int, **settings: Any) -> CatalogEntry:
    settings.setdefault("num_labels", 1000)
    build = _hf(f"{family}ForImageClassification", f"{family}Config", **settings)
    return CatalogEntry(
        title=f"{title}, one image of {pixels} x {pixels} pixels",
        build=build,
        shapes=((3, pixels, pixels),),
    )


def _text(title: str, model: str, config: str, tokens: int = 512, **settings: Any) -> CatalogEntry:
    build = _hf(model, config, attn_implementation="sdpa", use_cache=False, **settings)
    return CatalogEntry(title=f"{title}, {tokens} tokens", build=build, shapes=((),), tokens=tokens)


def _bert(title: str, tokens: int = 512, **settings: Any) -> CatalogEntry:
    build = _hf(
        "BertForSequenceClassification", "BertConfig", attn_implementation="sdpa", **settings
    )
    return CatalogEntry(title=f"{title}, {tokens} tokens", build=build, shapes=((),), tokens=tokens)


def _plain(title: str, build: Callable[[], nn.Module]) -> CatalogEntry:
    return CatalogEntry(
        title=f"{title}, one image of 224 x 224 pixels", build=build, shapes=((3, 224, 224),)
    )


_B1 = {"width_coefficient": 1.0, "depth_coefficient": 1.1, "hidden_dim": 1280, "dropout_rate": 0.2}
_QWEN3 = {
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
_QWEN3 |= {"vocab_size": 151936, "tie_word_embeddings": True}
_SMOL = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
}
_SMOL |= {"num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}
_SMALL = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
}
_R101 = {"depths": [3, 4, 23, 3]}

CATALOG: dict[str, CatalogEntry] = {
    "efficientnet-b1": _image("EfficientNet-B1", "EfficientNet", 240, image_size=240, **_B1),
    "efficientnet-b1-cifar": _image(
        "EfficientNet-B1", "EfficientNet", 32, image_size=32, num_labels=10, **_B1
    ),
    "mobilenet-v2": _image("MobileNetV2", "MobileNetV2", 224),
    "mobilenet-v2-cifar": _image("MobileNetV2", "MobileNetV2", 32, image_size=32, num_labels=10),
    "resnet50": _image("ResNet-50", "ResNet", 224),
    "resnet101": _image("ResNet-101", "ResNet", 224, **_R101),
    "resnet101-cifar": _image("ResNet-101", "ResNet", 32, num_labels=10, **_R101),
    "convnext-t": _image("ConvNeXt-T", "ConvNext", 224),
    "regnet-y-040": _image("RegNetY-4GF", "RegNet", 224),
    "vgg19": _plain("VGG-19", architectures.vgg19),
    "densenet121": _plain("DenseNet-121", architectures.densenet121),
    "bert-base": _bert("BERT-base"),
    "bert-small": _bert("BERT-small (4 layers of width 512)", **_SMALL),
    "bert-small-32": _bert("BERT-small (4 layers of width 512)", 32, **_SMALL),
    "gpt2": _text("GPT-2 (124M)", "GPT2LMHeadModel", "GPT2Config"),
    "qwen3-0.6b": _text(
        "Qwen3-0.6B",
        "Qwen3ForCausalLM",
        "Qwen3Config",
        hidden_size=1024,
        intermediate_size=3072,
        **_QWEN3,
    ),
    "qwen3-1.7b": _text(
        "Qwen3-1.7B",
        "Qwen3ForCausalLM",
        "Qwen3Config",
        hidden_size=2048,
        intermediate_size=6144,
        **_QWEN3,
    ),
    "smollm2-135m": _text("SmolLM2-135M", "LlamaForCausalLM", "LlamaConfig", **_SMOL),
    "omni-7b": CatalogEntry(
        title="In the shape of Qwen2.5-Omni-7B's thinker: an image of 448 x 448 (256 tokens), 10 s "
        "of sound "
        "(250 tokens), 256 words, encoded side by side",
        build=architectures.Omni,
        shapes=((3, 448, 448), (128, 1000), ()),
        tokens=256,
    ),
}


class _Logits(nn.Module):
    """The bare network: one tensor out."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *inputs: Tensor) -> Tensor:
        out = self.net(*inputs)
        return out if isinstance(out, Tensor) else out.logits


def traced(name: str) -> Traced:
    """One model of the catalog, traced.

    Raises
    ------
    UserError
        The library has no such model.
    """
    if name not in CATALOG:
        raise UserError(
            f"the catalog has no model {name!r}.", next_step=f"It has: {', '.join(CATALOG)}."
        )
    entry = CATALOG[name]
    with torch.device("meta"):
        net = _Logits(entry.build()).eval()
        inputs = [
            torch.empty(ROWS, *shape)
            if shape
            else torch.empty(ROWS, entry.tokens or 1, dtype=torch.long)
            for shape in entry.shapes
        ]
    found = trace(
        net, inputs, input_names=["input", *(f"input_{i}" for i in range(1, len(inputs)))]
    )
    return replace(found, modules=tuple(module.removeprefix("net.") for module in found.modules))


def make(name: str) -> ModelGraph:
    """The graph of one model of the catalog."""
    found, entry = traced(name), CATALOG[name]
    source = f"python -m potluck.profile.catalog {name} (torch {torch.__version__.split('+')[0]})"
    graph = priced(found, name=name, title=entry.title, source=source, sequence=entry.tokens)
    return replace(graph, tied=tuple(weight.removeprefix("net.") for weight in graph.tied))


def main(arguments: Iterable[str] | None = None) -> None:
    """Write the named models, all of them by default."""
    parser = argparse.ArgumentParser(
        prog="python -m potluck.profile.catalog", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(CATALOG)}; all by default"
    )
    parser.add_argument(
        "--into", type=Path, default=Path("profiles/models"), help="folder to write to"
    )
    options = parser.parse_args(None if arguments is None else list(arguments))
    options.into.mkdir(parents=True, exist_ok=True)
    for name in options.names or CATALOG:
        graph = make(name)
        (options.into / f"{name}.json").write_text(graph.to_text(), encoding="utf-8")
        sys.stdout.write(
            f"{name}: {len(graph.nodes)} nodes, {graph.forward_flop / 1e9:.3g} GFLOP forward, "
            f"{graph.parameter_bytes / 4e6:.4g} M parameters\n"
        )


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
