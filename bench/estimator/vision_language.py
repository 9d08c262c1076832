"""Models of images and text for transformers_peaks.py: configurations drawn at random, and samples for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Row = dict[str, Any]

IMAGE_TOKEN, START_TOKEN = 5, 3  # of a vocabulary that has few words


def text_of(rng: random.Random, kind: str) -> Row:
    head = rng.choice([64, 128])
    heads = rng.choice([8, 12, 16, 24])
    out = {
        **{"model_type": kind, "hidden_size": head * heads, "intermediate_size": head * heads * rng.choice([2, 3, 4])},
        **{"num_attention_heads": heads, "num_key_value_heads": heads // rng.choice([1, 2, 4])},
        **{"num_hidden_layers": rng.randint(2, 16), "vocab_size": rng.choice([32064, 65536, 128256])},
        **{"max_position_embeddings": 32768},
    }
    if kind in ("gemma3_text", "qwen3_vl_text"):
        out["head_dim"] = 128
    return out


def tower_of(rng: random.Random) -> Row:
    heads = rng.choice([8, 12, 16])
    return {
        **{"hidden_size": 64 * heads, "intermediate_size": 256 * heads, "num_attention_heads": heads},
        **{"num_hidden_layers": rng.randint(2, 27)},
    }


def llava(rng: random.Random) -> Row:
    tower = rng.choice([("clip_vision_model", "default", -2), ("siglip_vision_model", "full", -1)])
    vision = tower_of(rng) | {"model_type": tower[0], "image_size": rng.choice([224, 336]), "patch_size": 14}
    return {
        **{"model_type": "llava", "text_config": text_of(rng, rng.choice(["llama", "mistral", "qwen2"]))},
        **{"vision_config": vision, "vision_feature_select_strategy": tower[1], "vision_feature_layer": tower[2]},
        **{"image_token_index": IMAGE_TOKEN},
    }


def qwen(rng: random.Random, kind: str) -> Row:
    text = text_of(rng, f"{kind}_text")
    part = text["hidden_size"] // text["num_attention_heads"] // 8
    rotary = {"rope_type": "default", "mrope_section": [2 * part, part, part]}
    vision = tower_of(rng)
    sizes = {"depth": vision["num_hidden_layers"], "num_heads": vision["num_attention_heads"]}
    if kind == "qwen2_vl":
        sizes |= {"embed_dim": vision["hidden_size"], "hidden_size": text["hidden_size"]}
    else:
        sizes |= {"hidden_size": vision["hidden_size"], "out_hidden_size": text["hidden_size"]}
        sizes["intermediate_size"] = vision["intermediate_size"]
    if kind == "qwen3_vl":
        sizes["deepstack_visual_indexes"] = [0, 1]
    return {
        **{"model_type": kind, "text_config": text | {"rope_scaling": rotary}, "vision_config": sizes},
        **{"image_token_id": IMAGE_TOKEN, "vision_start_token_id": START_TOKEN},
    }


def glm4v(rng: random.Random) -> Row:
    text = text_of(rng, "glm4v_text") | {"pad_token_id": 0}
    part = text["hidden_size"] // text["num_attention_heads"] // 16
    text |= {
        "partial_rotary_factor": 0.5,
        "rope_scaling": {"rope_type": "default", "mrope_section": [2 * part, part, part]},
    }
    vision = tower_of(rng)
    sizes = {"depth": vision["num_hidden_layers"], "num_heads": vision["num_attention_heads"]}
    sizes |= {"hidden_size": vision["hidden_size"], "intermediate_size": vision["intermediate_size"]}
    sizes |= {"out_hidden_size": text["hidden_size"]}
    return {
        **{"model_type": "glm4v", "text_config": text, "vision_config": sizes},
        **{"image_token_id": IMAGE_TOKEN, "image_start_token_id": START_TOKEN},
    }


def gemma3(rng: random.Random) -> Row:
    vision = tower_of(rng) | {"image_size": 448, "patch_size": 14, "vision_use_head": False}
    return {
        **{"model_type": "gemma3", "text_config": text_of(rng, "gemma3_text"), "vision_config": vision},
        **{"mm_tokens_per_image": 256, "image_token_index": IMAGE_TOKEN},
    }


def internvl(rng: random.Random) -> Row:
    return {
        **{"model_type": "internvl", "text_config": text_of(rng, "qwen2"), "vision_config": tower_of(rng)},
        **{"image_token_id": IMAGE_TOKEN},
    }


KINDS: dict[str, Callable[[random.Random], Row]] = {
    **{"llava": llava, "gemma3": gemma3, "internvl": internvl, "glm4v": glm4v},
    **{kind: partial(qwen, kind=kind) for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")},
}


def with_images(rng: random.Random, row: Row) -> Row:
    """A sample's images, which fill a part of it."""
    images = rng.choice([1, 1, 2, 4])
    row = row | {"images": images, "freeze_vision": rng.random() < 0.5, "attention": "sdpa"}
    if "qwen" in row["config"]["model_type"] or row["config"]["model_type"] == "glm4v":
        row["grid"] = rng.choice([[16, 16], [24, 32], [48, 48]])
        row["batch"] = min(row["batch"], 4)  # each patch is a convolution of its own where there is no cuDNN
    row["sequence"] = max(row["sequence"], 256 * -(-(images * (1 + tokens_of(row)) + 16) // 256))
    return row


def tokens_of(row: Row) -> int:
    """Of one image, among the text's."""
    config = row["config"]
    if "grid" in row:
        return int(row["grid"][0] * row["grid"][1] // 4)
    if config["model_type"] == "llava":
        return int((config["vision_config"]["image_size"] // config["vision_config"]["patch_size"]) ** 2)
    return 256


def pixels_of(row: Row) -> int:
    """Of one image, where the type takes any."""
    patch = 16 if row["config"]["model_type"] == "qwen3_vl" else 14
    return int(row["grid"][0] * row["grid"][1] * patch * patch)


def inputs_of(row: Row) -> Row:
    batch, images, length = row["batch"], row["images"], row["sequence"]
    dtype = torch.bfloat16 if row["precision"] == "bf16" else torch.float32
    words = [START_TOKEN, *[IMAGE_TOKEN] * tokens_of(row)] * images
    tokens = torch.tensor([words + [1] * (length - len(words))] * batch).cuda()
    out: Row = {"input_ids": tokens, "labels": tokens}
    if "grid" in row:
        high, wide = row["grid"]
        shape: tuple[int, ...] = (batch * images * high * wide, pixels_of(row) // (high * wide) * 3 * 2)
        out["image_grid_thw"] = torch.tensor([[1, high, wide]] * (batch * images)).cuda()
    else:
        size = row["config"]["vision_config"].get("image_size", 448)
        shape = (batch * images, 3, size, size)
    if row["config"]["model_type"] == "gemma3":
        out["token_type_ids"] = (tokens == IMAGE_TOKEN).long()
    return out | {"pixel_values": torch.zeros(shape, device="cuda", dtype=dtype)}


def freeze_tower(model: Any) -> None:
    """All that stands before what puts an image's tokens into the text's space."""
    for name, weight in model.named_parameters():
        is_tower = "vision_tower" in name or "visual." in name
        if is_tower and "merger" not in name:
            weight.requires_grad_(False)
