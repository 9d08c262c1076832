// Makes what glibc has had since a release newer than 2.28 in terms of what it had before: linked into what
// is to run there too. Nothing here is seen outside of the library or program that it is linked into. (The
// releases: `readelf --dyn-syms` of libc.so.6; the older forms: glibc's NEWS of 2.30, 2.32, 2.33, 2.34
// and 2.36.)
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// 2.32. Tells whether there is one thread: never claimed, which costs a locked instruction where it could be
// left out.
char __libc_single_threaded = 0;

// 2.33. Before, these were small functions in each program, over calls that name the layout of struct stat: 1
// on x86-64.
enum { kStatVersion = 1 };
int __xstat(int version, const char* path, struct stat* out);
int __lxstat(int version, const char* path, struct stat* out);
int __fxstat(int version, int file, struct stat* out);
int __fxstatat(int version, int folder, const char* path, struct stat* out, int flags);
int stat(const char* path, struct stat* out) {
  return __xstat(kStatVersion, path, out);
}
int lstat(const char* path, struct stat* out) {
  return __lxstat(kStatVersion, path, out);
}
int fstat(int file, struct stat* out) {
  return __fxstat(kStatVersion, file, out);
}
int fstatat(int folder, const char* path, struct stat* out, int flags) {
  return __fxstatat(kStatVersion, folder, path, out, flags);
}

// 2.30
pid_t gettid(void) {
  return (pid_t)syscall(SYS_gettid);
}

// Where `clock` is at `until`, on the clock that the older calls take.
static struct timespec on_realtime_clock(clockid_t clock, const struct timespec* until) {
  struct timespec now;
  struct timespec real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  const int64_t second = 1000000000;
  const int64_t wait = (until->tv_sec - now.tv_sec) * second + (until->tv_nsec - now.tv_nsec);
  const int64_t at = real.tv_nsec + (wait > 0 ? wait : 0);
  const struct timespec then = {real.tv_sec + at / second, at % second};
  return then;
}

// 2.30. A step of the realtime clock while it waits moves the end by as much; callers ask again until it is
// due.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  const struct timespec then = on_realtime_clock(clock, until);
  return pthread_cond_timedwait(condition, mutex, &then);
}
int sem_clockwait(sem_t* semaphore, clockid_t clock, const struct timespec* until) {
  const struct timespec then = on_realtime_clock(clock, until);
  return sem_timedwait(semaphore, &then);
}

// 2.36. Libraries that are linked in ask for these.
void arc4random_buf(void* out, size_t bytes) {
  for (char* at = out; bytes > 0;) {
    const size_t part = bytes < 256 ? bytes : 256;
    if (getentropy(at, part) != 0) abort();  // as glibc's own does where the kernel gives none
    at += part;
    bytes -= part;
  }
}
uint32_t arc4random(void) {
  uint32_t value;
  arc4random_buf(&value, sizeof value);
  return value;
}
