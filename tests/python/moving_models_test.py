"""Models of transformers whose parameters, optimizer state and activations are away while they are not used.

Each of them passes something else from layer to layer: T5 the position bias that its first layer makes, Gemma two
kinds of rotary embeddings, Mamba a state. Weights are random.
"""

from __future__ import annotations

import functools
import os
import unittest
import warnings
from typing import Any

import spillway
from on_seeds import Outcome, Program, check_counters, torch
from spilling import every_seed, name_of

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers

ATTENTION = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
ATTENTION_FREE = {"hidden_size": 256, "num_hidden_layers": 4, "state_size": 8}
HEADS = {"num_key_value_heads": 2, "head_dim": 64}
SMALL: dict[str, Any] = {"vocab_size": 128}
SEQUENCE = 16
LEAST_PARAMETERS = 200_000  # of a list of layers


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**ATTENTION, **HEADS, **SMALL))


def gemma() -> Any:
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**ATTENTION, **HEADS, **SMALL))


def bert() -> Any:
    return transformers.BertForMaskedLM(transformers.BertConfig(**ATTENTION, **SMALL))


def mamba() -> Any:
    return transformers.MambaForCausalLM(transformers.MambaConfig(**ATTENTION_FREE, **SMALL))


def t5() -> Any:
    sizes = {"d_model": 256, "d_ff": 512, "num_layers": 4, "num_heads": 4, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **SMALL))


def layers_of(model: Any) -> list[Any]:
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return [
        layer
        for each in lists
        if sum(parameter.numel() for parameter in each.parameters()) > LEAST_PARAMETERS
        for layer in each
        if not isinstance(layer, torch.nn.ModuleList) and hasattr(layer, "gradient_checkpointing")
    ]


def train(outcome: Outcome, make: Any, checkpointed: bool) -> None:
    """Nothing is read where it is not, and all of it goes: no layer has to stay."""
    model = make().cuda().train()
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(2, SEQUENCE, dtype=torch.long, device="cuda")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parameters = spillway.offload_parameters(model, 0, layers=layers_of(model), optimizer=optimizer)
        state = spillway.offload_optimizer(optimizer)
        activations = spillway.offload_activations(model, min_bytes=1024)
        for _ in range(3):
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            check_counters()
        with torch.no_grad():
            model(input_ids=ids, labels=ids)
    assert not [each for each in caught if issubclass(each.category, spillway.SpillwayWarning)], caught
    assert len(parameters.tags) >= 4 and (checkpointed or activations.stats()["stashed"] > 0)
    for handle in (activations, state, parameters):
        handle.remove()


def named(make: Any, checkpointed: bool) -> Program:
    program = functools.partial(train, make=make, checkpointed=checkpointed)
    program.__name__ = f"{name_of(make)}{' checkpointed' if checkpointed else ''}"  # type: ignore[attr-defined]
    return program


PROGRAMS = [named(make, checkpointed) for make in (llama, gemma, bert, mamba, t5) for checkpointed in (False, True)]

OnEverySeed = every_seed(PROGRAMS, "capacity:1GiB")

if __name__ == "__main__":
    unittest.main()
