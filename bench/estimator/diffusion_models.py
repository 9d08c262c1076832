#!/usr/bin/env python3
"""Peaks of one training step of diffusers' denoisers, drawn at random, as `spillway dryrun` sees them; and parameters.

    spillway dryrun --gpu-memory 80GiB -- python diffusion_models.py --seed 1 --count 40 >> rows.jsonl
    python diffusion_models.py --seed 1 --count 40 --parameters >> parameters.jsonl

Each line holds the parts' configurations, how the denoiser was trained, and the bytes: `peak` of the third step,
`steady` after it. The same seed draws the same configurations. The lines of tests/estimator/data/diffusion-*.jsonl were
made so. The step is that of diffusers' examples: the autoencoder encodes pixels, noise is predicted and compared.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers_peaks import forget

Row = dict[str, Any]

MOST_BYTES = 30 << 30
TARGETS = ["to_k", "to_q", "to_v", "to_out.0"]


def unet(rng: random.Random) -> Row:
    """Levels of which the inner ones have attention, as Stable Diffusion's; or the outer has none, as SDXL's."""
    count, base = rng.choice([2, 3, 3, 4]), rng.choice([64, 128, 192, 320])
    channels = [base * step for step in (1, 2, 4, 4)[:count]]
    outer = rng.random() < 0.5
    plain = {0} if outer else {count - 1}
    head = rng.choice([32, 64])
    out = {
        **{"_class_name": "UNet2DConditionModel", "block_out_channels": channels, "sample_size": 64},
        **{"layers_per_block": rng.choice([1, 2]), "cross_attention_dim": rng.choice([768, 1024, 2048])},
        **{"attention_head_dim": [width // head for width in channels]},
        **{"transformer_layers_per_block": [rng.randint(1, 3) for _ in channels]},
        **{"down_block_types": ["DownBlock2D" if i in plain else "CrossAttnDownBlock2D" for i in range(count)]},
        **{"up_block_types": ["UpBlock2D" if i in plain else "CrossAttnUpBlock2D" for i in reversed(range(count))]},
        **{"use_linear_projection": rng.random() < 0.5},
    }
    if rng.random() < 0.5:
        more = {"addition_embed_type": "text_time", "addition_time_embed_dim": 256}
        out |= more | {"projection_class_embeddings_input_dim": 1280 + 6 * 256}
    return out


def flux(rng: random.Random) -> Row:
    heads, head = rng.choice([4, 8, 12, 16]), rng.choice([64, 128])
    rotary = {64: [8, 28, 28], 128: [16, 56, 56]}[head]
    return {
        **{"_class_name": "FluxTransformer2DModel", "num_attention_heads": heads, "attention_head_dim": head},
        **{"num_layers": rng.randint(1, 5), "num_single_layers": rng.randint(1, 8), "in_channels": 64},
        **{"joint_attention_dim": rng.choice([1024, 4096]), "pooled_projection_dim": 768},
        **{"guidance_embeds": rng.random() < 0.5, "axes_dims_rope": rotary},
    }


def stable_diffusion_3(rng: random.Random) -> Row:
    heads, layers = rng.choice([6, 12, 18, 24]), rng.randint(2, 8)
    out = {
        **{"_class_name": "SD3Transformer2DModel", "num_attention_heads": heads, "attention_head_dim": 64},
        **{"num_layers": layers, "joint_attention_dim": 4096, "caption_projection_dim": 64 * heads},
        **{"pooled_projection_dim": 2048, "pos_embed_max_size": 192, "sample_size": 128},
    }
    if rng.random() < 0.5:
        out |= {"qk_norm": "rms_norm", "dual_attention_layers": list(range(rng.randint(0, layers - 1)))}
    return out


def coder(rng: random.Random, channels: int) -> Row:
    widths = [width * rng.choice([1, 1, 2]) for width in (64, 128, 256, 256)]
    return {
        **{"_class_name": "AutoencoderKL", "block_out_channels": widths, "latent_channels": channels},
        **{"layers_per_block": rng.choice([1, 2]), "use_quant_conv": channels == 4, "force_upcast": False},
        **{"use_post_quant_conv": channels == 4, "down_block_types": ["DownEncoderBlock2D"] * 4},
        **{"up_block_types": ["UpDecoderBlock2D"] * 4},
    }


KINDS = {"unet": unet, "flux": flux, "sd3": stable_diffusion_3}


SIDES = [256, 384, 512, 768, 1024]


def draw(rng: random.Random, kinds: list[str], sides: list[int]) -> Row:
    kind = rng.choice(kinds)
    config = KINDS[kind](rng)
    row: Row = {
        **{"denoiser": config, "vae": coder(rng, 4 if kind == "unet" else 16)},
        **{"width": rng.choice(sides), "height": rng.choice(sides), "batch": rng.choice([1, 2, 4])},
        **{"precision": rng.choice(["autocast", "autocast", "fp32", "bf16"]), "recompute": rng.random() < 0.5},
        **{"optimizer": rng.choice(["adamw", "adamw_foreach", "sgd"]), "encodes": rng.random() < 0.5},
    }
    if rng.random() < 0.4:
        row |= {"adapter": {"r": rng.choice([4, 16, 64]), "target_modules": TARGETS}, "precision": "bf16"}
    return row


def model_of(config: Row) -> Any:
    sizes = {key: value for key, value in config.items() if key != "_class_name"}
    return getattr(importlib.import_module("diffusers"), config["_class_name"])(**sizes)


def parameters(row: Row) -> Row:
    with torch.device("meta"):
        parts = {name: model_of(row[name]) for name in ("denoiser", "vae")}
    return {name: sum(weight.numel() for weight in part.parameters()) for name, part in parts.items()}


def arguments_of(row: Row, dtype: torch.dtype) -> Row:
    """What the denoiser reads beside noisy latents."""
    config, batch = row["denoiser"], row["batch"]

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, device="cuda", dtype=dtype)

    if config["_class_name"] == "UNet2DConditionModel":
        out: Row = {"encoder_hidden_states": zeros(batch, 77, config["cross_attention_dim"])}
        if "addition_embed_type" in config:
            out["added_cond_kwargs"] = {"text_embeds": zeros(batch, 1280), "time_ids": zeros(batch, 6)}
        return out
    tokens = 512 if config["_class_name"] == "FluxTransformer2DModel" else 333
    out = {
        **{"encoder_hidden_states": zeros(batch, tokens, config["joint_attention_dim"])},
        **{"pooled_projections": zeros(batch, config["pooled_projection_dim"])},
    }
    if tokens == 512:
        count = row["height"] * row["width"] // 256
        out |= {"img_ids": zeros(count, 3), "txt_ids": zeros(tokens, 3)}
        out["guidance"] = zeros(batch) if config["guidance_embeds"] else None
    return out


class Trained:
    """Parts on the device, and a step as the examples of diffusers have it."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.autocasts = row["precision"] == "autocast" or ("adapter" in row and row["precision"] != "fp32")
        self.frozen = torch.float32 if row["precision"] == "fp32" else torch.bfloat16
        whole = row["precision"] in ("autocast", "fp32")
        self.denoiser = model_of(row["denoiser"]).to("cuda", torch.float32 if whole else torch.bfloat16)
        self.denoiser.train()
        if row["recompute"]:
            self.denoiser.enable_gradient_checkpointing()
        if "adapter" in row:
            peft = importlib.import_module("peft")
            self.denoiser.requires_grad_(False)
            self.denoiser.add_adapter(peft.LoraConfig(**row["adapter"]))
            for weight in self.denoiser.parameters():
                if weight.requires_grad:
                    weight.data = weight.data.to(torch.float32)
        # The examples for Stable Diffusion 3 keep its autoencoder in fp32.
        is_wide = row["denoiser"]["_class_name"] == "SD3Transformer2DModel"
        self.coded = torch.float32 if is_wide else self.frozen
        self.vae = model_of(row["vae"]).to("cuda", self.coded).requires_grad_(False) if row["encodes"] else None
        weights = [weight for weight in self.denoiser.parameters() if weight.requires_grad]
        self.optimizer: torch.optim.Optimizer
        if row["optimizer"] == "sgd":
            self.optimizer = torch.optim.SGD(weights, lr=0.1)
        else:
            fused = row["optimizer"] == "adamw"
            self.optimizer = torch.optim.AdamW(weights, fused=fused, foreach=not fused)

    def latents(self) -> torch.Tensor:
        row = self.row
        if self.vae is not None:
            pixels = torch.zeros(row["batch"], 3, row["height"], row["width"], device="cuda")
            with torch.no_grad():
                encoded: torch.Tensor = self.vae.encode(pixels.to(self.coded)).latent_dist.sample()
            return (encoded * 0.18).to(self.frozen)
        shape = (row["batch"], row["vae"]["latent_channels"], row["height"] // 8, row["width"] // 8)
        return torch.zeros(*shape, device="cuda", dtype=self.frozen)

    def step(self) -> None:
        row = self.row
        latents = self.latents()
        if row["denoiser"]["_class_name"] == "FluxTransformer2DModel":
            batch, channels, height, width = latents.shape
            latents = latents.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
            latents = latents.reshape(batch, height * width // 4, 4 * channels)
        noise = torch.zeros_like(latents)
        noisy = latents + noise
        times = torch.zeros(row["batch"], device="cuda", dtype=torch.long)
        given = arguments_of(row, self.frozen)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.autocasts):
            predicted = self.denoiser(noisy, timestep=times, **given, return_dict=False)[0]
        loss = functional.mse_loss(predicted.float(), noise.float())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()


def measured(row: Row) -> Row:
    before = torch.cuda.memory_allocated()
    trained = Trained(row)
    for i in range(3):
        if i == 2:
            torch.cuda.reset_peak_memory_stats()
        trained.step()
    peak, steady = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    return {"peak": peak - before, "steady": steady - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sides", default=",".join(map(str, SIDES)), help="of images, in pixels")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--parameters", action="store_true", help="counted on the meta device, instead of a step")
    options = parser.parse_args()
    version = importlib.import_module("diffusers").__version__
    if options.rows:
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    else:
        rng = random.Random(options.seed)
        rows = []
        while len(rows) < options.count:
            row = draw(rng, options.kinds.split(","), [int(side) for side in options.sides.split(",")])
            if 16 * parameters(row)["denoiser"] < MOST_BYTES:
                rows.append(row | {"seed": options.seed, "number": len(rows)})
    for row in rows:
        if options.parameters:
            print(
                json.dumps({"denoiser": row["denoiser"], "vae": row["vae"], "parameters": parameters(row)}), flush=True
            )
            continue
        forget()
        try:
            found = measured(row)
        except (RuntimeError, ValueError) as error:
            print(f"{json.dumps(row)}: {error}", file=sys.stderr)
            continue
        print(json.dumps({**row, "diffusers": version, "torch": torch.__version__, **found}), flush=True)


if __name__ == "__main__":
    main()
