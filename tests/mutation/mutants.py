"""The mutants: every wait and every order that the allocator keeps, removed or falsified one at a time."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` occurs once in `file`; `new` takes its place."""

    name: str
    file: str
    old: str
    new: str


TIMELINE = "allocator/timeline.h"
LADDER = "allocator/ladder.cpp"
ARENA = "allocator/arena.cpp"
POOLS = "allocator/arena_pools.cpp"
BORROWING = "allocator/borrowing.cpp"
WAITS = "allocator/device_waits.cpp"
TRIMMING = "allocator/trimming.cpp"
VIEWS = "allocator/view_budget.cpp"
STREAMS = "allocator/stream_heaps.cpp"
POOL_TABLE = "allocator/pool_table.cpp"
SOURCES = "allocator/sources.cpp"
MOVES = "allocator/pool_mover.cpp"
HEAP = "allocator/heap.cpp"
PENDING = "allocator/pending_frees.cpp"
FREE_PAGES = "allocator/free_pages.cpp"
RANGES = "allocator/range_cache.cpp"
HEAP_STATE = "allocator/heap_state.cpp"
HEAP_H = "allocator/heap.h"
STORE = "allocator/page_store.cpp"
LEGACY_POOL = "allocator/legacy_pool.cpp"

MUTANTS = [
    # ---- Epochs
    Mutant("an epoch is closed without an event", TIMELINE, "Status status = event_.record(stream);", "Status status;"),
    Mutant(
        "an event covers the epoch after it",
        TIMELINE,
        "if (epoch < recorded_) return {};",
        "if (event_ && epoch <= recorded_) return {};",
    ),
    Mutant("an event opens no new epoch", TIMELINE, "recorded_ = ++epoch_;", "recorded_ = epoch_ + 1;"),
    Mutant("a host wait opens no new epoch", TIMELINE, "return ++epoch_;", "return epoch_ + 1;"),
    Mutant("a host wait completes an epoch too many", TIMELINE, "epoch < complete_;", "epoch <= complete_;"),
    Mutant("a wait covers the epoch after it", TIMELINE, "found->second > epoch;", "found->second >= epoch;"),
    Mutant("a wait is noted for an epoch too many", TIMELINE, "waited = end_epoch;", "waited = end_epoch + 1;"),
    # ---- Pages of other heaps
    Mutant(
        "a borrower does not wait",
        BORROWING,
        "if (!timeline.event().make_wait(waiter.key.stream).ok()) return false;",
        "",
    ),
    Mutant(
        "a lender counts as complete",
        BORROWING,
        "if (timeline.is_complete(epoch) || is_over) return true;",
        "return true;",
    ),
    Mutant("one wait serves for ever", BORROWING, "has_waited(&timeline, epoch)", "has_waited(&timeline, 0)"),
    Mutant("a pool borrows behind its stream", BORROWING, "if (waiter.use.is_replayed) return false;", ""),
    Mutant("a pool lends behind its stream", BORROWING, "if (earlier.use.is_replayed) return false;", ""),
    Mutant(
        "another thread's default stream is waited for",
        BORROWING,
        "if (earlier.key.thread != 0 && earlier.key.thread != waiter.key.thread) return false;",
        "",
    ),
    Mutant("a captured stream is waited for", BORROWING, "  if (heaps_.is_capturing(earlier)) return false;\n", ""),
    Mutant(
        "a captured stream borrows",
        LADDER,
        "Turns::kOnce, false, nullptr, &Ladder::wait_on_device",
        "Turns::kOnce, true, nullptr, &Ladder::wait_on_device",
    ),
    Mutant(
        "a captured stream gets its place back",
        LADDER,
        "Turns::kOnce, false, &Ladder::wants_back",
        "Turns::kOnce, true, &Ladder::wants_back",
    ),
    Mutant("an open pool lends", BORROWING, "if (lender.use.keeps_pages) {", "if (false) {"),
    Mutant("an open pool gives places back", BORROWING, "if (lender.use.keeps_pages) return false;", ""),
    Mutant(
        "a captured lender waits", BORROWING, "if (reachable && !heaps_.is_capturing(lender) && ", "if (reachable && "
    ),
    Mutant(
        "a thread waits for another's default stream",
        BORROWING,
        "if (reachable && !heaps_.is_capturing(lender)",
        "if (!heaps_.is_capturing(lender)",
    ),
    # ---- Streams that go
    Mutant("a stream that is gone is asked for an event", TIMELINE, "covered_ ? Status() : ", "true ? Status() : "),
    Mutant("a closed stream is over at once", TIMELINE, "return sealed_ && complete_ > sealed_at_;", "return sealed_;"),
    Mutant(
        "a heap taken over counts the uses of others as complete",
        PENDING,
        "pending.epoch = epoch;",
        "(void)epoch, (void)pending;",
    ),
    Mutant(
        "a heap is taken over before its stream is over",
        STREAMS,
        "if (!may_take_over(heap, key.pool)) continue;",
        "if (heap.key.pool != key.pool) continue;",
    ),
    Mutant(
        "a pool's heap is taken over before its graphs are over",
        STREAMS,
        "return !heap.use.keeps_pages && heap.is_idle();",
        "return !heap.use.keeps_pages;",
    ),
    Mutant(
        "a pool's heap is over with its stream",
        BORROWING,
        "!earlier.use.is_replayed && timeline.is_over();",
        "timeline.is_over();",
    ),
    Mutant(
        "a wait by events forgets streams that went", WAITS, "    events.push_back(heap.timeline.event().get());\n", ""
    ),
    Mutant(
        "a wait by events forgets streams that went unannounced",
        WAITS,
        "    if (!heap.timeline.is_covered()) return false;\n",
        "    if (!heap.timeline.is_covered()) return true;\n",
    ),
    Mutant(
        "an announced stream is not marked",
        STREAMS,
        "const Status closed = heap->timeline.close(*parts_.driver, stream, heap->timeline.epoch(), &covered);",
        "const Status closed;\n      covered = true;",
    ),
    Mutant(
        "what threads remember survives a stream",
        STREAMS,
        "  stamp_.store(next_stamp(), std::memory_order_relaxed);\n",
        "",
    ),
    Mutant(
        "a lender's handle is taken for the lender",
        STREAMS,
        "if (is_alive(*parts_.driver, heap.key)) return false;",
        "return false;",
    ),
    Mutant("a user's handle is taken for the user", PENDING, " || !is_alive(driver_, uses.streams[i])) {", ") {"),
    Mutant(
        "a stream with the owner's old handle is the owner",
        HEAP,
        "if (user.value() == static_cast<const StreamIdentity&>(key)) return {};",
        "if (user.value().stream == key.stream) return {};",
    ),
    # ---- The stamp of a free
    Mutant("whole pages are not stamped", FREE_PAGES, "    stamp(run.first, run.count, epoch);\n", ""),
    Mutant("edge pages are not stamped", FREE_PAGES, "    stamp(id, 1, epoch);\n  } else {", "  } else {"),
    Mutant(
        "received pages are not stamped",
        FREE_PAGES,
        "    stamp(id, 1, epoch);\n  }\n  const auto count",
        "  }\n  (void)epoch;\n  const auto count",
    ),
    Mutant("a released pool is not stamped", HEAP, "  pages_.stamp_all(timeline.epoch());\n", ""),
    # ---- Frees that wait for other streams
    Mutant(
        "a state takes what another stream uses",
        HEAP_STATE,
        "if (is_in_the_way(range, state)) in_the_way = &range;",
        "",
    ),
    Mutant("a large free forgets other streams", HEAP, "if (!range.has_stream_uses) {", "if (true) {"),
    Mutant("a small free forgets other streams", HEAP, "if (!Slab::test(slab->stream_uses, slot)) {", "if (true) {"),
    Mutant(
        "only the last stream is remembered",
        PENDING,
        "if (std::find(users.begin(), users.end(), user) == users.end()) users.push_back(user);",
        "users = {user};",
    ),
    Mutant("a pending free bears no epoch", PENDING, "&range, slot, epoch};", "&range, slot, 0 * epoch};"),
    Mutant(
        "another thread's default stream takes an event",
        PENDING,
        "if (is_of_another_thread || !is_alive(driver_, uses.",
        "if (!is_alive(driver_, uses.",
    ),
    Mutant("a captured stream takes an event", PENDING, "capture != CU_STREAM_CAPTURE_STATUS_NONE) {", "false) {"),
    Mutant(
        "an event that was not recorded counts",
        PENDING,
        "if (!event->record(stream).ok()) {",
        "if (!event->record(stream).ok() && false) {",
    ),
    Mutant("pending frees count as complete", PENDING, "if (timeline.is_complete(pending.epoch)) {", "if (true) {"),
    Mutant(
        "an event not reached counts",
        PENDING,
        "if (!done.ok() || !done.value()) return false;",
        "if (!done.ok()) return false;",
    ),
    Mutant(
        "a query that fails says yes",
        PENDING,
        "if (!done.ok() || !done.value()) return false;",
        "if (done.ok() && !done.value()) return false;",
    ),
    Mutant(
        "streams without an event count as done", PENDING, "  return pending.streams.empty();\n}", "  return true;\n}"
    ),
    Mutant(
        "the owner does not wait for other streams",
        PENDING,
        "if (Status status = event.make_wait(stream); !status.ok()) return status;",
        "(void)event, (void)stream;",
    ),
    Mutant(
        "the owner waits for the streams with events only",
        PENDING,
        "    if (!pending.streams.empty()) {\n      ++i;\n      continue;\n    }\n    if (Status",
        "    if (Status",
    ),
    Mutant(
        "the owner of a place waits for the streams with events only",
        PENDING,
        "if (!pending_[i].streams.empty() || !wait_behind",
        "if (!wait_behind",
    ),
    Mutant(
        "a lender waits for the streams with events only",
        PENDING,
        "if (covers && pending_[i].streams.empty() && wait_behind",
        "if (covers && wait_behind",
    ),
    Mutant(
        "a pool's pending frees complete behind its stream",
        LADDER,
        "if (!miss.heap.pending().empty() && !miss.heap.use.is_replayed) {",
        "if (!miss.heap.pending().empty()) {",
    ),
    Mutant(
        "a pool's places complete behind its stream",
        BORROWING,
        "if (expected->state == BlockState::kPendingFree) return !heap.use.is_replayed;",
        "if (expected->state == BlockState::kPendingFree) return true;",
    ),
    # ---- Waits of the host, and what goes after them
    Mutant(
        "a wait for the device does not wait",
        WAITS,
        'parts_.driver->check(parts_.driver->cuCtxSynchronize(), "cuCtxSynchronize")',
        "Status()",
    ),
    Mutant(
        "a wait for the streams does not wait",
        WAITS,
        'status = parts_.driver->check(parts_.driver->cuEventSynchronize(events[i]), "cuEventSynchronize");',
        "",
    ),
    Mutant(
        "the end of an arena does not wait", ARENA, "idle = idle || waits_.wait_if_nothing_captures();", "idle = true;"
    ),
    Mutant(
        "an idle heap's pages need not be complete",
        HEAP,
        "    return is_done_with(page);\n",
        "    return true + 0 * page;\n",
    ),
    Mutant(
        "trim does not wait",
        TRIMMING,
        "  if (Status status = waits_.synchronize_with_frees(all, chosen); !status.ok()) return status;\n",
        "",
    ),
    Mutant(
        "what a wait lets others free is not waited for",
        WAITS,
        "completed > 0 ? synchronize(all) : Status()",
        "Status()",
    ),
    Mutant(
        "pages go before they are complete",
        HEAP_H,
        " && pages_.is_free(page) && is_done_with(page);",
        " && pages_.is_free(page);",
    ),
    Mutant("pages of an open pool go", HEAP, "  if (!use.keeps_pages) return;\n", "  return;\n"),
    Mutant("what a pool used goes", RANGES, "{ pages.insert(page); }", "{ (void)page; }"),
    Mutant("a pool opened again is not protected", POOLS, "    parts_.pools.set_use_of(*heap);\n    if", "    if"),
    Mutant("a heap of an open pool is not protected", STREAMS, "  parts_.pools.set_use_of(*heap);\n  entry", "  entry"),
    Mutant("trim does not ask for captures", TRIMMING, "if (heaps_.any_capturing(all)) {", "if (false) {"),
    Mutant(
        "the last rung does not wait",
        LADDER,
        "  if (!waits_.synchronize_with_frees(all, freeing).ok()) return Outcome::kSkipped;\n",
        "",
    ),
    Mutant(
        "the last rung does not ask for captures",
        LADDER,
        "    if (heaps_.is_capturing(*each)) return Outcome::kSkipped;\n    helps",
        "    helps",
    ),
    Mutant(
        "a wait for events ends other captures",
        WAITS,
        "  const RelaxedCapture relaxed(*parts_.driver);\n  for (const CUevent",
        "  for (const CUevent",
    ),
    Mutant(
        "what is done with is not chosen", BORROWING, "  if (lent > 0 || pages.empty()) return lent;", "  return lent;"
    ),
    # ---- Sources of pools
    Mutant("memory of a source is lent", BORROWING, " || lender->is_sourced()", ""),
    Mutant("heaps of a source serve others", STREAMS, "  if (!parts_.may_serve(heap, pool)) return false;\n", ""),
    Mutant("a released source serves on", SOURCES, "    if (!heap->is_closed()) heaps_.close(*heap, false);\n", ""),
    Mutant(
        "segments of a source stay after its release",
        POOLS,
        "    (void)waits_.wait_if_nothing_captures();\n    sources_.return_segments();",
        "    sources_.return_segments();",
    ),
    # ---- Views that go
    Mutant(
        "views are retired without a wait",
        VIEWS,
        "  if (!waits_.synchronize(all, &everything).ok() || !everything) return false;\n",
        "",
    ),
    Mutant("views in use are retired", VIEWS, "if (age > 0) by_age", "by_age"),
    Mutant("views are retired during a capture", VIEWS, "  if (heaps_.any_capturing(all)) return false;\n  {", "  {"),
    Mutant(
        "views of an open pool are retired", VIEWS, "BlockState::kFree || heap->use.keeps_pages;", "BlockState::kFree;"
    ),
    Mutant(
        "views with a lost slot are retired under a block",
        VIEWS,
        "if (is_lost(range) && !in_use) return;",
        "if (is_lost(range)) return;",
    ),
    Mutant("places in lost slots are taken", FREE_PAGES, "  if (is_lost(range)) return false;\n", ""),
    # Without VMM the number of a segment that is gone serves the next one, at another address.
    Mutant(
        "places of segments that are gone are taken",
        FREE_PAGES,
        "  if (!store_.uses_vmm() && has_moved(range)) return false;\n",
        "",
    ),
    Mutant(
        "a view that lost a slot keeps its places",
        STORE,
        "  --view.mapped;\n  view.lose_ranges();\n",
        "  --view.mapped;\n",
    ),
    # Pools that leave the device.
    Mutant(
        "what a graph may keep goes with what is free",
        MOVES,
        "  if (move.pool->movable->captured == MovablePool::Captured::kNever) {\n    if (Status",
        "  {\n    if (Status",
    ),
    Mutant(
        "a pool that was captured gives its memory away",
        POOL_TABLE,
        "pool != nullptr && pool->captured == MovablePool::Captured::kNever;",
        "pool != nullptr;",
    ),
    Mutant("views do not come back", MOVES, "return keeps_all || slots.count({view, slot}) != 0;", "return keeps_all;"),
    Mutant(
        "copies of what was freed stay",
        MOVES,
        "  for (const PageRange& range : ranges) give_up(range);\n  const",
        "  const",
    ),
    Mutant("a move does not wait", MOVES, "return waits_.synchronize_context(all);", "return {};"),
    Mutant("a move does not ask for captures", MOVES, "if (heaps_.any_capturing(all))", "if (false)"),
    # ---- Memory without a stream
    Mutant("an epoch asks no stream of the program", LEGACY_POOL, "    all.push_back(listed.stream);\n", ""),
    Mutant(
        "an epoch does not ask the legacy stream",
        LEGACY_POOL,
        "std::vector<CUstream> all{CU_STREAM_LEGACY};",
        "std::vector<CUstream> all;",
    ),
    Mutant("an epoch forgets streams that are gone", LEGACY_POOL, "events = orphans_;", "events;"),
    Mutant("a stream goes without an event", LEGACY_POOL, "orphans_.push_back(std::move(event));", ""),
    Mutant(
        "an epoch is complete when one event is",
        LEGACY_POOL,
        "while (!events.empty() && is_reached(events.back())) events.pop_back();",
        "if (!events.empty() && is_reached(events.back())) events.clear();",
    ),
    Mutant("an epoch is complete at once", LEGACY_POOL, "    if (!events.empty()) break;\n", ""),
    Mutant(
        "an epoch is closed during a capture",
        LEGACY_POOL,
        "if (asked != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE) return false;",
        "",
    ),
    Mutant("borrowed memory is handed out before its wait is over", LEGACY_POOL, "return settle();", "return {};"),
    Mutant(
        "the program's frees are not waited for", LEGACY_POOL, "if (event->synchronize().ok()) continue;", "continue;"
    ),
    Mutant("a move goes on beside an open pool", MOVES, "if (!waits_.may_wait_for_context()) {", "if (false) {"),
]
