// The meeting (meeting.h) behind a socket, on a thread of its own. What starts it is plain C, so that the
// command finds it in the library and knows nothing of it at compile time.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* Listens on the abstract Unix socket of this name. `ranks`: how many ranks of a job run, where others do
 * not; 0: all do. Null: the socket is not to be had. */
void* spwMeetingStart(const char* name, int ranks);
/* Ends it. Answers {"kind": "deadlock"|"mismatch"|"", "lines": [...], "notes": [...]}, valid until the next
 * call. */
const char* spwMeetingEnd(void* meeting);

#ifdef __cplusplus
}
#endif
