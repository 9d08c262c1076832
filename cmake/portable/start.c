// Constructors of a program. Before glibc 2.34 each program brought the function that runs them and told it
// to
// __libc_start_main; since then the C library runs them where it is told none, and what starts a program here
// tells none.
typedef int Main(int, char**, char**);
typedef void Constructor(int, char**, char**);
extern Constructor* __init_array_start[];
extern Constructor* __init_array_end[];

int __real___libc_start_main(Main* main, int count, char** words, Constructor* init, void (*fini)(void),
                             void (*loader_fini)(void), void* stack_end);

static void run_constructors(int count, char** words, char** environment) {
  for (Constructor** next = __init_array_start; next != __init_array_end; ++next)
    (*next)(count, words, environment);
}

int __wrap___libc_start_main(Main* main, int count, char** words, Constructor* init, void (*fini)(void),
                             void (*loader_fini)(void), void* stack_end) {
  return __real___libc_start_main(main, count, words, init != 0 ? init : run_constructors, fini, loader_fini,
                                  stack_end);
}
