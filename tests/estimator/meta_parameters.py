"""Writes what transformers itself builds: for each type of model its class, its config.json and its parameters.

    python meta_parameters.py data/parameters-5.17.jsonl --known "$(spillway estimate --types)"

Every class is built from its default config on the meta device, so no weights are made. Of a type that the estimator
knows every class is built that the type has, and its usual class from changed configs too: fewer layers, other heads,
tied tables, biases, experts. Lines of a type hold its config, and what a change makes different in it (a JSON merge
patch). The file is what tests/estimator/parameters_test.cpp reads; run this in an environment with PyTorch and the
transformers of the name.
"""

import argparse
import contextlib
import copy
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers  # noqa: E402
from transformers import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto import modeling_auto as auto  # noqa: E402

SECONDS_FOR_ONE = 120

# The first that knows a type gives the class a default config is taken to mean.
KINDS = [
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
]


def doubled(value: Any) -> Any:
    return [2 * side for side in value] if isinstance(value, (list, tuple)) else 2 * value


# Keys whose defaults are changed where a config has them, one variation each.
Change = tuple[str, Callable[[Any], Any]]
CHANGES: list[Change] = [
    ("num_key_value_heads", lambda value: 1),
    ("head_dim", lambda value: (value or 64) * 2),
    ("tie_word_embeddings", lambda value: not value),
    ("attention_bias", lambda value: not value),
    ("attention_out_bias", lambda value: not value),
    ("mlp_bias", lambda value: not value),
    ("use_bias", lambda value: not value),
    ("bias", lambda value: not value),
    ("use_qkv_bias", lambda value: not value),
    ("use_qk_norm", lambda value: not value),
    ("qk_layernorm", lambda value: not value),
    ("use_conv_bias", lambda value: not value),
    ("enable_bias", lambda value: not value),
    ("multi_query", lambda value: not value),
    ("parallel_attn", lambda value: not value),
    ("new_decoder_architecture", lambda value: not value),
    ("use_parallel_residual", lambda value: not value),
    ("num_local_experts", lambda value: 4),
    ("num_experts", lambda value: 4),
    ("n_routed_experts", lambda value: 8),
    ("moe_num_experts", lambda value: 4),
    ("n_shared_experts", lambda value: 2),
    ("moe_num_shared_experts", lambda value: 1),
    ("first_k_dense_replace", lambda value: 2),
    ("decoder_sparse_step", lambda value: 2),
    ("moe_intermediate_size", lambda value: 96),
    ("shared_expert_intermediate_size", lambda value: 160),
    ("intermediate_size", lambda value: 384),
    ("vocab_size", lambda value: 1000),
    ("max_position_embeddings", lambda value: 320),
    ("type_vocab_size", lambda value: 3),
    ("q_lora_rank", lambda value: None),
    ("word_embed_proj_dim", lambda value: 64),
    ("embedding_size", lambda value: 64),
    ("feed_forward_proj", lambda value: "gated-gelu" if value == "relu" else "relu"),
    ("num_decoder_layers", lambda value: 3),
    ("decoder_layers", lambda value: 3),
    ("image_size", lambda value: doubled(value)),
    ("patch_size", lambda value: doubled(value)),
    ("use_swiglu_ffn", lambda value: not value),
    ("state_size", lambda value: 32),
    ("expand", lambda value: 4),
    ("time_step_rank", lambda value: 24),
    ("n_groups", lambda value: 2),
    ("conv_kernel", lambda value: 3),
    ("num_kv_shared_layers", lambda value: 1),
    ("num_mem_blocks", lambda value: 2),
    ("use_shared_attention_adapter", lambda value: not value),
    ("adapter_rank", lambda value: 24),
    ("add_bias_linear", lambda value: not value),
]
FEW_LAYERS = 4
PARTS = ("vision_config", "text_config")  # of composite models
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")

# No model of these can run.
IMPOSSIBLE = {("helium", "head_dim")}
# Files say these, and no weight depends on them.
PASSED_OVER = (
    "_token_id", "_token_index", "dropout", "drop", "_eps", "epsilon", "initializer", "init_std",
    "rope_parameters", "rope_scaling", "rope_theta", "rope_interleave", "scaling", "time_step_limit",
    "transformers_version", "_name_or_path", "label2id", "task_specific_params", "use_cache", "aux_loss", "jitter",
    "summary_",
    "pretraining_tp", "softcapping", "temperature", "dtype", "hidden_act", "activation_function", "output_",
    "return_", "problem_type", "multiplier", "attn_implementation", "mup",
)  # fmt: skip


class TooLongError(Exception):
    """A model took longer to build than is waited for."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(_signal: int, _frame: Any) -> None:
        raise TooLongError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def class_names(kind: str, model_type: str) -> list[str]:
    names = getattr(auto, kind, {}).get(model_type, ())
    return [names] if isinstance(names, str) else list(names)


def classes_of(model_type: str, every: bool) -> list[str]:
    found: list[str] = []
    for kind in KINDS:
        for name in class_names(kind, model_type):
            if name not in found and hasattr(transformers, name):
                found.append(name)
    return found if every else found[:1]


def skip_initial_values() -> None:
    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, lambda tensor, *rest, **named: tensor)
    transformers.PreTrainedModel._init_weights = lambda self, module: None


def parameters(class_name: str, config: Any) -> int:
    with torch.device("meta"), time_limit(SECONDS_FOR_ONE):
        model = getattr(transformers, class_name)(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def as_file(config: Any, class_name: str) -> dict[str, Any]:
    config = copy.deepcopy(config)
    config.architectures = [class_name]
    return without_passed_over(json.loads(config.to_json_string(use_diff=True)))


def without_passed_over(told: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in told.items() if not any(word in key for word in PASSED_OVER)}
    return {key: without_passed_over(value) if isinstance(value, dict) else value for key, value in kept.items()}


def patch(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if old != value:
            out[key] = patch(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def with_layers_of(told: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    layers = next((changes[key] for key in LAYER_KEYS if key in changes), None)
    lists = ("layer_types", "layers_block_type", "mlp_layer_types")
    told = {key: value for key, value in told.items() if key != "hybrid_layer_ids"}  # Zamba2 makes it of the list
    return told | {key: few_of(told[key], layers) for key in lists if layers and isinstance(told.get(key), list)}


def few_of(kinds: list[str], layers: int) -> list[str]:
    """The first layers' kinds; where another kind is left out, that of all layers but the first."""
    few = kinds[:layers]
    others = [kind for kind in kinds if kind not in few]
    return few[:1] + others[:1] * (layers - 1) if others else few


def with_change(config: Any, changes: dict[str, Any]) -> Any:
    told = json.loads(config.to_json_string(use_diff=False))
    return type(config).from_dict(with_layers_of(told | changes, changes))


def default_row(model_type: str, class_name: str) -> tuple[dict[str, Any], Any]:
    row: dict[str, Any] = {"type": model_type, "class": class_name}
    try:
        config = CONFIG_MAPPING[model_type]()
        return row | {"parameters": parameters(class_name, config)}, config
    except (Exception, TooLongError) as error:  # noqa: BLE001 - whatever a class of others raises
        return row | {"cannot": f"{type(error).__name__}: {error}".splitlines()[0][:100]}, None


def changes_of(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What each variation sets: keys of the config, and of its parts where it has some."""
    short: dict[str, Any] = {key: FEW_LAYERS for key in LAYER_KEYS if isinstance(told.get(key), int)}
    parts = {part: told[part] for part in PARTS if isinstance(told.get(part), dict)}
    for part, section in parts.items():
        few = {key: FEW_LAYERS for key in (*LAYER_KEYS, "depth") if isinstance(section.get(key), int)}
        short[part] = with_layers_of(section | few, few)
    yield short
    for key, change in CHANGES:
        if key in told:
            yield short | {key: change(told[key])}
        for part, section in parts.items():
            if section.get(key) is not None:
                yield short | {part: short[part] | {key: change(section[key])}}


def changed_rows(model_type: str, class_name: str, config: Any) -> Iterator[dict[str, Any]]:
    told = json.loads(config.to_json_string(use_diff=False))
    for changes in changes_of(told):
        if any((model_type, key) in IMPOSSIBLE for key in changes):
            continue
        with contextlib.suppress(Exception, TooLongError):
            changed = with_change(config, changes)
            row = {"type": model_type, "class": class_name, "parameters": parameters(class_name, changed)}
            yield row | {"patch": patch(as_file(config, class_name), as_file(changed, class_name))}


def rows_of(model_type: str, known: bool) -> Iterator[dict[str, Any]]:
    usual = None
    for class_name in classes_of(model_type, known):
        row, config = default_row(model_type, class_name)
        if not known or config is None:
            yield row
            continue
        file = as_file(config, class_name)
        if usual is not None:
            yield row | {"patch": patch(usual, file)}
            continue
        usual = file
        yield row | {"config": file}
        yield from changed_rows(model_type, class_name, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--known", default="", help="types that the estimator knows")
    parser.add_argument("--types", default="", help="only these")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    skip_initial_values()
    types = options.types.split(",") if options.types else sorted(CONFIG_MAPPING.keys())
    known = set(options.known.split())
    with open(options.file, "w", encoding="utf-8") as out:
        for model_type in types:
            for row in rows_of(model_type, model_type in known):
                out.write(json.dumps(row, separators=(",", ":")) + "\n")
                out.flush()
            print(model_type, file=sys.stderr)


if __name__ == "__main__":
    main()
