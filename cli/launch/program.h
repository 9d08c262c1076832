// Starting the user's program with what Spillway needs in its environment.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "driver/status.h"

namespace spillway {

// By its name: python, python3, python3.13t. Another program may only begin so.
bool is_python(const std::string& word);

// The folder of the Python package: $SPILLWAY_PACKAGE, or where this command is installed, or in a checkout.
// Errors: io.
Result<std::string> package_folder();
// The Python whose PyTorch the program uses: its first word, where that is a Python, or that of
// $SPILLWAY_PYTHON, or python3.
std::string python_of(const std::vector<std::string>& program);

// The folder of the simulated CUDA libraries that fit the Python's PyTorch: $SPILLWAY_SIM_LIBRARIES or what
// was built beside this command, or, where that is for another PyTorch, what is made now and kept. Errors:
// io.
Result<std::string> simulated_libraries_folder(const std::string& python);

// The library that stands before a program's driver: of $SPILLWAY_PRELOAD, a folder, or where this command is
// installed. Errors: io.
Result<std::string> preload_library();
// The auditor of the dynamic loader that belongs to it. Errors: io.
Result<std::string> auditor_beside(const std::string& preload_library);
// Puts the entry before the others of a variable that is a list with colons.
void put_first(const char* variable, const std::string& entry);

// Makes every Python that inherits the environment run the package's start-up code first. Errors: io (no
// package), invalid_argument (a Python told to ignore its environment).
Status start_with_package(const std::vector<std::string>& program);

// Makes every Python that inherits the environment able to import the package, and do nothing more. Errors:
// io.
Status import_package();

// Every simulated library that fits the Python's PyTorch, for the dynamic loader of the programs started from
// here to take before any other of its name. Answers their folder. Errors: io.
Result<std::string> preload_simulation(const std::string& python);

// Returns the error that it cannot be started, with errno.
Status not_started(const std::vector<std::string>& program, int error);
// Replaces this process. Returns errno, and only on failure.
int become_program(const std::vector<std::string>& program);
// The same, as a status.
Status execute(const std::vector<std::string>& program);
// Runs the program and waits for it; answers its exit code, 128 + N where signal N ended it.
Result<int> execute_and_wait(const std::vector<std::string>& program);

}  // namespace spillway
