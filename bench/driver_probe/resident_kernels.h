// Kernels whose reader is on the device before the writer is done, as PTX that the driver compiles.
//
// Every load that is compared is an ordinary one, which may come out of a multiprocessor's own cache; values
// and flags are volatile, which never do.
#pragma once

namespace spillway::probe {

// late_write(dst, value, ns, trigger): each thread lets the next launch begin, is busy for so long, then
// stores *value in its word. late_read(src, value, wrong, warm, wait, fence): each thread loads its word
// first where warm, waits for the launch before where told, and counts a word that is not *value.
// bump(value): adds one. For devices of compute capability 9.0 and later.
inline constexpr const char* kDependentKernels = R"ptx(
.version 7.8
.target sm_90
.address_size 64

.visible .entry spw_bump(.param .u64 bump_value)
{
  .reg .u64 %rd<2>;
  .reg .u32 %r<2>;
  ld.param.u64 %rd1, [bump_value];
  cvta.to.global.u64 %rd1, %rd1;
  ld.volatile.global.u32 %r1, [%rd1];
  add.u32 %r1, %r1, 1;
  st.volatile.global.u32 [%rd1], %r1;
  ret;
}

.visible .entry spw_late_write(.param .u64 write_dst, .param .u64 write_value, .param .u64 write_ns,
                               .param .u32 write_trigger)
{
  .reg .u64 %rd<8>;
  .reg .u32 %r<6>;
  .reg .pred %p<3>;
  ld.param.u64 %rd1, [write_dst];
  ld.param.u64 %rd2, [write_value];
  ld.param.u64 %rd3, [write_ns];
  ld.param.u32 %r1, [write_trigger];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra WRITE_BUSY;
  griddepcontrol.launch_dependents;
WRITE_BUSY:
  mov.u64 %rd4, %globaltimer;
  add.u64 %rd5, %rd4, %rd3;
WRITE_AGAIN:
  mov.u64 %rd4, %globaltimer;
  setp.lt.u64 %p2, %rd4, %rd5;
  @%p2 bra WRITE_AGAIN;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r2, %r2, %r3, %r4;
  mul.wide.u32 %rd6, %r2, 4;
  add.u64 %rd6, %rd1, %rd6;
  ld.volatile.global.u32 %r5, [%rd2];
  st.global.u32 [%rd6], %r5;
  ret;
}

.visible .entry spw_late_read(.param .u64 read_src, .param .u64 read_value, .param .u64 read_wrong,
                              .param .u32 read_warm, .param .u32 read_wait, .param .u32 read_fence)
{
  .reg .u64 %rd<6>;
  .reg .u32 %r<10>;
  .reg .pred %p<6>;
  ld.param.u64 %rd1, [read_src];
  ld.param.u64 %rd2, [read_value];
  ld.param.u64 %rd3, [read_wrong];
  ld.param.u32 %r1, [read_warm];
  ld.param.u32 %r2, [read_wait];
  ld.param.u32 %r3, [read_fence];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  cvta.to.global.u64 %rd3, %rd3;
  mov.u32 %r4, %ctaid.x;
  mov.u32 %r5, %ntid.x;
  mov.u32 %r6, %tid.x;
  mad.lo.u32 %r4, %r4, %r5, %r6;
  mul.wide.u32 %rd4, %r4, 4;
  add.u64 %rd4, %rd1, %rd4;
  mov.u32 %r7, 0;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra READ_WAIT;
  ld.global.ca.u32 %r7, [%rd4];
READ_WAIT:
  setp.eq.u32 %p2, %r2, 0;
  @%p2 bra READ_FENCE;
  griddepcontrol.wait;
READ_FENCE:
  setp.eq.u32 %p3, %r3, 0;
  @%p3 bra READ_NOW;
  fence.proxy.alias;
READ_NOW:
  ld.global.ca.u32 %r8, [%rd4];
  ld.volatile.global.u32 %r9, [%rd2];
  setp.eq.u32 %p4, %r8, %r9;
  @%p4 bra READ_KEEP;
  red.global.add.u64 [%rd3], 1;
READ_KEEP:
  setp.ne.u32 %p5, %r7, 0xffffffff;
  @%p5 bra READ_DONE;
  red.global.add.u64 [%rd3+8], 1;
READ_DONE:
  ret;
}
)ptx";

// beside_read(src, ready, flag, round, wrong, fence): each block loads its words, adds one to *ready, waits
// for *flag to be `round`, and counts words that are not. beside_write(dst, words, ready, wanted, flag,
// round, wrong): one block, which waits for *ready to be `wanted`, stores, and sets *flag. Both count in
// wrong[1] when they gave up waiting. edge(dst, begin, end, value, times, go, wrong): stores so often in
// words from begin to end, from when both of two kernels have begun.
inline constexpr const char* kBesideKernels = R"ptx(
.version 7.5
.target sm_70
.address_size 64

.visible .entry spw_beside_read(.param .u64 read_src, .param .u64 read_ready, .param .u64 read_flag,
                                .param .u32 read_round, .param .u64 read_wrong, .param .u32 read_fence)
{
  .reg .u64 %rd<8>;
  .reg .u32 %r<12>;
  .reg .pred %p<8>;
  ld.param.u64 %rd1, [read_src];
  ld.param.u64 %rd2, [read_ready];
  ld.param.u64 %rd3, [read_flag];
  ld.param.u32 %r1, [read_round];
  ld.param.u64 %rd4, [read_wrong];
  ld.param.u32 %r2, [read_fence];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  cvta.to.global.u64 %rd3, %rd3;
  cvta.to.global.u64 %rd4, %rd4;
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.u32 %r3, %r3, %r4, %r5;
  mul.wide.u32 %rd5, %r3, 4;
  add.u64 %rd5, %rd1, %rd5;
  ld.global.ca.u32 %r6, [%rd5];
  bar.sync 0;
  setp.ne.u32 %p1, %r5, 0;
  @%p1 bra READ_GO;
  membar.gl;
  red.global.add.u32 [%rd2], 1;
  mov.u32 %r7, 0;
READ_AGAIN:
  ld.volatile.global.u32 %r8, [%rd3];
  setp.eq.u32 %p2, %r8, %r1;
  @%p2 bra READ_FLAG;
  add.u32 %r7, %r7, 1;
  setp.lt.u32 %p3, %r7, 400000;
  @%p3 bra READ_AGAIN;
  red.global.add.u64 [%rd4+8], 1;
READ_FLAG:
  membar.gl;
READ_GO:
  bar.sync 0;
  setp.eq.u32 %p4, %r2, 0;
  @%p4 bra READ_NOW;
  fence.proxy.alias;
READ_NOW:
  ld.global.ca.u32 %r9, [%rd5];
  setp.eq.u32 %p5, %r9, %r1;
  @%p5 bra READ_KEEP;
  red.global.add.u64 [%rd4], 1;
READ_KEEP:
  setp.ne.u32 %p6, %r6, 0xffffffff;
  @%p6 bra READ_DONE;
  red.global.add.u64 [%rd4+16], 1;
READ_DONE:
  ret;
}

.visible .entry spw_beside_write(.param .u64 write_dst, .param .u32 write_words, .param .u64 write_ready,
                                 .param .u32 write_wanted, .param .u64 write_flag, .param .u32 write_round,
                                 .param .u64 write_wrong)
{
  .reg .u64 %rd<8>;
  .reg .u32 %r<10>;
  .reg .pred %p<8>;
  ld.param.u64 %rd1, [write_dst];
  ld.param.u32 %r1, [write_words];
  ld.param.u64 %rd2, [write_ready];
  ld.param.u32 %r2, [write_wanted];
  ld.param.u64 %rd3, [write_flag];
  ld.param.u32 %r3, [write_round];
  ld.param.u64 %rd4, [write_wrong];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  cvta.to.global.u64 %rd3, %rd3;
  cvta.to.global.u64 %rd4, %rd4;
  mov.u32 %r4, %tid.x;
  mov.u32 %r5, %ntid.x;
  setp.ne.u32 %p1, %r4, 0;
  @%p1 bra WRITE_GO;
  mov.u32 %r6, 0;
WRITE_AGAIN:
  ld.volatile.global.u32 %r7, [%rd2];
  setp.ge.u32 %p2, %r7, %r2;
  @%p2 bra WRITE_GO;
  add.u32 %r6, %r6, 1;
  setp.lt.u32 %p3, %r6, 400000;
  @%p3 bra WRITE_AGAIN;
  red.global.add.u64 [%rd4+8], 1;
WRITE_GO:
  bar.sync 0;
  mov.u32 %r8, %r4;
WRITE_NEXT:
  setp.ge.u32 %p4, %r8, %r1;
  @%p4 bra WRITE_STORED;
  mul.wide.u32 %rd5, %r8, 4;
  add.u64 %rd5, %rd1, %rd5;
  st.global.u32 [%rd5], %r3;
  add.u32 %r8, %r8, %r5;
  bra WRITE_NEXT;
WRITE_STORED:
  membar.gl;
  bar.sync 0;
  @%p1 bra WRITE_DONE;
  membar.gl;
  st.volatile.global.u32 [%rd3], %r3;
WRITE_DONE:
  ret;
}

.visible .entry spw_edge(.param .u64 edge_dst, .param .u32 edge_begin, .param .u32 edge_end,
                         .param .u32 edge_value, .param .u32 edge_times, .param .u64 edge_go,
                         .param .u64 edge_wrong)
{
  .reg .u64 %rd<6>;
  .reg .u32 %r<14>;
  .reg .pred %p<8>;
  ld.param.u64 %rd1, [edge_dst];
  ld.param.u32 %r1, [edge_begin];
  ld.param.u32 %r2, [edge_end];
  ld.param.u32 %r3, [edge_value];
  ld.param.u32 %r4, [edge_times];
  ld.param.u64 %rd2, [edge_go];
  ld.param.u64 %rd3, [edge_wrong];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  cvta.to.global.u64 %rd3, %rd3;
  mov.u32 %r5, %ctaid.x;
  mov.u32 %r6, %ntid.x;
  mov.u32 %r7, %tid.x;
  mov.u32 %r8, %nctaid.x;
  mul.lo.u32 %r8, %r8, %r6;
  setp.ne.u32 %p1, %r7, 0;
  @%p1 bra EDGE_GO;
  setp.ne.u32 %p2, %r5, 0;
  @%p2 bra EDGE_WAIT;
  red.global.add.u32 [%rd2], 1;
EDGE_WAIT:
  mov.u32 %r9, 0;
EDGE_AGAIN:
  ld.volatile.global.u32 %r10, [%rd2];
  setp.ge.u32 %p3, %r10, 2;
  @%p3 bra EDGE_GO;
  add.u32 %r9, %r9, 1;
  setp.lt.u32 %p4, %r9, 400000;
  @%p4 bra EDGE_AGAIN;
  red.global.add.u64 [%rd3+8], 1;
EDGE_GO:
  bar.sync 0;
  mad.lo.u32 %r11, %r5, %r6, %r7;
  add.u32 %r11, %r11, %r1;
EDGE_ROUND:
  setp.eq.u32 %p5, %r4, 0;
  @%p5 bra EDGE_DONE;
  sub.u32 %r4, %r4, 1;
  mov.u32 %r12, %r11;
EDGE_NEXT:
  setp.ge.u32 %p6, %r12, %r2;
  @%p6 bra EDGE_ROUND;
  mul.wide.u32 %rd4, %r12, 4;
  add.u64 %rd4, %rd1, %rd4;
  st.volatile.global.u32 [%rd4], %r3;
  add.u32 %r12, %r12, %r8;
  bra EDGE_NEXT;
EDGE_DONE:
  ret;
}
)ptx";

}  // namespace spillway::probe
