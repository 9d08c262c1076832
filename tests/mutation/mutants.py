"""The mutants: every wait and every order that the allocator keeps, removed or falsified one at a time.

A mutant names the statements that it changes by their markers (`// mutant: name`, see markers.py), and what happens to
each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from operators import (
    Operator,
    alone,
    always,
    by_member,
    default,
    drop,
    empty,
    excepted,
    ignored,
    increased,
    last_argument,
    never,
    peeked,
    swap,
    then,
    without,
)


class Mutant(NamedTuple):
    name: str
    edits: Mapping[str, Operator]  # by marker


MUTANTS = [
    # ---- Epochs
    Mutant("an epoch is closed without an event", {"close-event": default}),
    Mutant("an event covers the epoch after it", {"event-covers": swap("<", "<="), "first-event": default}),
    Mutant("an event opens no new epoch", {"event-epoch": peeked}),
    Mutant("a host wait opens no new epoch", {"wait-epoch": peeked}),
    Mutant("a host wait completes an epoch too many", {"complete-epochs": swap("<", "<=")}),
    Mutant("a wait covers the epoch after it", {"waited-epochs": swap(">", ">=")}),
    Mutant("a wait is noted for an epoch too many", {"note-wait": then(increased)}),
    # ---- Pages of other heaps
    Mutant("a borrower does not wait", {"borrower-waits": drop}),
    Mutant("a lender counts as complete", {"lender-complete": always}),
    Mutant("one wait serves for ever", {"borrower-waited": last_argument("0")}),
    Mutant("a pool borrows behind its stream", {"pool-borrows": drop}),
    Mutant("a pool lends behind its stream", {"pool-lends": drop}),
    Mutant("another thread's default stream is waited for", {"thread-lends": drop}),
    Mutant("a captured stream is waited for", {"captured-lends": drop}),
    Mutant("a captured stream borrows", {"captured-borrows": swap("false", "true")}),
    Mutant("a captured stream gets its place back", {"captured-takes-back": swap("false", "true")}),
    Mutant("an open pool lends", {"open-pool-lends": never}),
    Mutant("an open pool gives places back", {"open-pool-gives": drop}),
    Mutant("a captured lender waits", {"lender-waits": without(2)}),
    Mutant("a thread waits for another's default stream", {"lender-waits": without(1)}),
    # ---- Streams that go
    Mutant("a stream that is gone is asked for an event", {"close-sealed": then(always)}),
    Mutant("a closed stream is over at once", {"stream-over": without(2)}),
    Mutant("a heap taken over counts the uses of others as complete", {"restart": drop}),
    Mutant("a heap is taken over before its stream is over", {"take-over-closed": always}),
    Mutant("a pool's heap is taken over before its graphs are over", {"take-over-pool": then(without(2))}),
    Mutant("a pool's heap is over with its stream", {"lender-over": without(1)}),
    Mutant("a wait by events forgets streams that went", {"wait-for-end": drop}),
    Mutant("a wait by events forgets streams that went unannounced", {"wait-uncovered": then(always)}),
    Mutant("an announced stream is not marked", {"announced-close": default, "announced-covered": always}),
    Mutant("what threads remember survives a stream", {"close-forgets": drop}),
    Mutant("a handle that comes again is taken for the stream that had it", {"has-gone": always}),
    Mutant("a lender is named that may be gone", {"unseen-reach": without(2)}),
    Mutant("a user is named that may be gone", {"reach": without(2)}),
    Mutant("a captured stream is asked for its number", {"asks-captured": drop}),
    Mutant("a stream with the owner's old handle is the owner", {"owner-uses": by_member("stream")}),
    # ---- The stamp of a free
    Mutant("whole pages are not stamped", {"stamp-runs": drop}),
    Mutant("edge pages are not stamped", {"stamp-edge": drop}),
    Mutant("received pages are not stamped", {"stamp-received": drop}),
    Mutant("a released pool is not stamped", {"stamp-released": drop}),
    # ---- Frees that wait for other streams
    Mutant("a state takes what another stream uses", {"state-takes": drop}),
    Mutant("a large free forgets other streams", {"free-large": always}),
    Mutant("a small free forgets other streams", {"free-small": always}),
    Mutant("only the last stream is remembered", {"add-user": then(alone)}),
    Mutant("a pending free bears no epoch", {"pending-epoch": last_argument("0")}),
    Mutant("another thread's default stream takes an event", {"reach": without(1)}),
    Mutant("a captured stream takes an event", {"user-captured": without(2)}),
    Mutant("an event that was not recorded counts", {"user-recorded": ignored}),
    Mutant("pending frees count as complete", {"pending-complete": always}),
    Mutant("an event not reached counts", {"event-reached": without(2)}),
    Mutant("a query that fails says yes", {"event-reached": excepted(1)}),
    Mutant("streams without an event count as done", {"events-reached": always}),
    Mutant("the owner does not wait for other streams", {"owner-waits": drop}),
    Mutant("the owner waits for the streams with events only", {"behind-any": drop}),
    Mutant("the owner of a place waits for the streams with events only", {"behind-range": without(1)}),
    Mutant("a lender waits for the streams with events only", {"behind-pages": without(2)}),
    Mutant("a pool's pending frees complete behind its stream", {"pool-behind": without(2)}),
    Mutant("a pool's places complete behind its stream", {"pool-range-behind": then(always)}),
    # ---- Waits of the host, and what goes after them
    Mutant("a wait for the device does not wait", {"wait-device": drop}),
    Mutant("a wait for the streams does not wait", {"wait-streams": drop}),
    Mutant("the end of an arena does not wait", {"wait-at-end": always}),
    Mutant("an idle heap's pages need not be complete", {"idle-pages": always}),
    Mutant("trim does not wait", {"trim-waits": drop}),
    Mutant("what a wait lets others free is not waited for", {"wait-again": never}),
    Mutant("pages go before they are complete", {"page-leaves": without(3)}),
    Mutant("pages of an open pool go", {"pool-pages-leave": always}),
    Mutant("what a pool used goes", {"pool-pages": drop}),
    Mutant("a pool opened again is not protected", {"use-opened": drop}),
    Mutant("a heap of an open pool is not protected", {"use-new-heap": drop}),
    Mutant("trim does not ask for captures", {"trim-captures": never}),
    Mutant("the last rung does not wait", {"rung-waits": drop}),
    Mutant("the last rung does not ask for captures", {"rung-captures": drop}),
    Mutant("a wait for events ends other captures", {"relaxed-wait": drop}),
    Mutant("what is done with is not chosen", {"lend-done": always}),
    # ---- Sources of pools
    Mutant("memory of a source is lent", {"source-lends": without(2)}),
    Mutant("heaps of a source serve others", {"source-serves": drop}),
    Mutant("a released source serves on", {"source-released": drop}),
    Mutant("segments of a source stay after its release", {"source-waits": drop}),
    # ---- Views that go
    Mutant("views are retired without a wait", {"views-wait": drop}),
    Mutant("views in use are retired", {"view-age": always}),
    Mutant("views are retired during a capture", {"views-captures": drop}),
    Mutant("views of an open pool are retired", {"view-in-use": without(2)}),
    Mutant("views with a lost slot are retired under a block", {"view-lost": without(2)}),
    Mutant("places in lost slots are taken", {"range-lost": drop}),
    # Without VMM the number of a segment that is gone serves the next one, at another address.
    Mutant("places of segments that are gone are taken", {"range-moved": drop}),
    Mutant("a view that lost a slot keeps its places", {"view-loses": drop}),
    # ---- Pools that leave the device
    Mutant("what a graph may keep goes with what is free", {"move-frees": always}),
    Mutant("a pool that was captured gives its memory away", {"pool-follows": without(2)}),
    Mutant("views do not come back", {"views-return": without(2)}),
    Mutant("copies of what was freed stay", {"freed-copies": drop}),
    Mutant("a move does not wait", {"move-waits": empty}),
    Mutant("a move does not ask for captures", {"move-captures": never}),
    # ---- Memory without a stream
    Mutant("an epoch asks no stream of the program", {"ask-streams": drop}),
    Mutant("an epoch does not ask the legacy stream", {"ask-legacy": default}),
    Mutant("an epoch forgets streams that are gone", {"ask-gone": default}),
    Mutant("a stream goes without an event", {"gone-event": drop}),
    Mutant("an epoch is complete when one event is", {"all-reached": swap("pop_back", "clear")}),
    Mutant("an epoch is complete at once", {"epoch-open": drop}),
    Mutant("an epoch is closed during a capture", {"epoch-captures": drop}),
    Mutant("borrowed memory is handed out before its wait is over", {"borrowed-settles": empty}),
    Mutant("the program's frees are not waited for", {"frees-wait": always}),
    Mutant("a move goes on beside an open pool", {"move-open-pool": never}),
]
