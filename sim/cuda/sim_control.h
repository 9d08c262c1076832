/* Control of the simulated CUDA driver (libcuda.so.1 built in sim/cuda): configuration, device progress,
 * faults, counters, ownership notes and the reports of its race detector.
 *
 * Plain C and no CUDA header, so that anything may include it. Every function is exported by the library: a
 * program that opened it finds them with dlsym. Streams are CUstream values, device pointers are CUdeviceptr
 * values. All functions may be called from any thread; none aborts. Functions that return int return a
 * CUresult.
 *
 * Configuration is "key:value,key:value", from SPILLWAY_SIM at cuInit or through spwSimConfigure; either goes
 * on top of that in SPILLWAY_SIM_DEFAULTS, so that programs which configure the driver themselves run in
 * another mode: */
/* clang-format off */
/*   capacity:SIZE            device memory, 16GiB; sizes take B, KiB, MiB, GiB, TiB
 *   devices:N                1 to 16, 1
 *   granularity:SIZE         of cuMemCreate and cuMemMap, a power of two from 64KiB, 2MiB
 *   backing:memfd|none       none keeps accounts only: no bytes exist, copies move nothing, and what is copied to
 *                            the host is zeros
 *   completion:instant|late|run-ahead
 *                            when enqueued work is complete: at once; as late as a seeded legal order lets it be;
 *                            not before the host waits for it or spwSimCompleteTo says so
 *   seed:N                   of the order and of the answers to queries, 1
 *   set_access_cost:per-call|per-mapping
 *                            the reading that spwSimVirtualNs gives, per-call
 *   costs:cheap|dear|h100|FILE
 *                            what a call takes: of two published runs of one program on an A100 the cheaper (7.6 us
 *                            for a cuMemCreate of 2 MiB) or the dearer (193 us); what an H100 was measured to take,
 *                            which it asks for each mapping; or JSON: {"costs_ns": {"cuMemMap":
 *                            1050, ...}}, as the driver probe prints it, cheap
 *   shared:FILE              processes that name the same file share the memory of the devices: what one holds,
 *                            until it ends, the others lack
 *   vmm:on|off               whether the device has virtual memory management, on
 *   host_vmm:on|off          whether that makes host memory too (drivers before CUDA 12.2), on
 *   host_numa:on|off|fault   whether it does so at a NUMA node; fault: it says that it does, and faults when it is
 *                            asked to, as driver 580 may; what host_vmm says
 *   mig:0|1                  whether the devices are MIG instances: named so, without peers, 0
 *   vmm_in_capture:refuse|allow
 *                            whether cuMemCreate, cuMemMap, cuMemSetAccess and cuMemUnmap count as unsafe calls
 *                            while a stream captures (cuda.h does not say), refuse
 *   destroyed_streams:report|fault
 *                            what a call does with a stream that is none (any more): it is refused, and
 *                            spwSimDeadStreams counts it; fault: a segmentation fault, as an H100 with driver 580
 *                            answered every such call, and calls with streams and events whose primary context was reset, fault
 *   overheads:on|off         whether device memory goes to what programs do not ask for: 300 MiB for a context, 2 MiB
 *                            for a module from its first launch on, and page tables, 4 KiB for each 512 MiB of
 *                            addresses that something is mapped in, 2 MiB at a time; where there is none left, making
 *                            a context, a launch, cuMemMap and cuMemSetAccess are out of memory, off
 *   version:N                what cuDriverGetVersion answers; newer entry points are not found, 13000
 *   races:on|off             the race detector, on; it knows the work of this process alone
 *   at_exit:stay|end         whether the driver that cuInit began with this ends itself in an exit handler, as the
 *                            real one does: for handlers from before, and destructors, every call fails then with
 *                            CUDA_ERROR_DEINITIALIZED, stay
 *   mappings:N               live mappings at which cuMemSetAccess is out of memory, 520000
 *   fault:NAME@N[=CUresult]  the Nth call of NAME fails, with CUDA_ERROR_OUT_OF_MEMORY unless told; repeatable */
/* clang-format on */
#ifndef SPILLWAY_SIM_CONTROL_H
#define SPILLWAY_SIM_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* SPW_SIM_KEEP_BYTES with a write: nothing is stored, only the detector hears of it. */
enum { SPW_SIM_READ = 1, SPW_SIM_WRITE = 2, SPW_SIM_READ_WRITE = 3, SPW_SIM_KEEP_BYTES = 4 };

/* A range of device addresses that one grid touches. access 0 takes the flags of the call. */
typedef struct SpwSimRange {
  uint64_t ptr;
  uint64_t bytes;
  uint32_t access;
  uint32_t reserved;
} SpwSimRange;

/* As a fresh process with this configuration would be: every context, stream, handle and mapping is gone,
 * counters and reports are zero. The driver is initialised afterwards. NULL or "" is the default
 * configuration. A child of fork, which otherwise is refused with CUDA_ERROR_NOT_INITIALIZED as by the real
 * driver, has a device of its own from then on. A malformed text changes nothing, returns
 * CUDA_ERROR_INVALID_VALUE, and spwSimLastError says why. */
int spwSimConfigure(const char* text);
/* One line about the last failure in this thread that has more to say than its code; "" if none. */
const char* spwSimLastError(void);

/* What the device's addresses are here: "mapped", "already freed", "already unmapped" or "never mapped". For
 * a handler of signals: it waits for no lock, and answers "" where another thread has it. */
const char* spwSimFate(uint64_t address);

/* Enqueues one grid that touches the ranges. Writes fill them with a value of their own where memory is
 * backed. */
int spwSimTouch(struct CUstream_st* stream, const SpwSimRange* ranges, size_t count, unsigned flags);
/* Enqueues one grid that fills the ranges with copies of a value of 1 to 16 bytes, whole ones only. */
int spwSimFill(struct CUstream_st* stream, const SpwSimRange* ranges, size_t count, const void* value,
               size_t value_bytes);
/* The bytes of the ranges as they lie there now, one after the other, to the host's memory and from it. No
 * call of the device and no part of any stream's order: who has work pending waits for it first. 0, or
 * CUDA_ERROR_INVALID_VALUE where a range is not all mapped memory with bytes; some are moved by then. */
int spwSimPeek(const SpwSimRange* ranges, size_t count, void* to);
int spwSimPoke(const SpwSimRange* ranges, size_t count, const void* from);
/* The next so many copies of 1 to 8 bytes that this thread enqueues from the device to ordinary or pinned
 * host memory bring the first bytes of the value: what a kernel would have counted. 0 copies: none any more.
 */
void spwSimAnswer(int64_t value, unsigned copies);
/* Copies to the device that this thread enqueues from now on move no bytes, until it says 0: what they would
 * move means nothing, and memory for it would be taken of the host. Those that are captured move theirs. */
void spwSimCopyNothing(int on);
/* 1 while any stream captures. */
int spwSimIsCapturing(void);
/* The host reads or writes pinned or host-located memory now: reported if the device may still be using it.
 */
int spwSimHostAccess(const void* ptr, uint64_t bytes, unsigned flags);

/* The stream's position now. With spwSimCompleteTo, work up to that position and all it depends on is
 * complete; the host learns of it only when it asks. A position of a destroyed stream is complete. */
uint64_t spwSimMark(struct CUstream_st* stream);
int spwSimCompleteTo(struct CUstream_st* stream, uint64_t mark);
/* 1 if work up to the mark is complete; counts as nothing, teaches the host nothing. */
int spwSimIsComplete(struct CUstream_st* stream, uint64_t mark);

/* Work that another library does for the stream, as collectives are: it runs once all before it is over and
 * `ready` (null: always) says 1, on any thread that waits for the stream, asks about it or enqueues. `ready`
 * is asked under the driver's lock and may call nothing of it; `run` is called without, and may call the
 * functions of this file only. CUDA_ERROR_NOT_SUPPORTED while the stream captures. */
typedef int (*SpwSimReady)(void* argument);
typedef void (*SpwSimRun)(void* argument);
int spwSimEnqueueExternal(struct CUstream_st* stream, SpwSimReady ready, SpwSimRun run, void* argument);
/* Runs all work that can run, on every stream, where work is complete at once: after `ready` of some changed.
 */
void spwSimProgress(void);
/* What a thread does that waits for work which is not ready: `look` before it looks, and `wait` with what
 * that answered where nothing came of it. Without them it looks again after a millisecond. */
void spwSimSetHold(uint64_t (*look)(void), void (*wait)(uint64_t looked));

/* Ownership, for allocators under test: touching noted memory after its free note is reported until it is
 * noted as allocated again. The stream is kept for the text of reports. */
void spwSimNoteAlloc(uint64_t ptr, uint64_t bytes, struct CUstream_st* stream);
void spwSimNoteFree(uint64_t ptr);

/* Reports of the detector, oldest first; a text stays valid until spwSimClearReports or spwSimConfigure. At
 * most 1000 are kept, all are counted. */
size_t spwSimReportCount(void);
const char* spwSimReport(size_t index);
void spwSimClearReports(void);

/* The nth call of the entry point from now fails with this CUresult, once; one that lasts on a device, as
 * CUDA_ERROR_ILLEGAL_ADDRESS does, then fails every call that is work of a context until spwSimClearFaults.
 * Base names: "cuMemMap", "cuMemAlloc". */
int spwSimInjectFault(const char* name, uint64_t nth, int result);
void spwSimClearFaults(void);

/* Counters since the configuration or spwSimResetCounters. Calls are counted by base name, refused calls too.
 */
uint64_t spwSimCalls(const char* name);
uint64_t spwSimTotalCalls(void);
/* Name of entry point i, NULL past the last: to list all counters. */
const char* spwSimEntryPoint(size_t index);
void spwSimResetCounters(void);
/* Synchronise calls of streams, events and contexts, cuMemUnmap, cuMemFree, and polling loops: 64 answers
 * "not ready" about one event or stream with nothing enqueued in between, which then completes. */
uint64_t spwSimHostWaits(void);
/* cuStreamWaitEvent calls. */
uint64_t spwSimStreamWaits(void);
/* Calls that were given a stream that is none (any more): refused here, undefined on a device. */
uint64_t spwSimDeadStreams(void);
/* Time the calls so far would have taken, from the cost table. */
uint64_t spwSimVirtualNs(void);
uint64_t spwSimVirtualNsPerMapping(void);

/* Mappings made by cuMemMap that are live, and the most since the counters were reset. */
uint64_t spwSimLiveMappings(void);
uint64_t spwSimPeakMappings(void);
/* Device memory in use, and the most since the counters were reset. */
uint64_t spwSimPhysicalBytes(int device);
uint64_t spwSimPeakPhysicalBytes(int device);
/* Handles of cuMemCreate whose memory still exists, on all devices and the host. */
uint64_t spwSimLiveHandles(void);

#ifdef __cplusplus
}
#endif

#endif
