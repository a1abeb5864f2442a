"""Reading compiled programs: snippets as the TPU's and the GPU's compilers write them, and programs compiled here."""
# ruff: noqa: E501 (so long are their lines)

import jax
import jax.numpy as jnp
import pytest

from benchmarks.aot.hlo import Program, array_bytes

JOINED_WEIGHTS = """\
HloModule jit_body, is_scheduled=true, entry_computation_layout={(bf16[4096,4096]{1,0}, bf16[1024,4096]{1,0})->f32[]}

%wrapped_concatenate_computation (param_0: bf16[4096,4096], param_1: bf16[1024,4096]) -> bf16[5120,4096] {
  %param_0 = bf16[4096,4096]{1,0} parameter(0)
  %param_1 = bf16[1024,4096]{1,0} parameter(1)
  ROOT %concatenate.1 = bf16[5120,4096]{1,0} concatenate(%param_0, %param_1), dimensions={0}
}

%multiplying (param_0.1: bf16[4096,4096]) -> bf16[4096,4096] {
  %param_0.1 = bf16[4096,4096]{1,0} parameter(0)
  %transpose.9 = bf16[4096,4096]{0,1} transpose(%param_0.1), dimensions={1,0}
  ROOT %multiply.1 = bf16[4096,4096]{1,0} multiply(%transpose.9, %param_0.1)
}

ENTRY %main.4 (q.1: bf16[4096,4096], k.1: bf16[1024,4096]) -> f32[64,5120] {
  %q.1 = bf16[4096,4096]{1,0} parameter(0), metadata={op_name="params[\\'q_proj\\'].weight"}
  %k.1 = bf16[1024,4096]{1,0} parameter(1), metadata={op_name="params[\\'k_proj\\'].weight"}
  %loop_fusion = bf16[4096,4096]{1,0} fusion(%q.1), kind=kLoop, calls=%multiplying
  %wrapped_concatenate = bf16[5120,4096]{1,0} fusion(%q.1, %k.1), kind=kLoop, calls=%wrapped_concatenate_computation
  ROOT %custom-call.2 = (f32[64,5120]{1,0}, s8[4194304]{0}) custom-call(%loop_fusion, %wrapped_concatenate), custom_call_target="__cublas$lt$matmul"
}
"""
CACHE = "u16[8193,2,1,16,128]{4,3,2,1,0:T(8,128)(2,1)}"
LOOP = f"""\
HloModule jit_body, input_output_alias={{ {{1}}: (1, {{}}, may-alias) }}

%body (carry: (s32[], {CACHE})) -> (s32[], {CACHE}) {{
  %carry = (s32[]{{:T(128)}}, {CACHE}) parameter(0)
  %get-tuple-element.1 = s32[]{{:T(128)}} get-tuple-element(%carry), index=0
  %get-tuple-element.2 = {CACHE} get-tuple-element(%carry), index=1
  %copy.7 = u16[8193,2,1,16,128]{{4,3,1,2,0:T(8,128)(2,1)}} copy(%get-tuple-element.2)
  ROOT %tuple.2 = (s32[]{{:T(128)}}, {CACHE}) tuple(%get-tuple-element.1, %get-tuple-element.2)
}}

%condition (carry.1: (s32[], {CACHE})) -> pred[] {{
  %carry.1 = (s32[]{{:T(128)}}, {CACHE}) parameter(0)
  ROOT %constant.3 = pred[]{{:T(512)}} constant(false)
}}

%moved_by_another_core (param: {CACHE}) -> {CACHE} {{
  %param = {CACHE} parameter(0)
  ROOT %copy.9 = {CACHE} copy(%param)
}}

ENTRY %main (x: f32[1024,1024], kv: {CACHE}) -> {CACHE} {{
  %x = f32[1024,1024]{{1,0:T(8,128)}} parameter(0), metadata={{op_name="x"}}
  %kv = {CACHE} parameter(1), metadata={{op_name="kv_caches[0]"}}
  %copy-start = (f32[1024,1024]{{1,0:T(8,128)S(1)}}, f32[1024,1024]{{1,0:T(8,128)}}, u32[]{{:S(2)}}) copy-start(%x)
  %copy-done = f32[1024,1024]{{1,0:T(8,128)S(1)}} copy-done(%copy-start)
  %copy-start.1 = (f32[1024,1024]{{1,0:T(8,128)}}, f32[1024,1024]{{1,0:T(8,128)S(1)}}, u32[]{{:S(2)}}) copy-start(%copy-done)
  %copy-done.1 = f32[1024,1024]{{1,0:T(8,128)}} copy-done(%copy-start.1)
  %written = {CACHE} custom-call(%x, %kv), custom_call_target="tpu_custom_call", output_to_operand_aliasing={{{{}}: (1, {{}})}}, metadata={{op_name="jit(body)/write/pallas_call"}}
  %zero = s32[]{{:T(128)}} constant(0)
  %tuple.1 = (s32[]{{:T(128)}}, {CACHE}) tuple(%zero, %written)
  %while.1 = (s32[]{{:T(128)}}, {CACHE}) while(%tuple.1), condition=%condition, body=%body
  %start = (({CACHE}), {CACHE}, u32[]{{:S(8)}}) call-start(), async_execution_thread="sparsecore", to_apply=%moved_by_another_core
  %all-reduce-start = f32[1024,1024]{{1,0:T(8,128)}} all-reduce-start(%copy-done.1), to_apply=%condition, metadata={{op_name="jit(body)/jit(decoder_layer)/dot"}}
  %all-reduce-done = f32[1024,1024]{{1,0:T(8,128)}} all-reduce-done(%all-reduce-start)
  ROOT %get-tuple-element.5 = {CACHE} get-tuple-element(%while.1), index=1
}}
"""


def test_joined_weights_are_found_and_named():
    (found,) = Program(JOINED_WEIGHTS).movements()
    assert (found.name, found.opcode, found.bytes) == ("wrapped_concatenate", "concatenate", 5120 * 4096 * 2)
    assert found.sources == {"params['q_proj'].weight", "params['k_proj'].weight"}


def test_a_fusion_that_computes_is_no_movement():
    program = Program(JOINED_WEIGHTS)
    assert program.fusions() == 2
    assert "loop_fusion" not in {move.name for move in program.movements()}


def test_copies_in_loops_and_on_other_cores_are_traced_through_kernels_that_write_in_place():
    moves = {move.name: move for move in Program(LOOP).movements()}
    assert moves.keys() == {"copy.7", "copy.9", "copy-done.1"}  # into VMEM, S(1), is no movement: it is a read
    assert moves["copy.7"].sources == moves["copy.9"].sources == {"kv_caches[0]"}
    assert moves["copy.7"].bytes == 8193 * 2 * 16 * 128 * 2
    assert moves["copy-done.1"].sources == {"x"}


def test_small_movements_do_not_count():
    size = 8193 * 2 * 16 * 128 * 2
    assert {move.name for move in Program(LOOP).movements(more_than=size - 1)} == {"copy.7", "copy.9"}
    assert Program(LOOP).movements(more_than=size) == []


def test_collectives_and_kernels():
    program = Program(LOOP)
    (reduce,) = program.collectives()
    assert reduce.op_name == "jit(body)/jit(decoder_layer)/dot"
    assert list(program.kernels()) == ["write"]


@pytest.mark.parametrize(
    ("text", "everywhere", "in_main_memory"),
    [
        ("bf16[64,4096]{1,0:T(8,128)(2,1)}", 64 * 4096 * 2, 64 * 4096 * 2),
        ("(bf16[64]{0:T(128)S(1)}, /*index=1*/f8e4m3fn[3,5]{1,0})", 128 + 15, 15),
        ("pred[7]{0}", 7, 7),
        ("s4[16]{0}", 8, 8),
        ("f32[]", 4, 4),
    ],
)
def test_sizes(text, everywhere, in_main_memory):
    assert array_bytes(text) == everywhere
    assert array_bytes(text, on_chip=False) == in_main_memory


def test_text_that_is_no_program_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        Program("ThunkSequence")


def compiled(function, *shapes, donate=()) -> Program:
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    return Program(jax.jit(function, donate_argnums=donate).lower(*arguments).compile().as_text())


def test_a_transposed_weight_of_a_program_compiled_here():
    found = compiled(lambda weight, x: (weight.T, x + 1), (512, 2048), (8, 8)).movements()
    assert {(move.bytes, move.sources) for move in found} == {(512 * 2048 * 4, frozenset({"weight"}))}


def test_a_pool_written_here_is_copied_only_if_not_donated():
    def write(pool, row):
        return pool.at[3].set(row)

    assert compiled(write, (1024, 1024), (1024,), donate=0).movements() == []
    (found,) = compiled(write, (1024, 1024), (1024,)).movements()
    assert (found.opcode, found.sources) == ("copy", {"pool"})


def test_a_pool_that_a_loop_carries_here():
    def walk(pool, rows):
        return jax.lax.fori_loop(0, rows.shape[0], lambda i, pool: pool.at[i].set(jnp.flip(rows[i])), pool)

    assert compiled(walk, (1024, 1024), (8, 1024), donate=0).movements() == []
    (found,) = compiled(walk, (1024, 1024), (8, 1024)).movements()
    assert found.sources == {"pool"}


@pytest.mark.parametrize(
    "branches", ["true_computation=%yes, false_computation=%no", "branch_computations={%no, %yes}"]
)
def test_the_branch_for_false_comes_first(branches):
    """The GPU's compiler names them, the TPU's numbers them."""
    text = f"""\
HloModule jit_head

%yes (x: f32[8]) -> f32[8] {{
  ROOT %x = f32[8]{{0}} parameter(0)
}}

%no (y: f32[8]) -> f32[8] {{
  ROOT %y = f32[8]{{0}} parameter(0)
}}

ENTRY %main (wanted: pred[], z: f32[8]) -> f32[8] {{
  %wanted = pred[] parameter(0)
  %z = f32[8]{{0}} parameter(1)
  ROOT %cond = f32[8]{{0}} conditional(%wanted, %z, %z), {branches}, metadata={{op_name="jit(head)/cut/cond"}}
}}
"""
    program = Program(text)
    assert program.roots["main"].called == ("no", "yes")
    assert {each.computation for each in program.executed()} == {"main", "no", "yes"}
