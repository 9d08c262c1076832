// People get these wrong: each is one line on stderr that says what, nothing on stdout, and exit code 1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/command_folder.h"

namespace spillway {
namespace {

using test::CommandResult;
using test::run_command;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Wrong {
  std::vector<std::string> words;
  std::string said;
};

// RUN stands for a run file that is there, TRACE for a trace.
const std::vector<Wrong> kWrong = {
    // Commands.
    {{}, "which command?"},
    {{"repaly"}, "no command 'repaly'; did you mean 'replay'?"},
    {{"estimat", "RUN"}, "did you mean 'estimate'?"},
    {{"dry-run", "--", "true"}, "did you mean 'dryrun'?"},
    {{"frobnicate-everything"}, "allowed: run, dryrun"},
    {{"version"}, "no command 'version'; did you mean '--version'?"},
    {{"train.py"}, "to run a program: spillway run -- python train.py"},
    {{"help", "reprot"}, "did you mean 'report'?"},
    {{"man", "tpo"}, "did you mean 'top'?"},
    {{"completion"}, "SHELL is missing: spillway completion"},
    {{"completion", "csh"}, "allowed: bash, zsh, fish"},
    {{"--versoin"}, "spillway has no option --versoin; did you mean '--version'?"},
    {{"--json", "replay", "TRACE"}, "spillway has no option --json"},
    // Options that are not there.
    {{"replay", "TRACE", "--capactiy", "1GiB"},
     "spillway replay has no option --capactiy; did you mean '--capacity'?"},
    {{"replay", "TRACE", "--capactiy=1GiB"}, "did you mean '--capacity'?"},
    {{"replay", "--jsn"}, "did you mean '--json'?"},
    {{"report", "TRACE", "--sweep", "x=1"}, "spillway report has no option --sweep; spillway estimate has"},
    {{"estimate", "RUN", "--gpu-memory", "80GiB"}, "--gpu"},
    {{"top", "-x"}, "spillway top has no option -x"},
    {{"doctor", "now"}, "'now' was not expected: spillway doctor [OPTIONS]"},
    {{"convert", "TRACE", "a.zst", "b.zst"}, "'b.zst' was not expected: spillway convert"},
    // Values that were forgotten, or are given twice.
    {{"replay", "TRACE", "--capacity"}, "--capacity needs a value: --capacity SIZE"},
    {{"report", "TRACE", "--html", "--json"}, "--html needs a value, and --json is an option"},
    {{"estimate", "RUN", "--gpu"}, "--gpu needs a value"},
    {{"estimate", "--gpu", "h100-80"}, "name one FILE"},
    {{"replay", "TRACE", "--repeat", "2", "--repeat", "3"}, "--repeat is given more than once"},
    {{"replay"}, "TRACE is missing: spillway replay [OPTIONS] TRACE..."},
    {{"diff", "TRACE"}, "AFTER is missing"},
    {{"dryrun", "--", "true"}, "how much memory has a device?"},
    {{"dryrun", "--gpu", "h100-80", "--out", "/no/such/folder/x", "--", "true"},
     "/no/such/folder/x: cannot be written"},
    {{"dryrun", "--gpu-memory", "1GiB", "--output", "/no/such/folder/x", "--", "true"},
     "/no/such/folder/x: cannot be written: No such file"},
    {{"dryrun", "--gpu-memory", "80GiB"}, "what is to be run?"},
    {{"dryrun", "--gpu-memroy", "80GiB", "--", "true"}, "did you mean '--gpu-memory'?"},
    {{"stand-ins", "/bin/ls"}, "'/bin/ls' is no Python"},
    {{"stand-ins", "/no/such/python3"}, "/no/such/python3 cannot be started: No such file or directory"},
    {{"run", "--preloda", "--", "true"}, "did you mean '--preload'?"},
    {{"run", "--quiet", "true", "--", "true"}, "'true' was not expected before the command to run"},
    {{"run"}, "what is to be run?"},
    // Files that cannot be written: said before what takes time is done.
    {{"doctor", "--output", "/no/such/folder/x"}, "/no/such/folder/x: cannot be written: No such file"},
    {{"doctor", "--output", "/proc/x", "--json"}, "/proc/x: "},
    {{"top", "--output", "/no/such/folder/x"}, "/no/such/folder/x: cannot be written: No such file"},
    {{"trace-model", "train:step", "--output", "/no/such/folder/x"}, "/no/such/folder/x: cannot be written"},
    {{"trace-model", "train:step", "--out", "/no/such/folder/x"}, "/no/such/folder/x: cannot be written"},
    {{"calibrate", "dump.json", "--run", "RUN", "--output", "/no/such/folder/x", "--catalog",
      "catalog.jsonl"},
     "/no/such/folder/x: cannot be written"},
    {{"trace-model", "train:step", "--output"}, "--output needs a value"},
    {{"run", "--", "/no/such/program"}, "/no/such/program cannot be started"},
    {{"report", "TRACE", "--html", "."}, "--html: .: cannot be written: it is a folder"},
    {{"report", "TRACE", "--perfetto", "/no/such/folder/x"}, "/no/such/folder/x: cannot be written"},
    {{"estimate", "RUN", "--html", "/no/such/folder/x"}, "/no/such/folder/x: cannot be written"},
    {{"replay", "TRACE", "--output", "/no/such/folder/x"}, "/no/such/folder/x: cannot be written"},
    {{"plot", "TRACE", "--output", "/no/such/folder/x.svg"}, "/no/such/folder/x.svg: cannot be written"},
    {{"completion", "bash", "--output", "/no/such/folder/x"}, "/no/such/folder/x: cannot be written"},
    {{"dryrun", "--gpu-memory", "1GiB", "--out", "/tmp", "--", "true"},
     "/tmp: cannot be written: it is a folder"},
    // Folders that are not there.
    {{"top", "--dir", "/nope"}, "--dir: /nope: there is no such folder"},
    {{"top", "--once", "--dir", "/proc/version"}, "--dir: /proc/version: is no folder"},
    {{"tiers", "--dir", "/nope"}, "--dir: /nope: there is no such folder"},
    // Values without a letter, as of a script's variable that is not set.
    {{"report", "TRACE", "--html", ""}, "--html needs a value, and '' is none"},
    {{"report", "TRACE", "--html="}, "--html needs a value"},
    {{"dryrun", "--gpu-memory", "1GiB", "--out", "", "--", "true"}, "--out needs a value, and '' is none"},
    {{"top", "--dir", ""}, "--dir"},
    {{"estimate", "RUN", "--gpu", ""}, "--gpu needs a value, and '' is none"},
    {{"report", ""}, "DUMP needs a value, and '' is none"},
    // Values that are none.
    {{"replay", "TRACE", "--capacity", "eighty"}, "--capacity eighty: allowed: min, unlimited, a size"},
    {{"replay", "TRACE", "--capacity", "h1000"}, "'h1000' is no size and no GPU; did you mean 'h100-80'?"},
    {{"replay", "TRACE", "--capacity", "1KB"}, "at least 2MiB, the page in which a device gives its memory"},
    {{"replay", "TRACE", "--capacity", "0.001%"}, "at least 2MiB"},
    {{"trace-model", "train:step", "--capacity", "1KB"}, "--capacity 1KB: allowed: at least 2MiB"},
    {{"replay", "TRACE", "--capacity", "200"}, "'200' is no size and no GPU; did you mean '200GiB'?"},
    // A share is like no GPU, however near the digits are ('110%' and 'a10').
    {{"replay", "/nope.pickle", "--capacity", "110%"}, "/nope.pickle"},
    {{"trace-model", "train:step", "--capacity", "110%"},
     "--capacity '110%' is no size; allowed: such as 80GiB"},
    {{"dryrun", "--gpu-memory", "110%", "--", "true"}, "--gpu-memory"},
    {{"plot", "TRACE", "--limit", "110%"}, "--limit"},
    {{"trace-model", "train:step", "--capacity", "h10-80"}, "did you mean 'h100-80'?"},
    {{"dryrun", "--gpu-memory", "h10-80", "--", "true"}, "did you mean 'h100-80'?"},
    {{"plot", "TRACE", "--limit", "h10-80"}, "did you mean 'h100-80'?"},
    {{"diff", "TRACE", "TRACE", "--max-peak", "a10-40"}, "did you mean 'a100-40'?"},
    {{"replay", "TRACE", "--repeat", "many"},
     "--repeat: 'many' is not allowed; allowed: whole numbers from 1"},
    {{"replay", "TRACE", "--repeat", "1.5"}, "'1.5' is not allowed"},
    {{"replay", "TRACE", "--allocator", "nativ"}, "did you mean 'native'?"},
    {{"dryrun", "--gpu-memory", "80", "--", "true"}, "did you mean '80GiB'?"},
    {{"dryrun", "--gpu-memory", "80GiB", "--devices", "17", "--", "true"}, "whole numbers from 1 to 16"},
    {{"dryrun", "--gpu-memory", "80GiB", "--values", "some", "--", "true"}, "allowed: small, all, none"},
    {{"report", "TRACE", "--fits", "big"}, "--fits: 'big' is not a size"},
    {{"diff", "TRACE", "TRACE", "--max-ratio", "-1"}, "--max-ratio: '-1' is not allowed"},
    {{"plot", "TRACE", "--output", "picture.jpg"}, "ends in .svg, .png or .json"},
    {{"plot", "TRACE", "--width", "1e9"}, "whole numbers from 400 to 10000"},
    {{"top", "--interval", "0"}, "--interval: '0' is not allowed; allowed: numbers from 0.1 to 3600"},
    {{"exporter", "--listen", "here"}, "--listen: 'here' is no address"},
    {{"tiers", "--bytes", "lots"}, "--bytes: 'lots' is not a size"},
    // These do not go together, or are keys of a run.
    {{"run", "--plain", "--preload", "--", "true"}, "does not go with"},
    {{"run", "--audit", "--", "true"}, "--audit goes with --preload"},
    {{"replay", "TRACE", "--compare", "--allocator", "native"}, "--allocator does not go with --compare"},
    {{"replay", "TRACE", "--compare", "--capacity", "80GiB"}, "--capacity does not go with --compare"},
    {{"report", "TRACE", "--no-redact"}, "--no-redact: goes with --html or --perfetto"},
    {{"diff", "TRACE", "TRACE", "--of", "live"}, "--of: goes with --max-peak or --max-ratio"},
    {{"top", "--once", "--interval", "2"}, "--interval does not go with --once"},
    {{"estimate", "RUN", "--solve", "batch", "--html", "x.html"}, "choose one of"},
    {{"estimate", "RUN", "--set", "train.mirco_batch=4"}, "did you mean 'train.micro_batch'?"},
    {{"estimate", "RUN", "--set", "micro_batch"}, "allowed: key=value"},
    {{"estimate", "RUN", "--gpu", "h10-80"}, "did you mean 'h100-80'?"},
    {{"estimate", "no-such-run.toml"}, "no-such-run.toml: cannot be read: No such file or directory"},
    {{"estimate", "nosuchmodel"}, "no model has that name; spillway estimate --models lists"},
    {{"estimate", "lama-3.1-8b"}, "did you mean 'llama-3.1-8b'?"},
    {{"report", "no-such-dump.json"}, "no-such-dump.json: No such file"},
    {{"diff", "none.json", "no.json"}, "none.json: No such file or directory; no.json: No such file"},
    {{"replay", "none.pickle", "--capacity", "h100"}, "none.pickle: No such file"},
};

class WrongInputsTest : public test::CommandFolder {};

TEST_F(WrongInputsTest, AreOneLineEach) {
  ASSERT_GE(kWrong.size(), 50u);
  for (Wrong wrong : kWrong) {
    std::string shown = "spillway";
    for (std::string& word : wrong.words) {
      shown += " " + word;
      if (word == "RUN") word = SPILLWAY_EXAMPLE_RUN;
      if (word == "TRACE") word = SPILLWAY_EXAMPLE_TRACE;
    }
    const CommandResult result = run_command(wrong.words);
    EXPECT_EQ(result.code, 1) << shown << ": " << result.err;
    EXPECT_EQ(result.error_lines(), 1) << shown << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr(wrong.said)) << shown;
    EXPECT_THAT(result.out, IsEmpty()) << shown;
  }
}

// For which GPU a name was taken is said beside an answer.
TEST_F(WrongInputsTest, ANameOfSeveralGpusIsANote) {
  const CommandResult result = run_command({"replay", SPILLWAY_EXAMPLE_TRACE, "--capacity", "h100"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "spillway: note: h100: taken for h100-80; there is also h100-94\n");
}

// This looks wrong and is not.
TEST_F(WrongInputsTest, OneValueAnOption) {
  const std::string run = SPILLWAY_EXAMPLE_RUN;
  const std::string trace = SPILLWAY_EXAMPLE_TRACE;
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"estimate", "--gpu", "h100-80", run},
                                             {"estimate", "--gpu", "h100-80,a100-80", run},
                                             {"estimate", "--set", "train.micro_batch=1", run},
                                             {"estimate", "--what-if", "recompute=full", run},
                                             {"estimate", "--sweep", "micro_batch=1,2", run},
                                             {"replay", "--capacity", "h100", trace},
                                             {"replay", "--capacity", "80GB", trace},
                                             {"replay", "--capacity", "80 gb", trace},
                                             {"diff", "--max-peak", "a100-40", trace, trace}}) {
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.code, 0) << words[1] << " " << words[2] << ": " << result.err;
  }
}

TEST_F(WrongInputsTest, HelpIsWhereItIsLookedFor) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"help"}, {"--help"}, {"-h"}, {"help", "dryrun"}, {"dryrun", "--help"}, {"dryrun", "-h"}}) {
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("Examples"));
    EXPECT_THAT(result.err, IsEmpty());
  }
  EXPECT_THAT(run_command({"-V"}).out, HasSubstr("spillway "));
  const std::string help = run_command({"help", "dryrun"}).out;
  EXPECT_THAT(help, HasSubstr("spillway dryrun [OPTIONS] -- COMMAND [ARGUMENT...]"));
  for (const char* jargon : {"INT", "TEXT", "REQUIRED", ":{", " in ["})
    EXPECT_THAT(help, ::testing::Not(HasSubstr(jargon)));
}

// Every command has two examples, and what is made of the tables names every command and option.
TEST_F(WrongInputsTest, CompletionAndPagesAreMadeOfTheSameTables) {
  const std::string help = run_command({"help", "estimate"}).out;
  const std::string page = run_command({"man", "estimate"}).out;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = run_command({"completion", shell}).out;
    // Of GPUs, whose names are values of --gpu, of --gpu-memory and of others, too.
    for (const char* word : {"estimate", "bench-tiers", "completion", "gpu-memory", "set-access-cost",
                             "run-ahead", "a100-40 h100-80"})
      EXPECT_THAT(script, HasSubstr(word)) << shell;
  }
  for (const char* option : {"--gpu", "--sweep", "--html", "Examples"}) EXPECT_THAT(help, HasSubstr(option));
  for (const char* option : {"\\-\\-gpu", "\\-\\-sweep", ".SH EXAMPLES", ".TH spillway\\-estimate 1"})
    EXPECT_THAT(page, HasSubstr(option));
  EXPECT_EQ(run_command({"man", "--output", path("man1")}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(path("man1/spillway.1")));
  EXPECT_TRUE(std::filesystem::exists(path("man1/spillway-bench-tiers.1")));
}

}  // namespace
}  // namespace spillway
