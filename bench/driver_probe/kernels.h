// The probe's kernels as PTX, which the driver compiles itself, so no toolkit is needed to build or run it.
#pragma once

namespace spillway::probe {

// spin(ns): runs for so long. fill(dst, words, value): 32-bit words. copy(dst, src, quads): 16 bytes at a
// time.
inline constexpr const char* kKernels = R"ptx(
.version 7.0
.target sm_70
.address_size 64

.visible .entry spw_spin(.param .u64 spin_ns)
{
  .reg .u64 %rd<5>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [spin_ns];
  mov.u64 %rd2, %globaltimer;
  add.u64 %rd3, %rd2, %rd1;
SPIN_AGAIN:
  mov.u64 %rd4, %globaltimer;
  setp.lt.u64 %p1, %rd4, %rd3;
  @%p1 bra SPIN_AGAIN;
  ret;
}

.visible .entry spw_fill(.param .u64 fill_dst, .param .u64 fill_words, .param .u32 fill_value)
{
  .reg .u64 %rd<8>;
  .reg .u32 %r<6>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [fill_dst];
  ld.param.u64 %rd2, [fill_words];
  ld.param.u32 %r1, [fill_value];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mul.wide.u32 %rd3, %r2, %r3;
  cvt.u64.u32 %rd4, %r4;
  add.u64 %rd3, %rd3, %rd4;
  mov.u32 %r5, %nctaid.x;
  mul.wide.u32 %rd5, %r5, %r3;
FILL_AGAIN:
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra FILL_DONE;
  shl.b64 %rd6, %rd3, 2;
  add.u64 %rd6, %rd1, %rd6;
  st.global.u32 [%rd6], %r1;
  add.u64 %rd3, %rd3, %rd5;
  bra FILL_AGAIN;
FILL_DONE:
  ret;
}

.visible .entry spw_copy(.param .u64 copy_dst, .param .u64 copy_src, .param .u64 copy_quads)
{
  .reg .u64 %rd<10>;
  .reg .u32 %r<10>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [copy_dst];
  ld.param.u64 %rd2, [copy_src];
  ld.param.u64 %rd3, [copy_quads];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mul.wide.u32 %rd4, %r1, %r2;
  cvt.u64.u32 %rd5, %r3;
  add.u64 %rd4, %rd4, %rd5;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %rd6, %r4, %r2;
COPY_AGAIN:
  setp.ge.u64 %p1, %rd4, %rd3;
  @%p1 bra COPY_DONE;
  shl.b64 %rd7, %rd4, 4;
  add.u64 %rd8, %rd2, %rd7;
  ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd8];
  add.u64 %rd9, %rd1, %rd7;
  st.global.v4.u32 [%rd9], {%r5, %r6, %r7, %r8};
  add.u64 %rd4, %rd4, %rd6;
  bra COPY_AGAIN;
COPY_DONE:
  ret;
}
)ptx";

}  // namespace spillway::probe
