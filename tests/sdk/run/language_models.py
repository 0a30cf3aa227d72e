"""Small language models of `transformers` with made-up weights, plans for them, and what one
machine writes.
"""

import pytest
from tests.sdk.run.conftest import make_plan

import potluck

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROWS, LENGTH = 2, 50
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
WINDOW = GROUPED | {"sliding_window": 6}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
# class -> what is special of it, for its configuration
KINDS = {
    "Llama": GROUPED,
    "GPT2": {"vocab_size": 97, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "Gemma3": WINDOW | {"head_dim": 8},  # some layers see a window
    "Mistral": WINDOW,  # all do
    "GptOss": WINDOW | {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Gemma2": WINDOW | {"head_dim": 8},  # caps its logits, and its attention
    "Qwen3": GROUPED | {"head_dim": 8},
    "Qwen3Moe": GROUPED | EXPERTS | {"head_dim": 8, "num_experts": 4},
    "DeepseekV3": SIZES
    | EXPERTS
    | {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "OPT": {key: value for key, value in SIZES.items() if key != "intermediate_size"}
    | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "GPTNeoX": SIZES,
    "Phi": SIZES,
    "Phi3": GROUPED,
    "Cohere": GROUPED,
    "Olmo2": GROUPED,
    "Granite": GROUPED,
    "Starcoder2": GROUPED,
}


def language_model(kind="Llama", seed=0, dtype=None):
    """One with weights large enough that texts differ."""
    torch.manual_seed(seed)
    special = f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config"
    config = getattr(transformers, special)(**KINDS[kind])
    name = f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    lm = getattr(transformers, name)(config).eval().to(dtype or torch.float32)
    lm.generation_config.eos_token_id = None
    for parameter in lm.parameters():
        parameter.data.mul_(3)
    return lm


def model_of(lm, rows=ROWS, **more):
    given = {"max_length": LENGTH, "n_candidates": 8} | more
    return potluck.LanguageModel.from_transformers(lm, rows=rows, **given)


def plan_of(model, *devices):
    """A stage for each device."""
    stages = [((device,), (model.rows,)) for device in devices]
    return make_plan(model, *stages, micro_batch=model.rows, training=False)


def written(lm, prompt, n):
    """What one machine writes, always the likeliest token."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(n):
            logits = lm(input_ids=ids, use_cache=False).logits[0, -1]
            ids = torch.cat([ids, logits.argmax()[None, None]], 1)
    return ids[0, len(prompt) :].tolist()
