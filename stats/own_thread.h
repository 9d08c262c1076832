// Threads of Spillway's own in the program's process: they take none of its signals and stand in the way of
// none of its forks.
#pragma once

#include <functional>
#include <thread>

#include "stats/lock.h"

namespace spillway {

// Throws std::system_error where there can be no thread.
std::thread start_own_thread(std::function<void()> body);

// For the thread that forks: so that the child does not get a lock from a thread that it does not have. A
// fork under a lock that the other thread waits for would wait for itself: it gives up after 100 ms, and
// only the child is at risk then. Answers whether it holds the mutex.
bool lock_for_fork(BlockingMutex& mutex) SPW_TRY_ACQUIRE(true, mutex);
// After the fork, in the parent and in the child: `held` is what that answered.
void unlock_after_fork(BlockingMutex& mutex, bool held);

}  // namespace spillway
