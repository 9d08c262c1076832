"""Types for transformers_peaks.py beside the most used ones, drawn at random where `--kinds` names them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

Row = dict[str, Any]

# As Llama's files are written.
LIKE_LLAMA = (
    *("smollm3", "granite", "ernie4_5", "seed_oss", "arcee", "helium", "ministral"),
    *(
        "olmo",
        "olmo2",
        "olmo3",
        "cohere",
        "cohere2",
        "glm",
        "glm4",
        "exaone4",
        "stablelm",
        "nemotron",
        "starcoder2",
        "phi",
    ),
    "vaultgemma",
    *("apertus", "bitnet", "ministral3", "youtu", "minicpm3"),
)
WITH_EXPERTS = (
    "olmoe",
    "qwen2_moe",
    "granitemoe",
    "phimoe",
    "gpt_oss",
    "glm4_moe",
    "deepseek_v3",
    "ernie4_5_moe",
    *("deepseek_v2", "glm4_moe_lite", "minimax_m2", "flex_olmo", "solar_open"),
)
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu", "minicpm3")


def sizes_of(rng: random.Random) -> Row:
    head, heads = rng.choice([64, 64, 96, 128]), rng.choice([8, 12, 16, 24, 32])
    ffn = int(head * heads * rng.choice([1.5, 2, 2.6875, 3.5, 4])) // 16 * 16
    return {"head": head, "heads": heads, "kv": heads // rng.choice([1, 2, 4]), "hidden": head * heads, "ffn": ffn}


def like_llama(rng: random.Random, kind: str) -> Row:
    w = sizes_of(rng)
    out = {
        **{"model_type": kind, "hidden_size": w["hidden"], "intermediate_size": w["ffn"]},
        **{"num_attention_heads": w["heads"], "num_key_value_heads": w["kv"]},
        **{"num_hidden_layers": rng.randint(2, 20), "vocab_size": rng.choice([32000, 65536, 128256])},
        **{"max_position_embeddings": 32768, "tie_word_embeddings": rng.random() < 0.4, "pad_token_id": 0},
    }
    if kind in ("glm", "glm4", "seed_oss", "ernie4_5", "helium", "ministral", "vaultgemma"):
        out["head_dim"] = w["head"]
    return out | (latent(rng, kind, out) if kind in LATENT else {})


def latent(rng: random.Random, kind: str, row: Row) -> Row:
    """DeepSeek's attention: keys and values are made of a narrow row for each token."""
    out = {
        **{"kv_lora_rank": rng.choice([128, 256, 512]), "q_lora_rank": rng.choice([None, 512, 768])},
        **{"qk_rope_head_dim": rng.choice([32, 64]), "qk_nope_head_dim": rng.choice([64, 128]), "v_head_dim": 128},
        **{"num_key_value_heads": row["num_attention_heads"]},
    }
    if kind in ("youtu", "minicpm3", "glm4_moe_lite"):
        out["q_lora_rank"] = 768
    return out


def with_experts(rng: random.Random, kind: str) -> Row:
    out = like_llama(rng, kind) | {"num_hidden_layers": rng.randint(2, 8), "num_experts_per_tok": 2}
    count, ffn = rng.choice([4, 8]), out["intermediate_size"] // 4
    if kind in ("olmoe", "granitemoe", "phimoe", "gpt_oss", "minimax_m2", "flex_olmo"):
        name = "num_experts" if kind in ("olmoe", "flex_olmo") else "num_local_experts"
        out |= {name: count, "intermediate_size": ffn}
    if kind == "gpt_oss":
        out |= {"head_dim": 64, "num_experts_per_tok": 2}
    if kind == "qwen2_moe":
        out |= {"num_experts": count, "moe_intermediate_size": ffn, "shared_expert_intermediate_size": 2 * ffn}
    if kind == "ernie4_5_moe":
        out |= {"moe_num_experts": count, "moe_k": 2, "moe_intermediate_size": ffn, "moe_num_shared_experts": 1}
    if kind in ("glm4_moe", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "solar_open"):
        out |= {"n_routed_experts": count, "moe_intermediate_size": ffn, "n_shared_experts": 1, "n_group": 1}
        out |= {"topk_group": 1, "num_hidden_layers": rng.randint(2, 8)}
    if kind in ("glm4_moe", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"):
        out["first_k_dense_replace"] = 1
    return out


def gemma4(rng: random.Random) -> Row:
    """Parts of the published ones in any combination: experts, keys that are values or are shared, inputs of layers."""
    out = like_llama(rng, "gemma4_text") | {"head_dim": rng.choice([64, 128, 256])}
    out |= {"global_head_dim": out["head_dim"] * rng.choice([1, 2, 2]), "sliding_window": rng.choice([512, 1024])}
    out["final_logit_softcapping"] = rng.choice([None, 30.0])
    out["hidden_size_per_layer_input"] = rng.choice([0, 0, 64, 256])
    out["vocab_size_per_layer_input"] = out["vocab_size"]
    if rng.random() < 0.5:
        out |= {"attention_k_eq_v": True, "num_global_key_value_heads": max(1, out["num_key_value_heads"] // 2)}
    if rng.random() < 0.4:
        out |= {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "num_hidden_layers": rng.randint(2, 8)}
        out["moe_intermediate_size"] = out["intermediate_size"] // 4
    elif rng.random() < 0.6:  # each kind of layer is there before those that share its keys
        layers = rng.randint(12, 20)
        out |= {"num_hidden_layers": layers, "num_kv_shared_layers": layers // 2 - 1}
        out["use_double_wide_mlp"] = rng.random() < 0.5
    return out


def qwen35(rng: random.Random, kind: str) -> Row:
    """Each fourth layer attends to all tokens, the others have the gated delta rule."""
    out = like_llama(rng, kind) | {"head_dim": rng.choice([64, 128, 256]), "num_hidden_layers": rng.randint(2, 10)}
    key_heads = rng.choice([4, 8, 16])
    out |= {"linear_num_key_heads": key_heads, "linear_num_value_heads": key_heads * rng.choice([1, 2])}
    out |= {"linear_key_head_dim": rng.choice([64, 128]), "linear_value_head_dim": rng.choice([64, 128])}
    if kind == "qwen3_5_moe_text":
        ffn = out["intermediate_size"] // 4
        out |= {"num_experts": rng.choice([4, 8]), "num_experts_per_tok": 2, "moe_intermediate_size": ffn}
        out["shared_expert_intermediate_size"] = ffn
    return out


def like_gpt2(rng: random.Random, kind: str) -> Row:
    w = sizes_of(rng)
    out = {
        **{"model_type": kind, "n_embd": w["hidden"], "n_head": w["heads"], "n_layer": rng.randint(2, 20)},
        **{"vocab_size": 50257, "n_positions": 2048},
    }
    if kind in ("gptj", "codegen"):
        out |= {"rotary_dim": 32}
    return out


def opt(rng: random.Random) -> Row:
    w = sizes_of(rng)
    return {
        **{
            "model_type": "opt",
            "hidden_size": w["hidden"],
            "ffn_dim": 4 * w["hidden"],
            "word_embed_proj_dim": w["hidden"],
        },
        **{"num_attention_heads": w["heads"], "num_hidden_layers": rng.randint(2, 20), "vocab_size": 50272},
        **{"dropout": rng.choice([0.0, 0.1])},
    }


def gpt_neo(rng: random.Random) -> Row:
    w, pairs = sizes_of(rng), rng.randint(1, 10)
    return {
        **{"model_type": "gpt_neo", "hidden_size": w["hidden"], "num_heads": w["heads"], "num_layers": 2 * pairs},
        **{"attention_types": [[["global", "local"], pairs]], "vocab_size": 50257},
    }


def bloom(rng: random.Random) -> Row:
    w = sizes_of(rng)
    return {
        **{"model_type": "bloom", "hidden_size": w["hidden"], "n_head": w["heads"], "n_layer": rng.randint(2, 20)},
        **{"vocab_size": 65536},
    }


def falcon(rng: random.Random) -> Row:
    w = sizes_of(rng)
    return {
        **{"model_type": "falcon", "hidden_size": w["hidden"], "num_attention_heads": w["heads"], "vocab_size": 65024},
        **{"num_hidden_layers": rng.randint(2, 20), "new_decoder_architecture": rng.random() < 0.5},
    }


def biogpt(rng: random.Random) -> Row:
    w = sizes_of(rng)
    return {
        **{"model_type": "biogpt", "hidden_size": w["hidden"], "intermediate_size": w["ffn"], "vocab_size": 42384},
        **{"num_attention_heads": w["heads"], "num_hidden_layers": rng.randint(2, 20)},
        **{"max_position_embeddings": 2048},
    }


def encoder(rng: random.Random, kind: str) -> Row:
    w = sizes_of(rng)
    drop = rng.choice([0.0, 0.1])
    out = {
        **{"model_type": kind, "hidden_size": w["hidden"], "intermediate_size": w["ffn"], "vocab_size": 50265},
        **{"num_attention_heads": w["heads"], "num_hidden_layers": rng.randint(2, 20), "max_position_embeddings": 514},
        **{"hidden_dropout_prob": drop, "attention_probs_dropout_prob": drop},
    }
    if kind == "distilbert":
        out = {
            **{"model_type": kind, "dim": w["hidden"], "hidden_dim": w["ffn"], "n_heads": w["heads"]},
            **{"n_layers": rng.randint(2, 20), "vocab_size": 30522, "dropout": drop, "attention_dropout": drop},
        }
    if kind == "electra":
        out["embedding_size"] = rng.choice([128, w["hidden"]])
    if kind == "deberta-v2" and rng.random() < 0.7:
        out |= {"relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"]}
        out |= {"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False}
    if kind == "albert":
        out["embedding_size"] = 128
    if kind == "modernbert":
        out = {key: value for key, value in out.items() if "dropout" not in key} | {
            "max_position_embeddings": 8192,
            "vocab_size": 50368,
        }
    return out


def of_images(rng: random.Random, kind: str) -> Row:
    w = sizes_of(rng)
    out = {
        **{"model_type": kind, "hidden_size": w["hidden"], "image_size": 224, "patch_size": rng.choice([14, 16])},
        **{"num_attention_heads": w["heads"], "num_hidden_layers": rng.randint(2, 24)},
    }
    return out | ({"mlp_ratio": 4} if kind.startswith("dinov2") else {"intermediate_size": w["ffn"]})


def two_stacks(rng: random.Random, kind: str) -> Row:
    """An encoder and a decoder, of BART and its like."""
    w = sizes_of(rng)
    layers, drop = rng.randint(2, 12), rng.choice([0.0, 0.1])
    out = {
        **{
            "model_type": kind,
            "d_model": w["hidden"],
            "encoder_layers": layers,
            "decoder_layers": rng.randint(2, layers),
        },
        **{"encoder_attention_heads": w["heads"], "decoder_attention_heads": w["heads"], "dropout": drop},
        **{"activation_dropout": rng.choice([0.0, 0.1])},
        **{"encoder_ffn_dim": 4 * w["hidden"], "decoder_ffn_dim": 4 * w["hidden"], "vocab_size": 51865},
    }
    if kind == "whisper":
        return out | {"num_mel_bins": 80, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "m2m_100":
        out |= {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}  # else layers are left out at random
    return out | {"max_position_embeddings": 1024, "pad_token_id": 1, "decoder_start_token_id": 2}


def like_t5(rng: random.Random, kind: str) -> Row:
    w = sizes_of(rng)
    return {
        **{"model_type": kind, "d_model": w["hidden"], "d_ff": w["ffn"], "d_kv": 64, "num_heads": w["heads"]},
        **{"num_layers": rng.randint(2, 12), "vocab_size": 65536, "dropout_rate": rng.choice([0.0, 0.1])},
        **{"decoder_start_token_id": 0},
    }


IMAGES = ("deit", "dinov2", "dinov2_with_registers")
STACKS = ("bart", "plbart", "blenderbot-small", "marian", "mbart", "pegasus", "blenderbot", "m2m_100", "whisper")
ENCODERS = (
    "xlm-roberta",
    "camembert",
    "data2vec-text",
    "distilbert",
    "electra",
    "albert",
    "modernbert",
    "deberta-v2",
    "mpnet",
    *("megatron-bert", "roberta-prelayernorm", "xlm-roberta-xl"),
)
KINDS: dict[str, Callable[[random.Random], Row]] = {
    **{kind: partial(like_llama, kind=kind) for kind in LIKE_LLAMA},
    **{kind: partial(with_experts, kind=kind) for kind in WITH_EXPERTS},
    **{kind: partial(like_gpt2, kind=kind) for kind in ("gptj", "codegen", "gpt_bigcode")},
    **{kind: partial(encoder, kind=kind) for kind in ENCODERS},
    **{kind: partial(of_images, kind=kind) for kind in IMAGES},
    **{kind: partial(two_stacks, kind=kind) for kind in STACKS},
    **{kind: partial(like_t5, kind=kind) for kind in ("mt5", "umt5")},
    **{kind: partial(qwen35, kind=kind) for kind in ("qwen3_5_text", "qwen3_5_moe_text")},
    **{"gemma4_text": gemma4, "biogpt": biogpt, "opt": opt, "bloom": bloom, "falcon": falcon, "gpt_neo": gpt_neo},
}
CLASSES = {
    **{kind: "AutoModelForMaskedLM" for kind in ENCODERS},
    **{kind: "AutoModelForImageClassification" for kind in IMAGES},
    **{kind: "AutoModelForSeq2SeqLM" for kind in (*STACKS, "mt5", "umt5")},
    **{"whisper": "AutoModelForSpeechSeq2Seq"},
}
LONGEST = {
    **{kind: 512 for kind in ENCODERS},
    **{kind: 1024 for kind in STACKS},
    **{kind: 2048 for kind in ("biogpt", "opt", "gptj", "codegen", "gpt_bigcode", "gpt_neo", "mt5", "umt5")},
    **{"modernbert": 8192, "whisper": 256},
}
