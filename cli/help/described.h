// The command line's tables as CLI11 has them, turned into plain data, and its complaints into plain words.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/help/pages.h"

namespace spillway {

// A validator's description begins with this where its rest is the words that are allowed.
inline const std::string kOneOf = "one of ";
// The description of validators that know GPUs, whose names shells offer.
inline const std::string kNamesGpus = "a GPU";

// Each option takes one value, so that what follows is never swallowed; lists are repeated or have commas.
void take_one_value_each(CLI::App& app);

HelpPages describe(const CLI::App& app, const std::string& version);

// One line that says what is wrong with the words, in the words of who wrote them.
std::string plain_words(const CLI::ParseError& error, const CLI::App& app);
// "spillway run has no option --preloda; did you mean '--preload'?", of a word that begins with a dash.
std::string no_option(const CLI::App& command, const std::string& word);
// An option whose value is another option of the command, or has no letters: the value was forgotten, or a
// script's variable is empty. Empty: there is none.
std::string forgotten_value(const CLI::App& app);
// "no command 'repaly'; did you mean 'replay'?"
std::string no_command(const CLI::App& app, const std::string& word);

}  // namespace spillway
