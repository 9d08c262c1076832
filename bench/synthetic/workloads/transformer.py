"""A decoder-only transformer as the allocator sees it: bf16, grouped-query flash attention, gated MLP.

A Tape holds the blocks of one pass through one layer by name. With `saving`, what the backward pass will read stays;
without (inference, or the first pass of a layer whose activations are computed again later) every block goes after
its last use. Sizes are what PyTorch operators ask for; nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from recorder import Recorder


@dataclass(frozen=True)
class Model:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int

    @property
    def kv_width(self) -> int:
        return self.hidden // self.heads * self.kv_heads

    @property
    def attention_shapes(self) -> list[int]:
        """Elements of each parameter: norm, query, key, value, output."""
        h = self.hidden
        return [h, h * h, h * self.kv_width, h * self.kv_width, h * h]

    @property
    def mlp_shapes(self) -> list[int]:
        """Norm, gate, up, down."""
        return [self.hidden] + 3 * [self.hidden * self.feed_forward]

    @property
    def layer_shapes(self) -> list[int]:
        return self.attention_shapes + self.mlp_shapes

    @property
    def ends_shapes(self) -> list[int]:
        """Embedding, which the head shares, and the last norm."""
        return [self.vocabulary * self.hidden, self.hidden]

    @property
    def shapes(self) -> list[int]:
        return self.ends_shapes + self.layers * self.layer_shapes


LLAMA_3B = Model(hidden=3072, layers=28, heads=24, kv_heads=8, feed_forward=8192, vocabulary=128256)


class Tape:
    def __init__(self, recorder: Recorder, saving: bool = False) -> None:
        self.recorder = recorder
        self.saving = saving
        self.blocks: dict[str, int] = {}

    def make(self, name: str, size: int) -> None:
        self.blocks[name] = self.recorder.allocate(size)

    def drop(self, *names: str) -> None:
        for name in names:
            self.recorder.free(self.blocks.pop(name))

    def used(self, *names: str) -> None:
        """Their last use of the forward pass; a backward pass reads them again."""
        if not self.saving:
            self.drop(*names)

    def take(self, name: str) -> int:
        """The block outlives the tape."""
        return self.blocks.pop(name)


def attention_forward(tape: Tape, model: Model, batch: int, length: int) -> None:
    """From the residual stream to "middle", the residual stream after attention."""
    tokens, make = batch * length, tape.make
    wide, narrow = 2 * tokens * model.hidden, 2 * tokens * model.kv_width
    make("attention_deviation", 4 * tokens)
    make("attention_input", wide)
    tape.used("attention_deviation")
    make("query_projected", wide)
    make("key_projected", narrow)
    make("value", narrow)
    tape.used("attention_input")
    for name, size in (("query", wide), ("key", narrow)):
        make("turned", size)  # the half that rotary embedding swaps
        make("scaled", size)
        make(name, size)
        tape.drop("turned", "scaled", f"{name}_projected")
    make("attended", wide)
    make("log_sum_exp", 4 * batch * model.heads * length)
    make("random_seed", 8)
    make("random_offset", 8)
    tape.used("query", "key", "value", "log_sum_exp", "random_seed", "random_offset")
    make("projected", wide)
    tape.used("attended")
    make("middle", wide)
    tape.drop("projected")


def mlp_forward(tape: Tape, model: Model, tokens: int) -> None:
    """From "middle" to "output"."""
    make = tape.make
    wide, inner = 2 * tokens * model.hidden, 2 * tokens * model.feed_forward
    make("mlp_deviation", 4 * tokens)
    make("mlp_input", wide)
    tape.used("mlp_deviation")
    make("gate", inner)
    make("activated", inner)
    tape.used("gate")
    make("up", inner)
    tape.used("mlp_input")
    make("product", inner)
    tape.used("activated", "up")
    make("projected", wide)
    tape.used("product")
    make("output", wide)
    tape.drop("projected")
    tape.used("middle")


def mlp_backward(tape: Tape, model: Model, tokens: int) -> list[int]:
    """From "output_gradient" to "middle_gradient". Returns the gradients of the parameters."""
    make, drop, parameter = tape.make, tape.drop, tape.recorder.allocate
    wide, inner = 2 * tokens * model.hidden, 2 * tokens * model.feed_forward
    matrix = 2 * model.hidden * model.feed_forward
    make("product_gradient", inner)
    gradients = [parameter(matrix)]
    drop("product")
    make("activated_gradient", inner)
    make("up_gradient", inner)
    drop("product_gradient", "up", "activated")
    make("through_up", wide)
    gradients.append(parameter(matrix))
    drop("up_gradient")
    make("gate_gradient", inner)
    drop("activated_gradient", "gate")
    make("through_gate", wide)
    gradients.append(parameter(matrix))
    drop("gate_gradient", "mlp_input")
    make("input_gradient", wide)
    drop("through_up", "through_gate")
    make("through_norm", wide)
    gradients.append(parameter(2 * model.hidden))
    drop("input_gradient", "mlp_deviation", "middle")
    make("middle_gradient", wide)
    drop("through_norm", "output_gradient")
    return gradients


def attention_backward(tape: Tape, model: Model, tokens: int) -> list[int]:
    """From "middle_gradient" to "source_gradient". Returns the gradients of the parameters."""
    make, drop, parameter = tape.make, tape.drop, tape.recorder.allocate
    wide, narrow = 2 * tokens * model.hidden, 2 * tokens * model.kv_width
    square, matrix = 2 * model.hidden * model.hidden, 2 * model.hidden * model.kv_width
    make("attended_gradient", wide)
    gradients = [parameter(square)]
    make("query_gradient", wide)
    make("key_gradient", narrow)
    make("value_gradient", narrow)
    make("workspace", 2 * wide)  # fp32 accumulator of the query's gradient
    drop("workspace", "attended", "attended_gradient", "log_sum_exp", "random_seed", "random_offset")
    drop("query", "key", "value")
    for name, size in (("query", wide), ("key", narrow)):
        make("turned", size)
        make(f"{name}_turned_back", size)
        drop("turned", f"{name}_gradient")
    make("through_value", wide)
    gradients.append(parameter(matrix))
    drop("value_gradient")
    make("through_key", wide)
    gradients.append(parameter(matrix))
    drop("key_turned_back")
    make("through_both", wide)
    drop("through_value", "through_key")
    make("through_query", wide)
    gradients.append(parameter(square))
    drop("query_turned_back", "attention_input")
    make("input_gradient", wide)
    drop("through_both", "through_query")
    make("through_norm", wide)
    gradients.append(parameter(2 * model.hidden))
    drop("input_gradient", "attention_deviation")
    make("source_gradient", wide)
    drop("through_norm", "middle_gradient")
    return gradients


def layer_forward(tape: Tape, model: Model, batch: int, length: int) -> None:
    attention_forward(tape, model, batch, length)
    mlp_forward(tape, model, batch * length)


def layer_backward(tape: Tape, model: Model, tokens: int) -> list[int]:
    return mlp_backward(tape, model, tokens) + attention_backward(tape, model, tokens)


def forward(recorder: Recorder, model: Model, batch: int, length: int) -> int:
    """Inference: only the last residual stream stays."""
    residual = recorder.allocate(2 * batch * length * model.hidden)
    for _ in range(model.layers):
        tape = Tape(recorder)
        layer_forward(tape, model, batch, length)
        recorder.free(residual)
        residual = tape.take("output")
    return residual


def head_and_loss(recorder: Recorder, model: Model, tokens: int, residual: int) -> tuple[int, list[int]]:
    """Loss over the vocabulary in fp32, and back. Takes the residual stream, returns its gradient and the weights'."""
    tape = Tape(recorder)
    make, drop = tape.make, tape.drop
    wide, logits = 2 * tokens * model.hidden, 2 * tokens * model.vocabulary
    make("deviation", 4 * tokens)
    make("normal", wide)
    make("logits", logits)
    make("logits_in_fp32", 2 * logits)
    make("log_probabilities", 2 * logits)
    make("loss", 4)
    make("total_weight", 4)
    make("loss_gradient", 2 * logits)
    drop("log_probabilities", "total_weight")
    make("logits_gradient", logits)
    drop("loss_gradient", "logits_in_fp32")
    make("normal_gradient", wide)
    gradients = [recorder.allocate(2 * model.vocabulary * model.hidden)]
    drop("logits_gradient", "logits", "normal")
    gradients.append(recorder.allocate(2 * model.hidden))
    make("residual_gradient", wide)
    drop("normal_gradient", "deviation", "loss")
    recorder.free(residual)
    return tape.take("residual_gradient"), gradients


def train_with_recompute(recorder: Recorder, model: Model, batch: int, length: int) -> list[int]:
    """Forward and backward where each layer keeps its input only. Returns the gradients of the parameters."""
    tokens = batch * length
    identifiers, labels = recorder.allocate(8 * tokens), recorder.allocate(8 * tokens)
    inputs = [recorder.allocate(2 * tokens * model.hidden)]
    for _ in range(model.layers):
        tape = Tape(recorder)
        layer_forward(tape, model, batch, length)
        inputs.append(tape.take("output"))
    gradient, gradients = head_and_loss(recorder, model, tokens, inputs.pop())
    for _ in range(model.layers):
        tape = Tape(recorder, saving=True)
        layer_forward(tape, model, batch, length)
        tape.drop("output")
        tape.blocks["output_gradient"] = gradient
        gradients += layer_backward(tape, model, tokens)
        recorder.free(inputs.pop())
        gradient = tape.take("source_gradient")
    # The embedding's own gradient is as large as the table, then added to the head's.
    embedding = recorder.allocate(2 * model.vocabulary * model.hidden)
    for block in (embedding, gradient, identifiers, labels):
        recorder.free(block)
    return gradients


class Optimizer:
    """Fused AdamW; its two states of each parameter come into being in the first step."""

    def __init__(self, recorder: Recorder, shapes: list[int], bytes_of_state: int) -> None:
        self.recorder = recorder
        self.sizes = [bytes_of_state * elements for elements in shapes]
        self.states: list[int] = []

    def step(self, gradients: list[int]) -> None:
        """Clips, steps, and sets the gradients to none."""
        allocate, free = self.recorder.allocate, self.recorder.free
        norms = [allocate(4) for _ in gradients]
        stacked, total, factor = allocate(4 * len(norms)), allocate(4), allocate(4)
        for block in [*norms, stacked, total, factor]:
            free(block)
        if not self.states:
            self.states = [allocate(size) for size in self.sizes for _ in range(2)]
        for block in gradients:
            free(block)
