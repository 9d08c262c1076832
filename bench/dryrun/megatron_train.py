"""Steps of a GPT of Megatron's, as Megatron-LM's pretrain_gpt.py makes them, for `spillway dryrun`.

    spillway dryrun --gpu-memory 80GiB --devices 8 -- torchrun --nproc-per-node 8 bench/dryrun/megatron_train.py RUN

RUN is a JSON of a recorded run: an object with `args`, Megatron-LM's arguments, and `gpu`. Every rank takes part; the
last prints what PyTorch's allocator had allocated after each step and at the most, as Megatron-LM logs it. Needs
megatron-core, and nothing of Transformer Engine or Apex: their kernels that a local specification of layers uses are
stood in for here by such as allocate the same.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STEPS = 3
VOCABULARY = 50257  # of GPT-2


class FusedAdam(torch.optim.AdamW):
    """As Apex's: a step allocates nothing but the states, once."""

    def __init__(self, params: Any, **options: Any) -> None:
        options.pop("adam_w_mode", None)
        super().__init__(params, **options, fused=True)


class LayerNorm:
    """As Apex's: it keeps what PyTorch's keeps."""

    @staticmethod
    def forward(context: Any, given: torch.Tensor, weight: Any, bias: Any, shape: Any, eps: float) -> torch.Tensor:
        raise NotImplementedError  # its arguments are looked at

    @staticmethod
    def apply(given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, shape: Any, eps: float) -> torch.Tensor:
        return torch.nn.functional.layer_norm(given, tuple(shape), weight, bias, eps)


def stand_in_for_apex() -> None:
    """Megatron asks it for the norm that goes with sequence parallelism, and does without the rest."""
    for name in ("apex", "apex.normalization", "apex.normalization.fused_layer_norm"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[name].FusedLayerNormAffineFunction = LayerNorm  # type: ignore[attr-defined]


def stand_in_for_kernels() -> None:
    """Megatron-LM's container compiles these. The backward kernels write over the gradients that they are given."""
    for name in ("scaled_upper_triang_masked_softmax_cuda", "scaled_masked_softmax_cuda", "scaled_softmax_cuda"):
        module = types.ModuleType(name)
        module.forward = lambda scores, *_: torch.empty_like(scores)  # type: ignore[attr-defined]
        module.backward = lambda gradients, *_: gradients  # type: ignore[attr-defined]
        module.get_batch_per_block = lambda *_: 1  # type: ignore[attr-defined]
        sys.modules[name] = module


class TransformerEnginesGemm:
    """The router of a mixture of experts multiplies by it where it is installed. It keeps a workspace of the size that
    cuBLAS's documentation recommends: 4 MiB, and 32 MiB from Hopper on."""

    def __init__(self, gpu: str) -> None:
        self.workspace_bytes = (4 if gpu == "a100" else 32) << 20
        self.workspace: torch.Tensor | None = None

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, layout: str, **_: Any
    ) -> list[torch.Tensor]:
        if self.workspace is None:
            self.workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device="cuda")
        left = b.t() if layout[1] == "T" else b
        right = a.t() if layout[0] == "T" else a
        return [torch.matmul(left, right).to(dtype)]


class Run:
    """Arguments of Megatron-LM, by the defaults that it has."""

    def __init__(self, args: dict[str, str], gpu: str) -> None:
        self.args = args
        self.gpu = gpu
        self.world = int(os.environ["WORLD_SIZE"])
        self.tensor = self.number("tensor-model-parallel-size", 1)
        self.pipeline = self.number("pipeline-model-parallel-size", 1)
        self.expert = self.number("expert-model-parallel-size", 1)
        self.experts = self.number("num-experts", 0) or None
        self.sequence_length = self.number("seq-length", 0)
        self.micro_batch = self.number("micro-batch-size", 1)
        self.data = self.world // (self.tensor * self.pipeline)
        self.micro_batches = self.number("global-batch-size", 1) // (self.micro_batch * self.data)
        self.fp16, self.bf16 = self.has("fp16"), self.has("bf16")
        self.dtype = torch.half if self.fp16 else torch.bfloat16 if self.bf16 else torch.float
        multiple = 128 * self.tensor
        self.vocabulary = -(-VOCABULARY // multiple) * multiple

    def number(self, name: str, default: int) -> int:
        return int(self.args.get(name, default))

    def has(self, name: str) -> bool:
        return self.args.get(name) == "true"


def config_of(run: Run) -> Any:
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import AttnBackend

    mixture: dict[str, Any] = {}
    if run.experts is not None:
        from megatron.core.transformer.moe import moe_utils

        moe_utils.te_general_gemm = TransformerEnginesGemm(run.gpu)
        mixture = {
            "num_moe_experts": run.experts,
            "moe_router_load_balancing_type": run.args["moe-router-load-balancing-type"],
            "moe_router_topk": run.number("moe-router-topk", 2),
            "expert_model_parallel_size": run.expert,
            "expert_tensor_parallel_size": run.number("expert-tensor-parallel-size", run.tensor),
            "moe_token_dispatcher_type": run.args.get("moe-token-dispatcher-type", "allgather"),
        }
    return TransformerConfig(
        num_layers=run.number("num-layers", 0),
        hidden_size=run.number("hidden-size", 0),
        num_attention_heads=run.number("num-attention-heads", 0),
        ffn_hidden_size=run.number("ffn-hidden-size", 4 * run.number("hidden-size", 0)),
        tensor_model_parallel_size=run.tensor,
        pipeline_model_parallel_size=run.pipeline,
        sequence_parallel=run.has("sequence-parallel"),
        fp16=run.fp16,
        bf16=run.bf16,
        params_dtype=run.dtype,
        pipeline_dtype=run.dtype,
        autocast_dtype=run.dtype,
        apply_query_key_layer_scaling=run.has("apply-query-key-layer-scaling"),
        masked_softmax_fusion=not run.has("no-masked-softmax-fusion"),
        bias_activation_fusion=not run.has("no-bias-gelu-fusion") and not run.has("disable-bias-linear"),
        bias_dropout_fusion=not run.has("no-bias-dropout-fusion"),
        add_bias_linear=not run.has("disable-bias-linear"),
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        deterministic_mode=False,  # it demands an order of NCCL's that says nothing of memory
        attention_backend=AttnBackend.unfused,
        deallocate_pipeline_outputs=True,
        **mixture,
    )


def model_of(run: Run, config: Any) -> Any:
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.transformer.module import Float16Module

    spec = (
        get_gpt_layer_local_spec(run.experts, False)
        if run.experts is None
        else get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    )
    model: Any = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=run.vocabulary,
        max_sequence_length=run.number("max-position-embeddings", run.sequence_length),
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
    )
    for parameter in model.parameters():
        tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    model.cuda()
    model = Float16Module(config, model)
    reduction = DistributedDataParallelConfig(grad_reduce_in_fp32=run.bf16, check_for_nan_in_grad=True)
    return DistributedDataParallel(config, reduction, model)


def optimizer_of(run: Run, model: Any) -> Any:
    import megatron.core.optimizer as optimizers

    optimizers.Adam = FusedAdam
    config = optimizers.OptimizerConfig(
        optimizer="adam",
        lr=1e-4,
        weight_decay=0.01,
        clip_grad=1.0,
        fp16=run.fp16,
        bf16=run.bf16,
        params_dtype=run.dtype,
        initial_loss_scale=2.0**32,
        min_loss_scale=1.0,
        log_num_zeros_in_grad=run.has("log-num-zeros-in-grad"),
    )
    return optimizers.get_megatron_optimizer(config, [model])


def batches(run: Run) -> Iterator[dict[str, torch.Tensor]]:
    """As the loader's first rank of a tensor-parallel group gets them, on the host."""
    shape = (run.micro_batch, run.sequence_length)
    while True:
        yield {
            "tokens": torch.ones(shape, dtype=torch.int64),
            "labels": torch.ones(shape, dtype=torch.int64),
            "loss_mask": torch.ones(shape),
            "attention_mask": torch.ones(
                run.micro_batch, 1, run.sequence_length, run.sequence_length, dtype=torch.bool
            ).triu(1),
            "position_ids": torch.arange(run.sequence_length).repeat(run.micro_batch, 1),
        }


def on_this_rank(run: Run, batch: Iterator[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Megatron-LM's get_batch_on_this_tp_rank: the first of a tensor-parallel group broadcasts what the stage needs."""
    from megatron.core import parallel_state

    needed = {"attention_mask"}
    if parallel_state.is_pipeline_first_stage():
        needed |= {"tokens", "position_ids"}
    if parallel_state.is_pipeline_last_stage():
        needed |= {"labels", "loss_mask"}
    whole = next(batch)
    is_source = parallel_state.get_tensor_model_parallel_rank() == 0
    made = {
        name: tensor.cuda(non_blocking=True) if is_source else torch.empty_like(tensor, device="cuda")
        for name, tensor in whole.items()
        if is_source or name in needed
    }
    for name in sorted(needed):
        dist.broadcast(
            made[name],
            parallel_state.get_tensor_model_parallel_src_rank(),
            group=parallel_state.get_tensor_model_parallel_group(),
        )
    return made


def loss_of(mask: Any, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    mask = mask.view(-1).float()
    loss = torch.sum(output.view(-1).float() * mask)
    tokens = mask.sum().clone().detach().to(torch.int)
    return loss, tokens, {"lm loss": torch.cat([loss.clone().detach().view(1), tokens.view(1)])}


def forward_step(run: Run, batch: Iterator[dict[str, torch.Tensor]], model: Any) -> tuple[torch.Tensor, Any]:
    data = on_this_rank(run, batch)
    output = model(data.get("tokens"), data.get("position_ids"), data["attention_mask"], labels=data.get("labels"))
    return output, partial(loss_of, data.get("loss_mask"))


def train(run: Run) -> list[dict[str, int]]:
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    config = config_of(run)
    model = model_of(run, config)
    optimizer = optimizer_of(run, model)
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    run_passes = get_forward_backward_func()
    data = batches(run)
    rows = []
    for _ in range(STEPS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = run_passes(
            forward_step_func=partial(forward_step, run),
            data_iterator=data,
            model=[model],
            num_microbatches=run.micro_batches,
            seq_length=run.sequence_length,
            micro_batch_size=run.micro_batch,
            forward_only=False,
        )
        optimizer.step()
        stats = torch.cuda.memory_stats()
        rows.append({name: stats[f"allocated_bytes.all.{name}"] for name in ("current", "peak")})
        del losses
    return rows


def main() -> None:
    record = json.loads(Path(sys.argv[1]).read_text())
    run = Run(record["args"], record["gpu"])
    if run.has("sequence-parallel"):
        stand_in_for_apex()
    stand_in_for_kernels()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    # Only where it is given has the record a mapping of ranks that lets the last one differ.
    order = "tp-cp-ep-pp-dp" if run.has("use-tp-pp-dp-mapping") else "tp-cp-ep-dp-pp"
    parallel_state.initialize_model_parallel(
        run.tensor,
        run.pipeline,
        expert_model_parallel_size=run.expert,
        expert_tensor_parallel_size=run.number("expert-tensor-parallel-size", run.tensor),
        order=order,
    )
    model_parallel_cuda_manual_seed(1234)
    rows = train(run)
    if dist.get_rank() == run.world - 1:
        print(json.dumps({"steps": rows}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
