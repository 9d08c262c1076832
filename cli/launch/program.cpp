#include "cli/launch/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/launch/child.h"
#include "cli/own_folder.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

// The first of the folders that has the file.
Result<std::string> folder_with(const char* file, const std::vector<fs::path>& folders, const char* what,
                                const char* variable) {
  for (const fs::path& folder : folders) {
    std::error_code error;
    if (!folder.empty() && fs::exists(folder / file, error)) {
      return fs::weakly_canonical(folder, error).string();
    }
  }
  return Status::io(fmt::format("{} not found beside {}; install Spillway again, or set {}", what,
                                own_folder().string(), variable));
}

// The dynamic loader ends a path at these characters, and knows no way to quote them.
bool is_nameable_to_loader(const std::string& path) {
  return path.find_first_of(" \t\n:;") == std::string::npos;
}

fs::path named_folder(const char* variable) {
  const char* named = std::getenv(variable);
  return named == nullptr ? fs::path() : fs::path(named);
}

std::vector<char*> arguments_of(const std::vector<std::string>& program) {
  std::vector<char*> arguments;
  for (const std::string& word : program) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  return arguments;
}

// As one word of the shell.
std::string shell_word(const std::string& text) {
  std::string word = "'";
  for (const char letter : text) word += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return word + "'";
}

// As the shell finds it.
fs::path file_of(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;
  const char* folders = std::getenv("PATH");
  std::istringstream all(folders == nullptr ? "" : folders);
  for (std::string folder; std::getline(all, folder, ':');) {
    fs::path file = fs::path(folder) / program;
    std::error_code error;
    if (fs::is_regular_file(file, error)) return file;
  }
  return {};
}

// Returns the Python that a script names in its first line, as torchrun does: #!/usr/bin/python3,
// #!/usr/bin/env python3.
std::string python_of_script(const std::string& program) {
  std::ifstream file(file_of(program));
  if (file.get() != '#' || file.get() != '!') return {};
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (is_python(word)) return word;
  }
  return {};
}

// -E, -I and -S each keep Python from running what the environment asks for. One word may hold several
// letters, up to one that takes the rest of it, or the next word, as its value.
bool ignores_environment(const std::vector<std::string>& program) {
  if (!is_python(program.front())) return false;
  for (size_t i = 1; i < program.size(); ++i) {
    const std::string& word = program[i];
    if (word.size() < 2 || word[0] != '-' || word[1] == '-') return false;
    const size_t valued = word.find_first_of("cmWX");
    if (word.substr(0, valued).find_first_of("EIS") != std::string::npos) return true;
    if (valued == std::string::npos) continue;
    if (word[valued] == 'c' || word[valued] == 'm') return false;
    if (valued + 1 == word.size()) ++i;
  }
  return false;
}

}  // namespace

bool is_python(const std::string& word) {
  const std::string name = fs::path(word).filename().string();
  return name.rfind("python", 0) == 0 && name.find_first_not_of("0123456789.td", 6) == std::string::npos;
}

Result<std::string> preload_library() {
  constexpr const char* kLibrary = "libspillway_preload.so";
  const fs::path lib = own_folder().parent_path() / "lib";
  std::vector<fs::path> folders{named_folder("SPILLWAY_PRELOAD"), lib};
  std::error_code error;
  // Debian and its kin install there: lib/x86_64-linux-gnu.
  for (const auto& entry : fs::directory_iterator(lib, error)) {
    if (entry.is_directory(error)) folders.push_back(entry.path());
  }
  Result<std::string> folder =
      folder_with(kLibrary, folders, "libspillway_preload.so is", "SPILLWAY_PRELOAD");
  if (!folder.ok()) return folder;
  if (!is_nameable_to_loader(folder.value())) {
    return Status::invalid_argument(fmt::format(
        "{}/{} cannot be preloaded: LD_PRELOAD takes a space or a colon in a path for its end; install "
        "Spillway in a folder without one, or set SPILLWAY_PRELOAD to one with a copy",
        folder.value(), kLibrary));
  }
  return folder.value() + "/" + kLibrary;
}

Result<std::string> auditor_beside(const std::string& preload_library) {
  constexpr const char* kAuditor = "libspillway_audit.so";
  const std::string folder = fs::path(preload_library).parent_path().string();
  Result<std::string> found = folder_with(kAuditor, {folder}, "libspillway_audit.so is", "SPILLWAY_PRELOAD");
  if (!found.ok()) return found;
  return found.value() + "/" + kAuditor;
}

Result<std::string> package_folder() {
  const fs::path own = own_folder();
  return folder_with("_bootstrap/sitecustomize.py",
                     {named_folder("SPILLWAY_PACKAGE"), own.parent_path(), own / "../../../python/spillway"},
                     "the Python package is", "SPILLWAY_PACKAGE");
}

std::string python_of(const std::vector<std::string>& program) {
  if (!program.empty()) {
    if (is_python(program.front())) return program.front();
    if (std::string python = python_of_script(program.front()); !python.empty()) return python;
  }
  const char* named = std::getenv("SPILLWAY_PYTHON");
  return named == nullptr ? "python3" : named;
}

Result<std::string> simulated_libraries_folder(const std::string& python) {
  Result<std::string> built =
      folder_with("libcuda.so.1", {named_folder("SPILLWAY_SIM_LIBRARIES"), own_folder() / "../lib/sim"},
                  "the simulated CUDA libraries are", "SPILLWAY_SIM_LIBRARIES");
  if (!built.ok()) return built;
  std::error_code missing;
  if (const fs::path file = file_of(python); file.empty() || !fs::exists(file, missing))
    return not_started({python}, ENOENT);
  Result<std::string> package = package_folder();
  if (!package.ok()) return package;
  // The Python's own packages come first: its PyTorch is asked for, not that beside Spillway.
  constexpr const char* kCode =
      "import sys; sys.path.append(sys.argv[1]); from spillway._stand_ins import main; main(sys.argv[2])";
  const std::string packages = fs::path(package.value()).parent_path().string();
  const std::string command = fmt::format("{} -c {} {} {}", shell_word(python), shell_word(kCode),
                                          shell_word(packages), shell_word(built.value()));
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return not_started({python}, errno);
  std::string said;
  for (int next = std::fgetc(pipe); next != EOF; next = std::fgetc(pipe)) said += static_cast<char>(next);
  const bool made = ::pclose(pipe) == 0;
  while (!said.empty() && said.back() == '\n') said.pop_back();
  const std::string last = said.substr(said.rfind('\n') + 1);
  if (made && !last.empty()) {
    if (is_nameable_to_loader(last)) return last;
    return Status::io(
        fmt::format("{}: LD_PRELOAD takes a space or a colon in a path for its end; set SPILLWAY_CACHE to a "
                    "folder without one",
                    last));
  }
  return Status::io(last.empty() ? fmt::format("{} cannot tell which PyTorch it has, as said above", python)
                                 : last);
}

void put_first(const char* variable, const std::string& entry) {
  const char* others = std::getenv(variable);
  const std::string all = others == nullptr || *others == '\0' ? entry : entry + ":" + others;
  ::setenv(variable, all.c_str(), 1);
}

Status start_with_package(const std::vector<std::string>& program) {
  if (ignores_environment(program)) {
    return Status::invalid_argument(fmt::format(
        "{} is told to ignore its environment (-E, -I or -S), where Spillway would begin: leave that "
        "out, or call spillway.install() in the program",
        program.front()));
  }
  Result<std::string> package = package_folder();
  if (!package.ok()) return package.take_status();
  put_first("PYTHONPATH", package.value() + "/_bootstrap");
  return {};
}

Status import_package() {
  Result<std::string> package = package_folder();
  if (!package.ok()) return package.take_status();
  put_first("PYTHONPATH", fs::path(package.value()).parent_path().string());
  return {};
}

Result<std::string> preload_simulation(const std::string& python) {
  Result<std::string> folder = simulated_libraries_folder(python);
  if (!folder.ok()) return folder;
  std::vector<std::string> libraries;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.value(), error)) {
    if (entry.path().filename().string().find(".so.") != std::string::npos)
      libraries.push_back(entry.path().string());
  }
  if (error) return Status::io(fmt::format("{}: {}", folder.value(), error.message()));
  std::sort(libraries.begin(), libraries.end());
  std::string all;
  for (const std::string& library : libraries) all += (all.empty() ? "" : ":") + library;
  ::setenv("LD_PRELOAD", all.c_str(), 1);
  ::setenv("SPILLWAY_LIBCUDA", (folder.value() + "/libcuda.so.1").c_str(), 1);
  ::setenv("TRITON_LIBCUDA_PATH", folder.value().c_str(), 1);  // it links what it compiles with that
  return folder;
}

Status not_started(const std::vector<std::string>& program, int error) {
  return Status::io(fmt::format("{} cannot be started: {}", program.front(), std::strerror(error)));
}

int become_program(const std::vector<std::string>& program) {
  std::signal(SIGPIPE, SIG_DFL);
  ::execvp(program.front().c_str(), arguments_of(program).data());
  return errno;
}

Status execute(const std::vector<std::string>& program) {
  return not_started(program, become_program(program));
}

Result<int> execute_and_wait(const std::vector<std::string>& program) {
  Result<Ended> ended = run_and_wait(program);
  if (!ended.ok()) return ended.take_status();
  return ended->exit_code();
}

}  // namespace spillway
