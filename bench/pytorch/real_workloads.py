"""Programs of other people's libraries, whose sizes differ from step to step, for real_programs.py.

A workload takes what it is given, builds a model with random weights, and makes its steps between `clock.begin()` and
`clock.end(value)`; the value, a loss or an output, is what is compared between allocators. What it draws comes from
`given.rng` and PyTorch's generators, both seeded, so that every allocator sees the same. Data is made on the host,
before a step's time begins, but for what a library makes itself.
"""

from __future__ import annotations

import importlib
import math
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Clock(Protocol):
    def begin(self) -> None: ...

    def end(self, value: Any) -> None:
        """Waits for the device. `value`: a tensor, or None where the workload answers with all of them at its end."""


@dataclass
class Given:
    torch: Any
    rng: random.Random
    small: bool  # sizes for a device without kernels, on which the host does the work
    steps: int
    clock: Clock

    def size(self, full: int, small: int) -> int:
        return small if self.small else full

    def between(self, fewest: int, most: int) -> int:
        """Drawn with equal chances for each doubling; a sixteenth of both on the small device."""
        least = self.size(fewest, max(fewest // 16, 2))
        return int(math.exp(self.rng.uniform(math.log(least), math.log(self.size(most, max(most // 16, least + 1))))))

    def log_normal(self, median: int, sigma: float, most: int) -> int:
        drawn = self.rng.lognormvariate(math.log(self.size(median, 16)), sigma)
        return max(4, min(int(drawn), self.size(most, 64)))


@dataclass(frozen=True)
class Workload:
    run: Callable[[Given], Any]  # answers with tensors whose bits are compared too, or None
    modules: tuple[str, ...]  # whose import is no part of the time
    steps: int
    says: str
    exact: bool = True  # with deterministic kernels, so that allocators can be compared bit by bit
    imports_use_cuda: bool = False  # so they cannot be shared by runs


LANGUAGE = ("transformers.models.llama.modeling_llama",)


def llama(given: Given, **sizes: Any) -> Any:
    transformers = importlib.import_module("transformers")
    if given.small:
        sizes.update(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=512)
        sizes["num_key_value_heads"] = 2
    return transformers.LlamaConfig(max_position_embeddings=4096, pad_token_id=0, eos_token_id=None, **sizes)


def built(given: Given, config: Any, dtype: str = "float32", kind: str = "AutoModelForCausalLM", **more: Any) -> Any:
    torch, transformers = given.torch, importlib.import_module("transformers")
    torch.set_default_dtype(getattr(torch, dtype))
    with torch.device("cuda"):
        model = getattr(transformers, kind).from_config(config, **more)
    torch.set_default_dtype(torch.float32)
    return model


LLAMA_1B = {
    **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True},
}
LLAMA_360M = {
    **{"hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 15},
    **{"num_key_value_heads": 5, "vocab_size": 49152, "tie_word_embeddings": True},
}
LLAMA_240M = {
    **{"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16},
    **{"num_key_value_heads": 4, "vocab_size": 32000},
}


def prompts(given: Given, batch: int, length: int, vocabulary: int) -> tuple[Any, Any]:
    """Tokens and their mask on the host: of varied lengths, padded on the left."""
    torch = given.torch
    tokens = torch.randint(1, vocabulary, (batch, length))
    mask = torch.ones_like(tokens)
    for row in range(1, batch):
        mask[row, : given.rng.randrange(length - 1)] = 0
    return tokens, mask


def answers(model: Any, tokens: Any, mask: Any, new: int) -> Any:
    return model.generate(
        tokens, attention_mask=mask, min_new_tokens=new, max_new_tokens=new, do_sample=False, pad_token_id=0
    )


def generate(given: Given) -> None:
    config = llama(given, **LLAMA_1B)
    model = built(given, config, "bfloat16").eval()
    for _ in range(given.steps):
        batch, length, new = given.between(8, 64), given.between(64, 1536), given.rng.randint(16, 48)
        tokens, mask = prompts(given, batch, length, config.vocab_size)
        given.clock.begin()
        text = answers(model, tokens.cuda(), mask.cuda(), new if not given.small else 3)
        given.clock.end(text[:, length:].float().mean())


def padded(given: Given, lengths: list[int], vocabulary: int) -> tuple[Any, Any, Any]:
    """Tokens, mask and labels, padded on the right to the longest."""
    torch = given.torch
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    mask, labels = torch.zeros_like(tokens), torch.full_like(tokens, -100)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.randint(1, vocabulary, (length,))
        mask[row, :length] = 1
        labels[row, :length] = tokens[row, :length]
    return tokens, mask, labels


def trainer(given: Given, batch: int, checkpointing: bool) -> list[Any]:
    """transformers' own Trainer and collator, on texts whose lengths are drawn log-normal."""
    torch, transformers = given.torch, importlib.import_module("transformers")
    config = llama(given, **LLAMA_360M, use_cache=False)
    model = built(given, config)
    batch = given.size(batch, 2)

    class Steps(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            given.clock.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            given.clock.end(None)

    def collate(features: list[list[int]]) -> dict[str, Any]:
        tokens, mask, labels = padded(given, [len(each) for each in features], config.vocab_size)
        return {"input_ids": tokens, "attention_mask": mask, "labels": labels}

    texts = [[1] * given.log_normal(330, 0.6, 1024) for _ in range(batch * given.steps)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch,
            max_steps=given.steps,
            bf16=True,
            gradient_checkpointing=checkpointing,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_num_workers=0,
        )
        made = transformers.Trainer(
            model=model, args=arguments, train_dataset=texts, data_collator=collate, callbacks=[Steps()]
        )
        made.remove_callback(transformers.PrinterCallback)
        made.train()
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    return [torch.tensor(losses), model.model.norm.weight]


def train_lengths(given: Given) -> list[Any]:
    return trainer(given, 8, checkpointing=False)


def train_checkpointed(given: Given) -> list[Any]:
    return trainer(given, 24, checkpointing=True)


def detection(given: Given) -> None:
    torch, models = given.torch, importlib.import_module("torchvision.models.detection")
    sides = (480, 560, 640, 720, 800) if not given.small else (64, 96)
    made = models.fasterrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=91, min_size=sides, max_size=given.size(1333, 128)
    )
    model = made.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    pixels = torch.rand(3, 1333, 1333)
    for _ in range(given.steps):
        images, targets = [], []
        for _ in range(given.size(4, 1)):
            height, width = given.between(480, 1333), given.between(480, 1333)
            images.append(pixels[:, :height, :width].contiguous())
            count = given.rng.randint(1, 20)
            corner = torch.rand(count, 2) * torch.tensor([width / 2, height / 2])
            boxes = torch.cat([corner, corner + 4 + torch.rand(count, 2) * torch.tensor([width / 3, height / 3])], 1)
            targets.append({"boxes": boxes, "labels": torch.randint(1, 91, (count,))})
        given.clock.begin()
        on_device = [{key: value.cuda() for key, value in target.items()} for target in targets]
        loss = sum(model([image.cuda() for image in images], on_device).values())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        given.clock.end(loss)


def segmentation(given: Given) -> None:
    torch, models = given.torch, importlib.import_module("torchvision.models.segmentation")
    made = models.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21)
    model = made.cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    pixels = torch.rand(16, 3, 769, 769)
    for _ in range(given.steps):
        height, width, batch = (
            given.between(321, 769),
            given.between(321, 769),
            given.rng.randint(4, 16) if not given.small else 2,
        )
        images = pixels[:batch, :, :height, :width]
        labels = torch.randint(21, (batch, height, width))
        given.clock.begin()
        with torch.autocast("cuda", torch.bfloat16):
            out = model(images.cuda().to(memory_format=torch.channels_last))["out"]
            loss = torch.nn.functional.cross_entropy(out, labels.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        given.clock.end(loss)
        del out, loss


def resolutions(given: Given) -> None:
    """ConvNeXt at a resolution drawn anew; every sixth step evaluates larger batches, without gradients."""
    torch, models = given.torch, importlib.import_module("torchvision.models")
    model = models.convnext_tiny(weights=None).cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    pixels = torch.rand(given.size(256, 4), 3, 384, 384)
    for number in range(given.steps):
        side = 32 * given.rng.randint(4, 12) if not given.small else 32 * given.rng.randint(1, 2)
        evaluates = number % 6 == 5
        batch = given.rng.randint(128, 256) if evaluates else given.rng.randint(24, 96)
        images = pixels[: batch if not given.small else 2, :, :side, :side]
        labels = torch.randint(1000, (len(images),))
        given.clock.begin()
        model.train(not evaluates)
        with torch.autocast("cuda", torch.bfloat16), torch.set_grad_enabled(not evaluates):
            out = model(images.cuda().to(memory_format=torch.channels_last))
            loss = torch.nn.functional.cross_entropy(out, labels.cuda())
        if not evaluates:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        given.clock.end(loss)
        del out, loss


def graphs(given: Given) -> None:
    torch, nn = given.torch, importlib.import_module("torch_geometric.nn")
    data = importlib.import_module("torch_geometric.data")
    width = given.size(128, 16)

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.SAGEConv(width, 2 * width)
            self.second = nn.GATConv(2 * width, width, heads=4)
            self.third = nn.SAGEConv(4 * width, 2 * width)
            self.head = torch.nn.Linear(2 * width, 10)

        def forward(self, batch: Any) -> Any:
            states = self.first(batch.x, batch.edge_index).relu()
            states = self.second(states, batch.edge_index).relu()
            states = self.third(states, batch.edge_index).relu()
            return self.head(nn.global_mean_pool(states, batch.batch, batch.num_graphs))

    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    features = torch.randn(20_000, width)

    def drawn() -> Any:
        nodes = given.between(1_000, 20_000)
        edges = int(nodes * given.rng.uniform(4, 16))
        return data.Data(
            x=features[:nodes], edge_index=torch.randint(nodes, (2, edges)), y=torch.randint(10, (1,)), num_nodes=nodes
        )

    for _ in range(given.steps):
        batch = data.Batch.from_data_list([drawn() for _ in range(given.rng.randint(4, 24))])
        given.clock.begin()
        batch = batch.to("cuda")
        loss = torch.nn.functional.cross_entropy(model(batch), batch.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        given.clock.end(loss)
        del batch, loss


def speech(given: Given) -> None:
    torch, transformers = given.torch, importlib.import_module("transformers")
    sizes = {} if not given.small else {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.Wav2Vec2Config(
        **sizes,
        num_hidden_layers=given.size(12, 2),
        ctc_loss_reduction="mean",
        ctc_zero_infinity=True,
        mask_time_prob=0.0,  # drawn by NumPy on the host otherwise, at lengths that it may refuse
        layerdrop=0.0,
    )
    model = built(given, config, kind="AutoModelForCTC").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    waves = torch.randn(16, 16_000 * 20)
    for _ in range(given.steps):
        batch = given.rng.randint(4, 16) if not given.small else 2
        lengths = [int(given.log_normal(16_000 * 6, 0.5, 16_000 * 20)) for _ in range(batch)]
        if given.small:
            lengths = [given.rng.randint(4_000, 8_000) for _ in range(batch)]
        longest = max(lengths)
        mask = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
        labels = torch.randint(1, 32, (batch, max(2, min(lengths) // 1_600)))
        given.clock.begin()
        with torch.autocast("cuda", torch.bfloat16):
            said = model(waves[:batch, :longest].cuda(), attention_mask=mask.long().cuda(), labels=labels.cuda())
        said.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        given.clock.end(said.loss)
        del said


def embedding(given: Given) -> None:
    """sentence-transformers encodes as many texts as come at once, of any length."""
    transformers, sentences = (importlib.import_module(name) for name in ("transformers", "sentence_transformers"))
    words = [f"w{number}" for number in range(2000)]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder, "vocab.txt")
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
        transformers.BertTokenizerFast(str(vocabulary), model_max_length=512).save_pretrained(folder)
        large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        little = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        config = transformers.BertConfig(**(little if given.small else large), vocab_size=len(words) + 5)
        transformers.BertModel(config).save_pretrained(folder)
        model = sentences.SentenceTransformer(folder, device="cuda")
    for _ in range(given.steps):
        longest = given.between(16, 500)
        count = given.between(16, 256)
        texts = [" ".join(given.rng.choices(words, k=given.rng.randint(2, longest))) for _ in range(count)]
        given.clock.begin()
        vectors = model.encode(texts, batch_size=given.rng.choice((16, 32, 64, 128)), convert_to_tensor=True)
        given.clock.end(vectors.float().mean())


def moe(given: Given) -> None:
    """Each expert's product is as tall as its tokens are many, which the router says anew in each layer."""
    torch, transformers = given.torch, importlib.import_module("transformers")
    config = transformers.Qwen3MoeConfig(
        hidden_size=given.size(1024, 64),
        intermediate_size=given.size(2816, 128),
        moe_intermediate_size=given.size(768, 32),
        num_hidden_layers=given.size(6, 2),
        num_attention_heads=given.size(16, 4),
        num_key_value_heads=given.size(4, 2),
        head_dim=given.size(64, 16),
        num_experts=given.size(16, 4),
        num_experts_per_tok=2,
        vocab_size=given.size(32000, 512),
        use_cache=False,
    )
    config._experts_implementation = "eager"
    model = built(given, config, "bfloat16").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(given.steps):
        lengths = [given.log_normal(700, 0.5, 2048) for _ in range(given.rng.randint(4, 12) if not given.small else 2)]
        tokens, mask, labels = padded(given, lengths, config.vocab_size)
        given.clock.begin()
        loss = model(input_ids=tokens.cuda(), attention_mask=mask.cuda(), labels=labels.cuda()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        given.clock.end(loss)
        del loss


def rollouts(given: Given) -> None:
    """As training by reinforcement does: a group of answers is generated, then learned from."""
    torch = given.torch
    config = llama(given, **LLAMA_240M)
    model = built(given, config, "bfloat16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(given.steps):
        batch, length = given.between(16, 64), given.between(64, 768)
        new = given.rng.randint(16, 64) if not given.small else 3
        tokens, mask = prompts(given, batch, length, config.vocab_size)
        given.clock.begin()
        tokens, mask = tokens.cuda(), mask.cuda()
        model.eval()
        with torch.no_grad():
            text = answers(model, tokens, mask, new)
        model.train()
        mask = torch.cat([mask, mask.new_ones(batch, text.shape[1] - length)], 1)
        logits = model(input_ids=text, attention_mask=mask, use_cache=False).logits[:, length - 1 : -1]
        chosen = torch.log_softmax(logits.float(), -1).gather(-1, text[:, length:, None]).squeeze(-1)
        reward = torch.linspace(-1, 1, batch, device="cuda")[:, None]
        loss = -(chosen * reward).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        given.clock.end(loss)
        del text, logits, chosen, loss


def compiled(given: Given) -> None:
    torch = given.torch
    config = llama(given, **{**LLAMA_240M, "num_hidden_layers": 4, "use_cache": False})
    model = built(given, config, "bfloat16").train()
    forward = torch.compile(model, dynamic=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(given.steps):
        batch, length = given.between(8, 32), given.between(128, 1024)
        tokens = torch.randint(1, config.vocab_size, (batch, length))
        given.clock.begin()
        tokens = tokens.cuda()
        loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        given.clock.end(loss)
        del loss


TRANSFORMERS = "transformers.models"
WORKLOADS = {
    "train_lengths": Workload(
        train_lengths, (*LANGUAGE, "transformers.trainer"), 32, "transformers' Trainer, a 360M Llama, varied lengths"
    ),
    "detection": Workload(
        detection, ("torchvision.models.detection",), 20, "torchvision Faster R-CNN, images of any size", exact=False
    ),
    "generate": Workload(generate, LANGUAGE, 8, "transformers' generate(), a 1.2B Llama, batches of any shape"),
    "graphs": Workload(
        graphs,
        ("torch_geometric.nn", "torch_geometric.data"),
        40,
        "PyTorch Geometric, GAT and SAGE, graphs of any size",
        exact=False,
        imports_use_cuda=True,
    ),
    "moe": Workload(moe, (f"{TRANSFORMERS}.qwen3_moe.modeling_qwen3_moe",), 24, "transformers Qwen3-MoE, training"),
    "speech": Workload(
        speech,
        (f"{TRANSFORMERS}.wav2vec2.modeling_wav2vec2",),
        24,
        "transformers Wav2Vec 2.0, training, audio of varied lengths",
        exact=False,
    ),
    "segmentation": Workload(
        segmentation,
        ("torchvision.models.segmentation",),
        24,
        "torchvision DeepLabV3, training, crops of any size",
        exact=False,
    ),
    "rollouts": Workload(rollouts, LANGUAGE, 8, "transformers, generate and train in turns, a 240M Llama"),
    "resolutions": Workload(
        resolutions,
        ("torchvision.models",),
        36,
        "torchvision ConvNeXt, training and evaluation, several resolutions",
        exact=False,
    ),
    "embedding": Workload(
        embedding,
        ("sentence_transformers", f"{TRANSFORMERS}.bert.modeling_bert"),
        24,
        "sentence-transformers, a BERT large, texts of any length",
    ),
    "train_checkpointed": Workload(
        train_checkpointed,
        (*LANGUAGE, "transformers.trainer"),
        16,
        "transformers' Trainer, the same with gradient checkpointing",
    ),
    "compiled": Workload(compiled, (*LANGUAGE, "torch._dynamo"), 24, "torch.compile, dynamic shapes, a 4-layer Llama"),
}
