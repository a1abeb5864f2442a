"""Self-attention over the paged KV pool: projections, rotary embedding, KV write, attention, output projection."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import flax.struct
import jax
from jax import Array
from jax.sharding import Mesh
from xlaserve_kernels.kv_write import kv_write
from xlaserve_kernels.paged_attention import KVLayout, KVPool, paged_attention

from xlaserve.layers.linear import Linear, linear, linear_spec, linears
from xlaserve.layers.norm import RMSNorm, norm_spec
from xlaserve.layers.rotary import apply_rotary
from xlaserve.sharding import RULES, PartitionSpec


@flax.struct.dataclass
class Attention:
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None


@flax.struct.dataclass
class AttentionMetadata:
    """Where this step's tokens stand, for one layer group. Row r's queries are its context's last ones."""

    block_tables: Array  # int32 [R, W]
    slot_mapping: Array  # int32 [T]
    query_start_loc: Array  # int32 [R + 1]
    seq_lens: Array  # int32 [R], context with this step's tokens


@dataclass(frozen=True)
class AttentionOptions:
    """What is fixed when the program is compiled."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    backend: str
    layout: KVLayout  # of one device's heads
    sliding_window: int | None = None
    mesh: Mesh | None = None  # of several devices, which share the heads: tensor parallel


def attention_spec(
    hidden_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    qk_norm: bool = False,
    unit_offset: bool = False,
) -> Attention:
    """`qk_norm`: per-head norms of queries and keys; `unit_offset`: these are Gemma's."""
    q_dim, kv_dim = num_heads * head_dim, num_kv_heads * head_dim
    return Attention(
        q_proj=linear_spec(q_dim, hidden_size, "heads", "embed", bias=qkv_bias),
        k_proj=linear_spec(kv_dim, hidden_size, "kv_heads", "embed", bias=qkv_bias),
        v_proj=linear_spec(kv_dim, hidden_size, "kv_heads", "embed", bias=qkv_bias),
        o_proj=linear_spec(hidden_size, q_dim, "embed", "heads", bias=o_bias),
        q_norm=norm_spec(head_dim, unit_offset=unit_offset) if qk_norm else None,
        k_norm=norm_spec(head_dim, unit_offset=unit_offset) if qk_norm else None,
    )


def self_attention(
    x: Array,
    p: Attention,
    kv_cache: KVPool,
    rotary: tuple[Array, Array],
    metadata: AttentionMetadata,
    options: AttentionOptions,
    norm: Callable[[Array, RMSNorm], Array],
) -> tuple[Array, KVPool]:
    """x [T, D] -> [T, D] and the KV pool with this step's tokens written. `norm` applies q_norm and k_norm per head.

    With a mesh, each device has a pool of its own, for its heads: the pools are concatenated along their first axis.
    """
    projected = linears(x, (p.q_proj, p.k_proj, p.v_proj))
    q, k, v = (y.reshape(x.shape[0], -1, options.head_dim) for y in projected)  # [T, N, H], [T, K, H], [T, K, H]
    if p.q_norm is not None and p.k_norm is not None:
        q, k = norm(q, p.q_norm), norm(k, p.k_norm)
    q, k = apply_rotary(q, rotary), apply_rotary(k, rotary)
    attend = partial(_write_and_attend, options=options)
    if options.mesh is not None:
        heads, pools, all_of_it = PartitionSpec(None, RULES["heads"]), PartitionSpec(RULES["kv_heads"]), PartitionSpec()
        attend = jax.shard_map(
            attend, mesh=options.mesh, in_specs=(heads, heads, heads, pools, all_of_it), out_specs=(heads, pools),
            check_vma=False,  # Pallas kernels do not say how their results vary over the devices
        )  # fmt: skip
    out, kv_cache = attend(q, k, v, kv_cache, metadata)
    return linear(out.reshape(x.shape[0], -1), p.o_proj), kv_cache


def _write_and_attend(
    q: Array, k: Array, v: Array, kv_cache: KVPool, metadata: AttentionMetadata, *, options: AttentionOptions
) -> tuple[Array, KVPool]:
    """One device's share: q [T, N, H], k and v [T, K, H] of its heads -> [T, N, H] and its KV pool, written."""
    kv_cache = kv_write(
        kv_cache,
        k,
        v,
        metadata.slot_mapping,
        metadata.query_start_loc,
        backend=options.backend,
        layout=options.layout,
    )
    out = paged_attention(
        q,
        kv_cache,
        metadata.block_tables,
        metadata.query_start_loc,
        metadata.seq_lens,
        backend=options.backend,
        layout=options.layout,
        scale=options.scale,
        sliding_window=options.sliding_window,
    )
    return out, kv_cache
