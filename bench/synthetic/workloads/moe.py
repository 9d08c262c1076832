"""Mixture of experts where every rank holds some of them and a router decides how many tokens each gets.

Attention and router run on the rank's own tokens; the tokens of all ranks that chose a local expert are received,
each expert works on its own tensors, and the results are sent back. Activations are kept, nothing is computed again;
the optimizer's states are divided among the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from draws import Draws
from recorder import Recorder

from workloads.transformer import Model, Optimizer, Tape, attention_backward, attention_forward, head_and_loss

# Feed-forward width is that of one expert.
MODEL = Model(hidden=2048, layers=16, heads=16, kv_heads=16, feed_forward=2816, vocabulary=50304)
EXPERTS, LOCAL, CHOSEN, RANKS = 64, 8, 2, 8
BATCH, LENGTH = 4, 4096
TOKENS = BATCH * LENGTH
# A balancing loss keeps this part of the tokens evenly spread; the rest goes where the router likes.
EVEN = 0.5
ROUTER_SHAPES = [MODEL.hidden, EXPERTS * MODEL.hidden]
EXPERT_SHAPES = 3 * [MODEL.hidden * MODEL.feed_forward]
LAYER_SHAPES = MODEL.attention_shapes + ROUTER_SHAPES + LOCAL * EXPERT_SHAPES


@dataclass
class LayerState:
    tape: Tape
    loads: list[int]


def draw_loads(draws: Draws) -> list[int]:
    """Tokens that each local expert receives from all ranks."""
    sent = RANKS * TOKENS * CHOSEN
    return [int(sent * (EVEN / EXPERTS + (1 - EVEN) * share)) for share in draws.shares(EXPERTS)[:LOCAL]]


def experts_forward(tape: Tape, loads: list[int]) -> None:
    """From "middle" to "output"."""
    make, hidden, wide = tape.make, MODEL.hidden, 2 * TOKENS * MODEL.hidden
    received = 2 * sum(loads) * hidden
    make("mlp_deviation", 4 * TOKENS)
    make("mlp_input", wide)
    make("router_logits", 4 * TOKENS * EXPERTS)
    make("probabilities", 4 * TOKENS * EXPERTS)
    tape.drop("router_logits")
    make("chosen_weights", 4 * TOKENS * CHOSEN)
    make("chosen_experts", 8 * TOKENS * CHOSEN)
    make("histogram", 8 * EXPERTS)
    make("order", 8 * TOKENS * CHOSEN)
    make("sent", CHOSEN * wide)
    make("received", received)
    tape.drop("sent", "histogram")
    for i, load in enumerate(loads):
        inner = 2 * load * MODEL.feed_forward
        make(f"gate{i}", inner)
        make(f"up{i}", inner)
        make(f"activated{i}", inner)
        make(f"product{i}", inner)
        make(f"result{i}", 2 * load * hidden)
    make("results", received)
    tape.drop(*(f"result{i}" for i in range(LOCAL)))
    make("returned", CHOSEN * wide)
    tape.drop("results")
    make("combined", wide)
    make("output", wide)
    tape.drop("combined")


def experts_backward(tape: Tape, loads: list[int]) -> list[int]:
    """From "output_gradient" to "middle_gradient". Returns the gradients of the parameters."""
    make, drop, parameter = tape.make, tape.drop, tape.recorder.allocate
    hidden, wide = MODEL.hidden, 2 * TOKENS * MODEL.hidden
    matrix = 2 * hidden * MODEL.feed_forward
    gradients = []
    make("returned_gradient", CHOSEN * wide)
    make("weights_gradient", 4 * TOKENS * CHOSEN)
    drop("returned")
    make("results_gradient", 2 * sum(loads) * hidden)
    drop("returned_gradient")
    for i, load in reversed(list(enumerate(loads))):
        inner = 2 * load * MODEL.feed_forward
        make("product_gradient", inner)
        gradients.append(parameter(matrix))
        drop(f"product{i}")
        make("activated_gradient", inner)
        make("up_gradient", inner)
        drop("product_gradient", f"activated{i}", f"up{i}")
        make("through_up", 2 * load * hidden)
        gradients.append(parameter(matrix))
        drop("up_gradient")
        make("gate_gradient", inner)
        drop("activated_gradient", f"gate{i}")
        make("through_gate", 2 * load * hidden)
        gradients.append(parameter(matrix))
        drop("gate_gradient")
        make(f"expert_gradient{i}", 2 * load * hidden)
        drop("through_up", "through_gate")
    drop("results_gradient")
    make("received_gradient", 2 * sum(loads) * hidden)
    drop("received", *(f"expert_gradient{i}" for i in reversed(range(LOCAL))))
    make("sent_gradient", CHOSEN * wide)
    drop("received_gradient")
    make("through_experts", wide)
    drop("sent_gradient", "order")
    make("probabilities_gradient", 4 * TOKENS * EXPERTS)
    drop("weights_gradient", "chosen_weights", "chosen_experts")
    make("logits_gradient", 4 * TOKENS * EXPERTS)
    drop("probabilities_gradient", "probabilities")
    make("through_router", wide)
    gradients.append(parameter(2 * EXPERTS * hidden))
    drop("logits_gradient", "mlp_input")
    make("input_gradient", wide)
    drop("through_router", "through_experts")
    make("through_norm", wide)
    gradients.append(parameter(2 * hidden))
    drop("input_gradient", "mlp_deviation", "middle")
    make("middle_gradient", wide)
    drop("through_norm", "output_gradient")
    return gradients


def train(recorder: Recorder, draws: Draws) -> list[int]:
    identifiers, labels = recorder.allocate(8 * TOKENS), recorder.allocate(8 * TOKENS)
    inputs = [recorder.allocate(2 * TOKENS * MODEL.hidden)]
    layers = []
    for _ in range(MODEL.layers):
        layer = LayerState(Tape(recorder, saving=True), draw_loads(draws))
        attention_forward(layer.tape, MODEL, BATCH, LENGTH)
        experts_forward(layer.tape, layer.loads)
        inputs.append(layer.tape.take("output"))
        layers.append(layer)
    gradient, gradients = head_and_loss(recorder, MODEL, TOKENS, inputs.pop())
    while layers:
        layer = layers.pop()
        layer.tape.blocks["output_gradient"] = gradient
        gradients += experts_backward(layer.tape, layer.loads)
        gradients += attention_backward(layer.tape, MODEL, TOKENS)
        recorder.free(inputs.pop())
        gradient = layer.tape.take("source_gradient")
    for block in (gradient, identifiers, labels):
        recorder.free(block)
    return gradients


def record(recorder: Recorder, draws: Draws, steps: int) -> None:
    shapes = MODEL.ends_shapes + MODEL.layers * LAYER_SHAPES
    for elements in shapes:
        recorder.allocate(2 * elements)
    optimizer = Optimizer(recorder, [elements // RANKS for elements in shapes], bytes_of_state=4)
    recorder.recording = True
    for _ in range(steps):
        optimizer.step(train(recorder, draws))
