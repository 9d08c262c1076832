// Ends what a program leaves behind that a signal has ended: a shell's or a launcher's children, say, which
// go on.
#pragma once

namespace spillway {

// From now on the processes that a program leaves behind become this process's children.
void adopt_descendants();

// Sends each of them the signal, once, waits for them to end, and kills what has not ended after half a
// minute.
void end_descendants(int signal);

}  // namespace spillway
