// `spillway estimate` as a user runs it: answers, exit codes, and one line for every kind of bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/command_folder.h"
#include "tests/support/small_gpt.h"

namespace spillway {
namespace {

using nlohmann::json;
using test::CommandResult;
using test::kLlama8b;
using test::run_command;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class EstimateCommandTest : public test::CommandFolder {
 protected:
  void expect_one_line_error(const std::string& name, const std::string& text,
                             const std::string& part) const {
    expect_complaint({"estimate", write(name, text)}, part);
  }
};

TEST_F(EstimateCommandTest, SaysWhatFitsWhere) {
  const std::string path = write("config.json", kLlama8b);
  EXPECT_EQ(run_command({"estimate", path, "--gpu", "200GiB"}).code, 0);
  const CommandResult result = run_command({"estimate", path, "--gpu", "200GiB,a100-40"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.out, HasSubstr("8,030,261,248 parameters"));
  EXPECT_THAT(result.out, HasSubstr("FITS   on 200GiB"));
  EXPECT_THAT(result.out, HasSubstr("NO     on a100-40"));
  EXPECT_THAT(result.out, HasSubstr("train.optimizer = adamw8bit"));
}

TEST_F(EstimateCommandTest, JsonSumsToItsTotals) {
  const CommandResult result = run_command({"estimate", write("config.json", kLlama8b), "--json"});
  EXPECT_EQ(result.code, 2);
  const json answer = json::parse(result.out);
  EXPECT_EQ(answer["schema_version"], 1);
  EXPECT_EQ(answer["parameters"], 8030261248);
  EXPECT_EQ(answer["verdict"], "NO");
  int64_t always = 0, peak = 0;
  for (const json& bucket : answer["buckets"]) {
    (bucket["when"] == "always" ? always : peak) += bucket["bytes"].get<int64_t>();
  }
  EXPECT_NEAR(static_cast<double>(always), answer["steady_bytes"].get<double>(), 8);
  EXPECT_NEAR(static_cast<double>(always + peak), answer["peak_bytes"].get<double>(), 16);
  EXPECT_LT(answer["interval"]["lowest_bytes"], answer["peak_bytes"]);
  EXPECT_GT(answer["interval"]["highest_bytes"], answer["peak_bytes"]);
  EXPECT_FALSE(answer["mitigations"].empty());
}

// The same run on a device that has room for what tensors hold: PyTorch's allocator needs more of it.
TEST_F(EstimateCommandTest, TheVerdictCountsWhatTheAllocatorReserves) {
  const std::string path = write("config.json", kLlama8b);
  const auto ask = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"estimate", path, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return json::parse(run_command(words).out);
  };
  const json own = ask({}), native = ask({"--allocator", "pytorch"}),
             set = ask({"--set", "allocator.model=pytorch"});
  EXPECT_EQ(own["reserved"]["allocator"], "spillway");
  EXPECT_EQ(native["reserved"]["allocator"], "pytorch");
  EXPECT_EQ(native, set);
  EXPECT_EQ(own["peak_bytes"], native["peak_bytes"]);
  EXPECT_GT(native["needed_bytes"].get<double>(), 1.01 * own["needed_bytes"].get<double>());
  EXPECT_EQ(native["reserved"]["expected_bytes"],
            native["reserved"]["by_allocator"]["pytorch"]["expected_bytes"]);
  EXPECT_LE(native["reserved"]["lowest_bytes"], native["reserved"]["expected_bytes"]);
  const int64_t middle = (own["needed_bytes"].get<int64_t>() + native["needed_bytes"].get<int64_t>()) / 2;
  const std::string gpu = std::to_string(middle >> 20) + "MiB";
  EXPECT_EQ(run_command({"estimate", path, "--gpu", gpu}).code, 0);
  const CommandResult refused = run_command({"estimate", path, "--gpu", gpu, "--allocator", "pytorch"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.out, HasSubstr("reserved for the peak: pytorch"));
  expect_complaint({"estimate", path, "--allocator", "jemalloc"}, "jemalloc");
  expect_complaint({"estimate", path, "--serve", "--allocator", "pytorch"},
                   "--allocator does not go with --serve");
}

TEST_F(EstimateCommandTest, ComparisonsSumToWhatIsNeeded) {
  const std::string path = write("config.json", kLlama8b);
  const CommandResult result =
      run_command({"estimate", path, "--gpu", "400GiB", "--what-if", "allocator.model=pytorch"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("reserved above it"));
}

TEST_F(EstimateCommandTest, ReadsRecipes) {
  const std::string recipe = write("recipe.yaml",
                                   "base_model: llama-3.2-1b\nsequence_len: 1024\nmicro_batch_size: 1\n"
                                   "optimizer: adamw_torch_fused\nbf16: true\n");
  const CommandResult result = run_command({"estimate", recipe, "--gpu", "80GiB", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["parameters"], 1235814400);
  // Another model than the recipe's, and accelerate's file, which has none.
  const json other = json::parse(
      run_command({"estimate", recipe, "--gpu", "80GiB", "--json", "--model", "llama-3.2-3b"}).out);
  EXPECT_EQ(other["parameters"], 3212749824);
  const std::string accelerate = write("accelerate.yaml", "distributed_type: FSDP\nnum_processes: 2\n");
  EXPECT_EQ(run_command({"estimate", accelerate, "--gpu", "80GiB", "--model", "llama-3.2-1b"}).code, 0);
  expect_one_line_error("accelerate.yaml", "distributed_type: FSDP\n", "it names no model");
  expect_one_line_error("unknown.yaml", "a: 1\n", "no recipe that is known; allowed:");
  expect_one_line_error("broken.yaml", "a: [1\n", "not YAML");
  expect_one_line_error("model_index.json",
                        R"({"_class_name": "FluxPipeline", "_diffusers_version": "0.30.0",
                            "vae": ["diffusers", "AutoencoderKL"]})",
                        "vae/config.json: cannot be read");
  expect_one_line_error("config.json", R"({"_class_name": "VQModel", "_diffusers_version": "0.30.0"})",
                        "VQModel of diffusers is not modelled; allowed: pipelines of UNet2DConditionModel");
  expect_one_line_error("arguments.json", R"({"output_dir": "out", "learning_rate": 1e-5})",
                        "it names no model");
}

TEST_F(EstimateCommandTest, AnswersForModelsThatMakeImages) {
  const auto rows = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"estimate", "sdxl", "--serve", "--json", "--gpu", "80GiB"};
    all.insert(all.end(), words.begin(), words.end());
    const CommandResult result = run_command(all);
    EXPECT_EQ(result.code, 0) << result.err;
    std::vector<int64_t> peaks;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) peaks.push_back(json::parse(line)["peak_bytes"]);
    return peaks;
  };
  std::vector<int64_t> peaks = rows({"--sweep", "images=1,4"});
  ASSERT_EQ(peaks.size(), 2u);
  EXPECT_GT(peaks[1], peaks[0]);
  peaks = rows({"--sweep", "resolution=512,1024"});
  ASSERT_EQ(peaks.size(), 2u);
  EXPECT_GT(peaks[1], peaks[0]);
  const std::string file = write("images.toml", "[model]\nconfig = 'sdxl'\n[serve]\nimages = 2\n");
  const json served = json::parse(
      run_command({"estimate", file, "--set", "resolution=512", "--set", "offload=model", "--json"}).out);
  EXPECT_EQ(served["phases"].back()["name"], "between images");
  EXPECT_THAT(run_command({"estimate", "sdxl", "--serve", "--solve", "batch", "--gpu", "24GiB"}).out,
              HasSubstr("serve.images = "));
  EXPECT_THAT(run_command({"estimate", "sdxl", "--solve", "recompute", "--gpu", "42GiB"}).out,
              HasSubstr("train.recompute = full fits, train.recompute = none does not"));
  const auto complaint = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"estimate", "sdxl"});
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.code, 1);
    EXPECT_EQ(result.error_lines(), 1) << result.err;
    return result.err;
  };
  EXPECT_THAT(complaint({"--plan"}), HasSubstr("--plan: not modelled for a model of images"));
  EXPECT_THAT(complaint({"--solve", "seq"}), HasSubstr("allowed: batch, recompute"));
  EXPECT_THAT(complaint({"--serve", "--adapter", "lora"}), HasSubstr("adapter.kind: not modelled"));
  EXPECT_THAT(complaint({"--serve", "--set", "max_model_len=1"}), HasSubstr("docs/estimate-images.md"));
  EXPECT_THAT(complaint({"--quant", "nf4"}), HasSubstr("model.weights: 'nf4' is not modelled"));
}

TEST_F(EstimateCommandTest, SetSpeaksOverTheFile) {
  const std::string path = write("config.json", kLlama8b);
  const auto peak = [&](const std::string& set) {
    return json::parse(run_command({"estimate", path, "--json", "--set", set}).out)["peak_bytes"]
        .get<int64_t>();
  };
  EXPECT_GT(peak("train.micro_batch=4"), peak("train.micro_batch=1"));
  EXPECT_THAT(run_command({"estimate", path, "--set", "train.micro_batch"}).err, HasSubstr("key=value"));
}

TEST_F(EstimateCommandTest, ReadsARunFileWithItsModelBesideIt) {
  write("config.json", kLlama8b);
  const std::string path =
      write("run.toml", "[model]\nconfig = 'config.json'\n[parallel]\ngpus = 64\nzero = 3\n");
  const CommandResult result = run_command({"estimate", path});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("gathered weights"));
}

// The model beside a run file that is named without a folder is in this folder, not in the root.
TEST_F(EstimateCommandTest, ReadsARunFileOfThisFolder) {
  write("config.json", kLlama8b);
  write("run.toml", "[model]\nconfig = 'config.json'\n[parallel]\ngpus = 64\nzero = 3\n");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(std::filesystem::path(path("run.toml")).parent_path());
  const CommandResult result = run_command({"estimate", "run.toml"});
  std::filesystem::current_path(before);
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST_F(EstimateCommandTest, ReadsDeepSpeedBesideAModel) {
  const std::string model = write("config.json", kLlama8b);
  const std::string path =
      write("ds.json", R"({"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}})");
  EXPECT_THAT(run_command({"estimate", path}).err, HasSubstr("--model"));
  EXPECT_EQ(run_command({"estimate", path, "--model", model, "--gpus", "64"}).code, 0);
}

// As people type them: another trainer's names, keys without their section, a folder, a card's name.
TEST_F(EstimateCommandTest, TakesTheWordsThatPeopleType) {
  const std::string path = write("config.json", kLlama8b);
  const std::string folder = std::filesystem::path(path).parent_path();
  const auto peak = [&](const std::string& file, const std::vector<std::string>& sets) {
    std::vector<std::string> words = {"estimate", file, "--json", "--gpu", "a10g"};
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.code, 2) << result.err;
    return json::parse(result.out)["peak_bytes"].get<int64_t>();
  };
  EXPECT_EQ(peak(path, {"per_device_train_batch_size=4", "seq_len=512", "gradient_checkpointing=True",
                        "optim=adamw_8bit"}),
            peak(folder, {"train.micro_batch=4", "train.sequence=512", "train.recompute=full",
                          "train.optimizer=adamw8bit"}));
  EXPECT_EQ(peak(path, {"num_hidden_layers=16"}), peak(path, {"model.num_hidden_layers=16"}));
  expect_complaint({"estimate", path, "--set", "microbatch=4"}, "microbatch: not known");
  expect_complaint({"estimate", path, "--set", "microbatch=4"}, "did you mean 'micro_batch'?");
  expect_complaint({"estimate", path, "--gpu", "rtx4091"}, "did you mean 'rtx4090'?");
  write("run.toml", "batch_size = 4\n[model]\nconfig = '.'\n[train]\nseq_len = 512\n");
  EXPECT_EQ(peak(this->path("run.toml"), {}), peak(path, {"micro_batch=4", "sequence=512"}));
}

// Without a file: a model by its name, with an adapter on few bits.
TEST_F(EstimateCommandTest, KnowsModelsByTheirNames) {
  const auto answer = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"estimate", "meta-llama/Llama-3.1-8B-Instruct", "--json", "--gpu",
                                      "4090"};
    words.insert(words.end(), more.begin(), more.end());
    return json::parse(run_command(words).out);
  };
  EXPECT_EQ(answer({})["verdict"], "NO");
  const json adapted = answer({"--adapter", "lora", "--quant", "nf4"});
  EXPECT_LT(adapted["peak_bytes"].get<int64_t>(), answer({})["peak_bytes"].get<int64_t>() / 2);
  EXPECT_EQ(adapted["peak_bytes"], answer({"--adapter", "qlora"})["peak_bytes"]);
  const std::string run = write("run.toml", "[model]\nconfig = 'llama-3.1-8b'\n");
  EXPECT_EQ(json::parse(run_command({"estimate", run, "--json"}).out)["peak_bytes"],
            answer({})["peak_bytes"]);
  EXPECT_THAT(run_command({"estimate", "--models"}).out, HasSubstr("qwen3-30b-a3b"));
  expect_complaint({"estimate", "lama-3.1-8b"}, "did you mean 'llama-3.1-8b'?");
  expect_complaint({"estimate", "llama-3.1-8b", "--quant", "nf5"}, "weights: 'nf5' is not known");
  expect_complaint({"estimate", "llama-3.1-8b", "--gpu-kind", "h100"}, "--gpu-kind goes with");
}

// The lines that vLLM prints, of a start whose log is public: 1952 blocks of 16 tokens.
TEST_F(EstimateCommandTest, ServesAModel) {
  const std::vector<std::string> start = {
      "estimate", "llama-3.1-8b",       "--serve", "--gpu", "3090", "--set", "kv_cache_memory=3.81GiB",
      "--set",    "max-model-len=20000"};
  const CommandResult text = run_command(start);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("Model loading took 14.99 GiB"));
  EXPECT_THAT(text.out, HasSubstr("Maximum concurrency for 20,000 tokens per request: 1.56x"));
  EXPECT_THAT(text.out, HasSubstr("KV Cache is allocated. #tokens: 31211"));
  const std::string run =
      write("run.toml", "[model]\nconfig = 'llama-3.1-8b'\n[serve]\nmax_model_len = 20000\nrequests = 3\n");
  const CommandResult file = run_command({"estimate", run, "--gpu", "24GiB", "--json"});
  EXPECT_EQ(file.code, 2) << file.err;
  EXPECT_EQ(json::parse(file.out)["gpus"][0]["verdict"], "NO");
  expect_complaint({"estimate", run, "--solve", "batch"}, "goes without --solve");
  expect_complaint({"estimate", "llama-3.1-8b", "--serve", "--adapter", "lora"}, "adapters are not served");
  expect_complaint({"estimate", "llama-3.1-8b", "--serve", "--gpus", "3"}, "--gpus 3: the server has 1");
  expect_complaint({"estimate", "llama-3.1-8b", "--serve", "--set", "serve.max_len=1"},
                   "serve.max_len: not known");
  expect_complaint({"estimate", "bert-base", "--serve"}, "generates no text");
  EXPECT_EQ(run_command({"estimate", "llama-3.1-70b", "--serve", "--gpu", "4090"}).code, 2);
}

// Warnings are beside the text, and in the JSON.
TEST_F(EstimateCommandTest, SaysWhatTheFiguresDoNotHold) {
  std::string config(kLlama8b);
  config.insert(1, R"("moe_num_experts": 64, )");
  const std::string path = write("config.json", config);
  const CommandResult text = run_command({"estimate", path, "--gpu", "a100"});
  EXPECT_THAT(text.err, HasSubstr("warning: model.moe_num_experts: not read"));
  EXPECT_THAT(text.err, HasSubstr("--gpu a100: taken for a100-80; there is also a100-40"));
  EXPECT_THAT(text.out, Not(HasSubstr("moe_num_experts")));
  const CommandResult answer = run_command({"estimate", path, "--json"});
  EXPECT_THAT(answer.err, IsEmpty());
  EXPECT_EQ(json::parse(answer.out)["warnings"].size(), 1u);
}

TEST_F(EstimateCommandTest, RefusesATypeThatIsNotModelledByItsName) {
  const std::string path = write("config.json", R"({"model_type": "whispers", "d_model": 512})");
  expect_complaint({"estimate", path}, "model_type 'whispers' is not modelled");
  expect_complaint({"estimate", path, "--as", "lama"}, "did you mean 'llama'?");
  const std::string sized =
      write("sized.json", R"({"model_type": "newcomer", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000})");
  const CommandResult result = run_command({"estimate", sized, "--as", "llama"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("model_type 'newcomer' is read as 'llama'"));
  EXPECT_THAT(run_command({"estimate", "--types"}).out, HasSubstr("\nllama\n"));
}

// The first pipeline stage holds the most microbatches: the last, which Megatron-LM logs, is not the one that
// peaks.
TEST_F(EstimateCommandTest, NamesTheStageThatPeaks) {
  const std::string path = write("arguments.txt",
                                 "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length "
                                 "4096 --max-position-embeddings 4096 "
                                 "--micro-batch-size 1 --global-batch-size 64 --bf16 "
                                 "--pipeline-model-parallel-size 4 --attention-backend flash");
  const CommandResult result = run_command({"estimate", path, "--json", "--gpus", "4", "--gpu-kind", "h100"});
  const json answer = json::parse(result.out);
  EXPECT_EQ(answer["peak_stage"], 0);
  EXPECT_EQ(answer["stages"].size(), 4u);
}

TEST_F(EstimateCommandTest, BadInputIsOneLine) {
  expect_one_line_error("config.json", R"({"model_type": "llama", "hidden_size": -4})",
                        "model.hidden_size: '-4' is not allowed");
  expect_one_line_error("config.json", "{", "not a JSON object");
  expect_one_line_error("config.json", R"({"model_type": "llama"})", "model.hidden_size: missing");
  expect_one_line_error("run.toml", "[model]\nconfig = 'none.json'\n", "none.json: cannot be read");
  expect_one_line_error("run.toml", "[train]\nmicro_batch = 1e999\n", "run.toml");
  expect_one_line_error("model_config.yaml", "a: [", "not YAML");
  expect_one_line_error("arguments.txt", "--num-layers 0", "missing");
  expect_one_line_error("empty.json", "", "empty.json: empty");
  expect_one_line_error("nan.json", "{\"model_type\": \"llama\",\n \"hidden_size\": NaN}",
                        "not a JSON object: line 2 at 'NaN}'");
  // Deeper than the stack of whoever walks it.
  const std::string deep(200000, '[');
  expect_one_line_error("deep.json", "{\"a\":" + deep + std::string(deep.size(), ']') + "}",
                        "nested deeper than 64 levels");
  expect_complaint({"estimate", "--jsonl",
                    write("deep.jsonl", "{\"args\":" + deep + std::string(deep.size(), ']') + "}\n")},
                   "deep.jsonl:1: nested deeper");
  expect_one_line_error("binary.json", std::string("\x00\xff\xfe", 3), "not a JSON object");
}

TEST_F(EstimateCommandTest, WrongUseIsOneLine) {
  const std::string empty = path("empty");
  std::filesystem::create_directory(empty);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"estimate"},
        {"estimate", "/no/such/file"},
        {"estimate", empty},
        {"estimate", write("c.json", kLlama8b), "--gpu", "banana"},
        {"estimate", write("c.json", kLlama8b), "--gpus", "0"},
        {"estimate", write("c.json", kLlama8b), "--jsonl", "x"},
        {"estimate", "--jsonl", write("none.jsonl", "\n")},
        {"estimate", "--jsonl", write("dated.jsonl", R"({"args": {}, "date": "yesterday"})")},
        {"estimate", write("c.json", kLlama8b), "--solve", ""},
        {"estimate", write("c.json", kLlama8b), "--accuracy"},
        {"estimate", write("c.json", kLlama8b), "--hardware", "h100"},
        {"estimate", write("c.json", kLlama8b), "--gpu-kind", "h100"},
        {"estimate", write("c.json", kLlama8b), "--model", path("c.json")},
        {"estimate", write("c.json", kLlama8b), "--set", "model.num_key_value_head=4"}}) {
    const CommandResult result = run_command(arguments);
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_EQ(result.error_lines(), 1) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
  }
}

TEST_F(EstimateCommandTest, AnswersRecordedRunsLineByLine) {
  const std::string run =
      R"({"args": {"num-layers": 12, "hidden-size": 512, "num-attention-heads": 8, "seq-length": 1024,
          "max-position-embeddings": 1024, "micro-batch-size": 4, "global-batch-size": 32, "bf16": true,
          "attention-backend": "unfused"}, "gpu": "h100"})";
  std::string one_line = run;
  std::erase(one_line, '\n');
  const std::string refused = R"({"args": {"fp4-format": "e2m1"}})";
  const CommandResult result =
      run_command({"estimate", "--jsonl", write("runs.jsonl", one_line + "\n" + refused + "\n")});
  EXPECT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  std::string first, second;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_GT(json::parse(first)["peak_bytes"].get<int64_t>(),
            json::parse(first)["steady_bytes"].get<int64_t>());
  EXPECT_THAT(json::parse(second)["refused"].get<std::string>(), HasSubstr("fp4-format"));
  expect_one_line_error("none.json", "[]", "not a JSON object");
  const CommandResult broken =
      run_command({"estimate", "--jsonl", write("broken.jsonl", one_line + "\n{\n")});
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.err, HasSubstr("broken.jsonl:2: not a JSON object"));
  EXPECT_THAT(broken.out, IsEmpty());
}

// 2 x 100 x 150 / 250 = 120 is the least wrong for 100 and 150, by a fifth; the third run is of another day.
TEST_F(EstimateCommandTest, AccuracySaysWhatNoEstimateCanMeet) {
  const auto run = [](const char* date, int64_t steady) {
    return json{{"case", "gpt/twice"},    {"args", estimator::test::small_gpt_arguments()},
                {"gpu", "h100"},          {"date", date},
                {"steady_bytes", steady}, {"peak_bytes", 4000000000}}
               .dump() +
           "\n";
  };
  const std::string twice =
      write("twice.jsonl",
            run("2026-06-01", 1000000000) + run("2026-06-01", 1500000000) + run("2026-06-02", 9000000000));
  const CommandResult result = run_command({"estimate", "--accuracy", "--jsonl", twice});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("| 2 | gpt/twice | h100 | 2026-06-01 | 20.0 | 0.0 |"));
  const std::string once = write("once.jsonl", run("2026-06-01", 1000000000));
  EXPECT_THAT(run_command({"estimate", "--accuracy", "--jsonl", once}).out,
              Not(HasSubstr("What no estimate can meet")));
}

}  // namespace
}  // namespace spillway
