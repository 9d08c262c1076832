"""`spillway estimate`: a config.json of transformers has the parameters of the model that transformers builds."""

from __future__ import annotations

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
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM
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
            path.write_text(config.to_json_string())
            done = subprocess.run(
                [COMMAND, "estimate", "--json", str(path)], capture_output=True, text=True, check=False
            )
        self.assertTrue(done.stdout, done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def check(self, config: Any, parameters: int) -> None:
        answer = self.estimated(config)
        self.assertEqual(answer["parameters"], parameters)
        # Parameters are those of more types than activations.
        self.assertFalse([each for each in answer["warnings"] if "as lean code keeps them" not in each])

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

    # Their files leave out what is as the language part's type has it.
    def test_language_parts_of_composite_models(self) -> None:
        for kind, given in (
            ("gemma3", {"num_hidden_layers": 34, "hidden_size": 2560, "intermediate_size": 10240}),
            ("gemma3", {}),
            ("llava", {"model_type": "llama", "vocab_size": 32064}),
            ("llava", {"model_type": "mistral"}),
            ("llava", {"model_type": "qwen2"}),
            ("qwen2_5_vl", {"num_hidden_layers": 2}),
            ("qwen3_vl", {"num_hidden_layers": 2, "rope_scaling": {"rope_type": "default"}}),
            ("llama4", {"num_hidden_layers": 2}),
        ):
            with self.subTest(kind, **given):
                config = CONFIG_MAPPING[kind](text_config=given)
                part = config.get_text_config()
                model = build(AutoModel, part)
                head = 0 if part.tie_word_embeddings else part.vocab_size * part.hidden_size
                answer = self.estimated(config)
                self.assertEqual(answer["parameters"], parameters_of(model) + head)
                self.assertIn("text_config: the language part is counted and no other", answer["assumptions"])

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
