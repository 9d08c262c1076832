"""Types for transformers_peaks.py with state spaces, linear attention, convolutions or chunks of attention."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import more_types

Row = dict[str, Any]


def qwen3_next(rng: random.Random) -> Row:
    out = more_types.qwen35(rng, "qwen3_5_moe_text") | {"model_type": "qwen3_next"}
    return out | {"num_hidden_layers": rng.randint(2, 8)}


def llama4(rng: random.Random) -> Row:
    """Each second layer has experts, or all have; each fourth sees all tokens, the others a chunk of them."""
    out = more_types.like_llama(rng, "llama4_text")
    ffn = out["intermediate_size"] // 2
    out |= {"head_dim": rng.choice([64, 128]), "num_local_experts": rng.choice([4, 8]), "num_experts_per_tok": 1}
    out |= {"intermediate_size": ffn, "intermediate_size_mlp": 2 * ffn, "num_hidden_layers": rng.randint(2, 8)}
    out |= {"interleave_moe_layer_step": rng.choice([1, 2]), "use_qk_norm": rng.random() < 0.5}
    return out | {"attention_chunk_size": rng.choice([512, 8192])}


def lfm2(rng: random.Random) -> Row:
    out = more_types.like_llama(rng, "lfm2")
    kinds = [rng.choice(["conv", "conv", "full_attention"]) for _ in range(out["num_hidden_layers"])]
    kinds[0] = "full_attention"
    return out | {"layer_types": kinds, "conv_bias": rng.random() < 0.3, "block_auto_adjust_ff_dim": rng.random() < 0.5}


def xglm(rng: random.Random) -> Row:
    w, drop = more_types.sizes_of(rng), rng.choice([0.0, 0.1])
    return {
        **{"model_type": "xglm", "d_model": w["hidden"], "ffn_dim": w["ffn"], "attention_heads": w["heads"]},
        **{"num_layers": rng.randint(2, 20), "vocab_size": 65536, "dropout": drop, "attention_dropout": drop},
        **{"activation_dropout": drop},
    }


def state_space(rng: random.Random, hidden: int, words: Row) -> Row:
    """Mamba-2's sizes under the words of a type, where it has them."""
    head = rng.choice([32, 64])
    groups = rng.choice([1, 1, 2, 4])
    sizes = {"heads": 2 * hidden // head, "head": head, "state": rng.choice([16, 64, 128]), "groups": groups}
    sizes["chunk"] = rng.choice([64, 128, 256])
    return {word: sizes[name] for name, word in words.items()}


MAMBA_WORDS = {
    **{"heads": "mamba_n_heads", "head": "mamba_d_head", "state": "mamba_d_state", "groups": "mamba_n_groups"},
    "chunk": "mamba_chunk_size",
}


def mamba2(rng: random.Random) -> Row:
    hidden = rng.choice([512, 768, 1024, 1536, 2048])
    words = {
        "heads": "num_heads",
        "head": "head_dim",
        "state": "state_size",
        "groups": "n_groups",
        "chunk": "chunk_size",
    }
    return {
        **{"model_type": "mamba2", "hidden_size": hidden, "num_hidden_layers": rng.randint(2, 8)},
        **{"vocab_size": rng.choice([32000, 50288]), "tie_word_embeddings": rng.random() < 0.4},
        **{"use_bias": rng.random() < 0.3, **state_space(rng, hidden, words)},
    }


def hybrid(rng: random.Random, kind: str) -> Row:
    """Bamba, Granite 4 and Falcon-H1: blocks of Mamba-2 beside or between those of attention."""
    out = more_types.like_llama(rng, kind) | {"num_hidden_layers": rng.randint(2, 6)}
    layers = out["num_hidden_layers"]
    attends = sorted(rng.sample(range(layers), rng.randint(1, layers - 1)))
    out |= state_space(rng, out["hidden_size"], MAMBA_WORDS)
    if kind == "bamba":
        return out | {"attn_layer_indices": attends}
    if kind == "falcon_h1":
        return out | {"mamba_d_ssm": 2 * out["hidden_size"], "mamba_rms_norm": rng.random() < 0.5}
    out["layer_types"] = ["attention" if i in attends else "mamba" for i in range(layers)]
    out |= {
        "shared_intermediate_size": out["intermediate_size"] // 2,
        "intermediate_size": out["intermediate_size"] // 4,
    }
    out["position_embedding_type"] = rng.choice([None, "rope"])
    return out | {"num_local_experts": rng.choice([0, 4, 8]), "num_experts_per_tok": 2}


def nemotron_h(rng: random.Random) -> Row:
    out = more_types.like_llama(rng, "nemotron_h")
    words = {"heads": "mamba_num_heads", "head": "mamba_head_dim", "state": "ssm_state_size", "groups": "n_groups"}
    kinds = [rng.choice(["mamba", "attention", "mlp", "moe"]) for _ in range(rng.randint(2, 8))]
    del out["num_hidden_layers"]
    ffn = out["intermediate_size"] // 4
    out |= {"moe_intermediate_size": ffn, "moe_shared_expert_intermediate_size": 2 * ffn}
    out |= {"n_routed_experts": rng.choice([4, 8]), "num_experts_per_tok": 2}
    return out | {"layers_block_type": kinds, **state_space(rng, out["hidden_size"], words | {"chunk": "chunk_size"})}


def zamba2(rng: random.Random) -> Row:
    """Hybrid layers take turns with one or two shared blocks. transformers 5 shares them where tables are tied."""
    out = more_types.like_llama(rng, "zamba2") | {"num_hidden_layers": rng.randint(3, 7)}
    del out["num_key_value_heads"]
    out["n_mamba_heads"] = 2 * out["hidden_size"] // rng.choice([32, 64])
    layers = out["num_hidden_layers"]
    hybrids = rng.sample(range(1, layers), rng.randint(1, layers - 1))
    out["layers_block_type"] = ["hybrid" if i in hybrids else "mamba" for i in range(layers)]
    out |= {"num_mem_blocks": rng.choice([1, 2]), "adapter_rank": rng.choice([16, 128])}
    out |= {"use_shared_attention_adapter": rng.random() < 0.5, "use_mem_rope": rng.random() < 0.5}
    out |= {"mamba_d_state": rng.choice([16, 64]), "mamba_ngroups": rng.choice([1, 2])}
    return out | {"chunk_size": rng.choice([64, 128, 256]), "tie_word_embeddings": True}


def mamba(rng: random.Random, kind: str) -> Row:
    return {
        **{"model_type": kind, "hidden_size": rng.choice([512, 768, 1024]), "num_hidden_layers": rng.randint(2, 6)},
        **{"vocab_size": rng.choice([32000, 50288]), "tie_word_embeddings": rng.random() < 0.4},
        **{"state_size": rng.choice([16, 32]), "use_bias": rng.random() < 0.3},
    }


def jamba(rng: random.Random) -> Row:
    out = more_types.like_llama(rng, "jamba") | {"num_hidden_layers": rng.randint(2, 6), "use_mamba_kernels": False}
    out |= {"intermediate_size": out["intermediate_size"] // 4, "attn_layer_period": 2, "attn_layer_offset": 1}
    return out | {"num_experts": rng.choice([1, 4]), "num_experts_per_tok": 2, "mamba_d_state": 16}


def minimax(rng: random.Random) -> Row:
    out = more_types.like_llama(rng, "minimax") | {"num_hidden_layers": rng.randint(2, 6), "num_experts_per_tok": 2}
    out |= {"num_local_experts": rng.choice([4, 8]), "intermediate_size": out["intermediate_size"] // 4}
    kinds = [rng.choice(["full_attention", "linear_attention"]) for _ in range(out["num_hidden_layers"])]
    return out | {"layer_types": kinds, "block_size": rng.choice([128, 256])}


def gemma3n(rng: random.Random) -> Row:
    out = more_types.like_llama(rng, "gemma3n_text") | {"head_dim": rng.choice([64, 128]), "vocab_size": 32000}
    layers = rng.choice([6, 8, 10])
    out |= {"num_hidden_layers": layers, "num_kv_shared_layers": layers // 2 - 1, "sliding_window": 512}
    out |= {"hidden_size_per_layer_input": rng.choice([64, 256]), "vocab_size_per_layer_input": 32000}
    out["layer_types"] = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
    out["activation_sparsity_pattern"] = rng.choice([None, [0.95] * (layers // 2) + [0.0] * (layers - layers // 2)])
    return out | {"altup_num_inputs": rng.choice([2, 4]), "laurel_rank": 64}


KINDS: dict[str, Callable[[random.Random], Row]] = {
    **{"qwen3_next": qwen3_next, "llama4_text": llama4, "lfm2": lfm2, "xglm": xglm, "mamba2": mamba2},
    **{kind: partial(hybrid, kind=kind) for kind in ("bamba", "granitemoehybrid", "falcon_h1")},
    **{"nemotron_h": nemotron_h, "zamba2": zamba2, "jamba": jamba, "minimax": minimax, "gemma3n_text": gemma3n},
    **{kind: partial(mamba, kind=kind) for kind in ("mamba", "falcon_mamba")},
}
# Torch's own code of the first state spaces takes one token at a time.
LONGEST = {**{kind: 512 for kind in ("mamba", "falcon_mamba", "jamba")}, "xglm": 2048}
