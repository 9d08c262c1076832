// Says what options may be given, in words that people read: in help, and where a value is wrong.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

// One of a few words. Help and completions know them.
CLI::Validator one_of(const std::vector<std::string>& words);
// Whole numbers; help says from where to where, and nothing of a bound that nobody meets.
CLI::Validator whole(int64_t least, int64_t most);
// Numbers with fractions.
CLI::Validator number(double least, double most);
// A size, "1.5GiB".
CLI::Validator size_of_memory();
// A size of a device: also what the GPUs of the estimator's table are called, which becomes their bytes. A
// name that is nearly one is an error; what else is neither stays as it is: some options take other words as
// well.
CLI::Validator name_of_gpu();
// Names and sizes with commas between them, which the command itself reads: shells offer the names.
CLI::Validator names_of_gpus();
// A file that is to be written: its folder is there and takes it, which is known before anything takes time.
CLI::Validator file_to_write();
// A folder that is there.
CLI::Validator folder_to_read();
// Without any of these options this one has no effect, which is an error.
CLI::Validator goes_with(const std::vector<const CLI::Option*>& others);
// Says on stderr for which GPU a name was taken that several have. Not to be called where there is an error,
// which is one line.
void say_notes();

// These stand in help below the options: what is done, and the command that does it.
void set_examples(CLI::App& command, const std::vector<std::pair<std::string, std::string>>& examples);

}  // namespace spillway
