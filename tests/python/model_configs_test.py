"""`spillway estimate`: a config.json of transformers has the parameters of the model that transformers builds."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import tempfile
import unittest
import warnings
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
)
from transformers.modeling_utils import no_init_weights

COMMAND = os.environ["SPILLWAY_COMMAND"]

NEW_FALCON = {"new_decoder_architecture": True, "hidden_size": 512, "num_attention_heads": 32, "num_kv_heads": 8}

# Transformers' own defaults leave these untested, with two layers each: few sizes, and what a file may switch.
CAUSAL: list[tuple[str, dict[str, Any]]] = [
    *(
        (kind, {})
        for kind in (
            "llama", "mistral", "mixtral", "smollm3", "helium", "arcee", "ernie4_5", "seed_oss", "granite",
            "granitemoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text",
            "olmo2", "olmo3", "olmoe", "exaone4", "glm", "glm4", "llama4_text", "cohere", "cohere2", "phi3",
            "phimoe", "deepseek_v2", "gpt_oss", "stablelm", "starcoder2", "phi", "gpt_neox", "falcon",
            "bloom", "gpt2", "gpt_bigcode", "gptj", "codegen", "opt",
        )
    ),
    ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 8}),
    ("ernie4_5", {"use_bias": True}),
    ("seed_oss", {"attention_out_bias": True}),
    ("seed_oss", {"attention_bias": False}),
    ("glm", {"attention_bias": False}),
    ("llama4_text", {"interleave_moe_layer_step": 2}),
    ("cohere", {"use_qk_norm": True}),
    ("phimoe", {"attention_bias": True, "lm_head_bias": True}),
    ("nemotron", {"num_key_value_heads": 8}),
    ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True}),
    ("stablelm", {"use_parallel_residual": True}),
    ("starcoder2", {"use_bias": False, "num_key_value_heads": 4}),
    ("falcon", {**NEW_FALCON}),
    ("falcon", {**NEW_FALCON, "num_ln_in_parallel_attn": 1}),
    ("falcon", {"multi_query": False, "parallel_attn": False, "bias": True}),
    ("gpt_bigcode", {"multi_query": False}),
    ("opt", {"enable_bias": False, "max_position_embeddings": 512}),
    ("deepseek_v3", {"first_k_dense_replace": 1}),
    ("glm4_moe", {"head_dim": 128}),
    ("glm4_moe", {"head_dim": 128, "use_qk_norm": True, "attention_bias": True}),
]  # fmt: skip


CLIP_L = {"model_type": "clip_vision_model", "hidden_size": 1024, "num_hidden_layers": 3, "image_size": 336,
          "patch_size": 14, "intermediate_size": 4096, "num_attention_heads": 16}  # fmt: skip
SIGLIP = {"model_type": "siglip_vision_model"}
SIGLIP_WITHOUT_HEAD = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_attention_heads": 16,
                       "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False}  # fmt: skip
PLAIN_ROTARY = {"rope_scaling": {"rope_type": "default"}}
VISION_LANGUAGE: list[tuple[str, dict[str, Any]]] = [
    ("llava", {"text_config": {"model_type": "llama", "vocab_size": 32064}, "vision_config": CLIP_L}),
    ("llava", {"text_config": {"model_type": "qwen2"}}),
    ("llava", {"text_config": {"model_type": "mistral"}, "vision_config": SIGLIP,
               "multimodal_projector_bias": False, "vision_feature_layer": [-2, -1]}),
    ("llava_next", {"text_config": {"model_type": "mistral"}}),
    ("llava_next_video", {"text_config": {"model_type": "llama"}}),
    ("llava_onevision", {"text_config": {"model_type": "qwen2"}}),
    ("vipllava", {"text_config": {"model_type": "llama"}}),
    ("mistral3", {"text_config": {"model_type": "mistral"}}),
    ("qwen2_vl", {"text_config": {}, "vision_config": {"depth": 3, "embed_dim": 640, "num_heads": 8}}),
    ("qwen2_5_vl", {"text_config": {}}),
    ("qwen2_5_vl", {"text_config": {}, "vision_config": {"hidden_size": 1280, "depth": 2}}),
    ("qwen3_vl", {"text_config": PLAIN_ROTARY}),
    ("qwen3_vl", {"text_config": PLAIN_ROTARY, "vision_config": {"deepstack_visual_indexes": [1, 2], "depth": 4}}),
    ("qwen3_vl_moe", {"text_config": PLAIN_ROTARY}),
    ("gemma3", {"text_config": {"hidden_size": 2560, "intermediate_size": 10240},
                "vision_config": SIGLIP_WITHOUT_HEAD}),
    ("gemma3", {"text_config": {}}),
    ("shieldgemma2", {"text_config": {}}),
    ("paligemma", {"text_config": {"model_type": "gemma"}}),
    ("internvl", {"text_config": {"model_type": "qwen2"}}),
    ("internvl", {"text_config": {"model_type": "qwen2"},
                  "vision_config": {"use_mask_token": True, "attention_bias": True, "use_qk_norm": True,
                                    "norm_type": "rms_norm", "num_hidden_layers": 2}}),
    ("idefics3", {"text_config": {"model_type": "llama"}}),
    ("smolvlm", {"text_config": {"model_type": "llama"}}),
    ("aya_vision", {"text_config": {"model_type": "cohere2"}, "vision_config": SIGLIP}),
    ("cohere2_vision", {"text_config": {"model_type": "cohere2"}}),
    ("llama4", {"text_config": {}, "vision_config": {"hidden_size": 1408, "num_hidden_layers": 2}}),
]  # fmt: skip


def parameters_of(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def build(kind: Any, config: Any, **more: Any) -> torch.nn.Module:
    with torch.device("meta"), no_init_weights(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind.from_config(config, **more)
        model.tie_weights()
        return cast("torch.nn.Module", model)


class ModelConfigs(unittest.TestCase):
    def estimated(self, config: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(config) if isinstance(config, dict) else config.to_json_string())
            done = subprocess.run(
                [COMMAND, "estimate", "--json", str(path)], capture_output=True, text=True, check=False
            )
        self.assertTrue(done.stdout, done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def check(self, config: Any, parameters: int) -> None:
        answer = self.estimated(config)
        self.assertEqual(answer["parameters"], parameters)
        # Parameters are those of more types than activations, and of types with attention of their own.
        others = ("as lean code keeps them", "has no scaled_dot_product_attention")
        self.assertFalse([each for each in answer["warnings"] if not any(words in each for words in others)])

    def test_language_models(self) -> None:
        for kind, given in CAUSAL:
            with self.subTest(kind, **given):
                config = CONFIG_MAPPING[kind](num_hidden_layers=2, **given)
                self.check(config, parameters_of(build(AutoModelForCausalLM, config)))

    def test_models_whose_layers_are_named_otherwise(self) -> None:
        config = CONFIG_MAPPING["gpt_neo"](num_layers=2, attention_types=[[["global", "local"], 1]])
        self.check(config, parameters_of(build(AutoModelForCausalLM, config)))
        for given in ({}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}):
            config = CONFIG_MAPPING["t5"](num_layers=2, num_decoder_layers=3, **given)
            self.check(config, parameters_of(build(AutoModelForSeq2SeqLM, config)))

    def test_encoders(self) -> None:
        for kind in ("bert", "roberta", "xlm-roberta"):
            with self.subTest(kind):
                config = CONFIG_MAPPING[kind](num_hidden_layers=2)
                self.check(config, parameters_of(build(AutoModel, config)))

    # Their files leave out what is as the part's type has it.
    def test_models_with_a_tower_of_images(self) -> None:
        for kind, given in VISION_LANGUAGE:
            with self.subTest(kind, **given):
                given = copy.deepcopy(given)
                given["text_config"]["num_hidden_layers"] = 2
                config = CONFIG_MAPPING[kind](**given)
                self.check(config, parameters_of(build(AutoModelForImageTextToText, config)))

    def test_a_tower_that_is_not_known_is_said_to_be_left_out(self) -> None:
        config = CONFIG_MAPPING["llava"](text_config={"model_type": "llama", "num_hidden_layers": 2}).to_dict()
        config["model_type"] = "gemma4_unified"
        answer = self.estimated(config)
        self.assertIn("text_config: the language part is counted and no other", answer["warnings"])

    def test_a_part_of_unknown_size_is_refused(self) -> None:
        config = transformers.Qwen2Config(num_hidden_layers=2).to_dict()
        del config["num_attention_heads"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(config))
            done = subprocess.run([COMMAND, "estimate", str(path)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("model.num_attention_heads: missing", done.stderr)


if __name__ == "__main__":
    unittest.main()
