// Standing between a program and its CUDA driver. The library that does so is in every process of a job,
// shells included, so it needs nothing but the C library and does nothing when it is loaded: it looks for the
// driver and loads libspillway when the program first calls a hooked entry point.
//
// Only names that begin with cu and a capital letter, and are found in the driver's library, are ever
// answered with a hook. A question is put to the real dlsym or cuGetProcAddress first; where that finds
// nothing, neither does the program.
#pragma once

#include <span>

#include "abi/preload/hook_table.h"

namespace spillway::preload {

using LookUp = void* (*)(void* library, const char* symbol);

using Open = void* (*)(const char* file, int flags);

// The next dlsym and dlopen in the process: what this library asks goes by none of its own.
LookUp real_dlsym();
Open real_dlopen();
// Finds what comes after this library; not in tail position, so that the question is this library's.
void* find_behind(const char* symbol);

// A hooked entry point, its address in this library and its place in DriverCalls.
struct Hook {
  const char* name;
  int since;
  bool per_thread;
  bool required;
  const char* symbol;
  void* address;
  size_t offset;
  bool is_old = false;  // another name of what has this place
};
std::span<const Hook> hooks();

// Returns what hooked calls go to now: libspillway's functions, or the driver's own where it is not to serve.
const DriverCalls* calls();

// Tells whether the program goes on without Spillway.
bool stands_aside();
bool is_disabled();
// Tells whether `spillway run --preload` found it so, and has said it.
bool is_driver_known_unusable();
// One line on stderr about that.
__attribute__((format(printf, 1, 2))) void say(const char* format, ...);

// The program opens a library. Where that is a driver and the process ends without one, this is said then.
void note_opened(const char* file, int flags);

bool is_driver_name(const char* symbol);
// Tells whether the address is in the driver's library, which is remembered.
bool is_in_driver(const void* address);
bool is_in_this_library(const void* address);
// The program's driver, if it has one by now.
void* driver_library();

// Returns what the program is given for `found`, which the driver exports as `symbol`.
void* replace_exported(const char* symbol, void* found);

}  // namespace spillway::preload
