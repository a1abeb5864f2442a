"""Counting what a compiled program moves."""

from benchmarks.aot.hlo import Program
from benchmarks.aot.traffic import traffic

PROGRAM = """
%sliced (p0: f32[100,8], p1: s32[]) -> f32[1,8] {
  %p0 = f32[100,8]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice = f32[1,8]{1,0} dynamic-slice(%p0, %p1, %zero), dynamic_slice_sizes={1,8}
}

%body (carry: (f32[1,8], f32[100,8])) -> (f32[1,8], f32[100,8]) {
  %carry = (f32[1,8]{1,0}, f32[100,8]{1,0}) parameter(0)
  %table = f32[100,8]{1,0} get-tuple-element(%carry), index=1
  %step = s32[] constant(3)
  %row = f32[1,8]{1,0} fusion(%table, %step), kind=kLoop, calls=%sliced
  ROOT %next = (f32[1,8]{1,0}, f32[100,8]{1,0}) tuple(%row, %table)
}

ENTRY %main (x: bf16[64,32], w: s8[16,32], t: f32[100,8]) -> bf16[64,16] {
  %x = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(0)
  %w = s8[16,32]{1,0:T(32,128)(4,1)} parameter(1)
  %start = (s8[16,32]{1,0:T(32,128)(4,1)S(1)}, s8[16,32]{1,0:T(32,128)(4,1)}, u32[]{:S(2)}) copy-start(%w)
  %near = s8[16,32]{1,0:T(32,128)(4,1)S(1)} copy-done(%start)
  %same = bf16[64,32]{1,0:T(8,128)(2,1)} bitcast(%x)
  %t = f32[100,8]{1,0} parameter(2)
  %one = f32[1,8]{1,0} constant({...})
  %pair = (f32[1,8]{1,0}, f32[100,8]{1,0}) tuple(%one, %t)
  %loop = (f32[1,8]{1,0}, f32[100,8]{1,0}) while(%pair), body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %y = bf16[64,16]{1,0:T(8,128)(2,1)} custom-call(%same, %near), custom_call_target="tpu_custom_call"
}
"""


def test_every_kind_of_instruction():
    prefetch = 16 * 32
    product = 64 * 32 * 2 + 64 * 16 * 2  # the weight lies in VMEM
    loop = 5 * (8 * 4 + 8 * 4 + 4)  # the row read, the row written, the step
    assert traffic(Program(PROGRAM)) == (2 + 5, prefetch + product + loop)
