"""Language models of Llama's kind with made-up weights: benches of texts write with them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """Sizes of a language model of Llama's kind."""

    width: int
    heads: int
    groups: int
    hidden: int
    blocks: int
    words: int


SHAPES = {
    "135m": LlamaShape(width=576, heads=9, groups=3, hidden=1536, blocks=30, words=49152),
    "1b": LlamaShape(width=2048, heads=32, groups=8, hidden=8192, blocks=16, words=128256),
}


def llama(shape: LlamaShape, n_blocks: int, length: int) -> Any:
    """A model of transformers, of that shape with so many blocks, for texts of so many tokens; none
    of them ends a text.

    Parameters
    ----------
    shape
        Its sizes.
    n_blocks
        How many blocks.
    length
        Tokens of a text.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.words,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        num_hidden_layers=n_blocks,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
    )
    lm = LlamaForCausalLM(config).eval()
    lm.generation_config.eos_token_id = None
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(2.0)  # so that texts do not repeat one token
    return lm
