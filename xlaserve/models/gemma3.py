"""Gemma 3, text: sliding and full layers with a rotary base each, norms before and after both halves of a layer."""

from functools import partial

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array
from xlaserve_kernels.paged_attention import KVPool

from xlaserve.layers.attention import Attention, AttentionMetadata, AttentionOptions, attention_spec, self_attention
from xlaserve.layers.linear import Embedding, Linear, embed, embedding_spec, linear_spec
from xlaserve.layers.mlp import MLP, gated_mlp, mlp_spec
from xlaserve.layers.norm import RMSNorm, norm_spec, rms_norm_unit_offset
from xlaserve.layers.rotary import rotary_table
from xlaserve.models.config import ModelConfig
from xlaserve.models.forward_batch import AttentionPlan, ForwardBatch


@flax.struct.dataclass
class DecoderLayer:
    input_layernorm: RMSNorm
    self_attn: Attention
    post_attention_layernorm: RMSNorm
    pre_feedforward_layernorm: RMSNorm
    mlp: MLP
    post_feedforward_layernorm: RMSNorm


@flax.struct.dataclass
class Decoder:
    embed_tokens: Embedding
    layers: tuple[DecoderLayer, ...]
    norm: RMSNorm


@flax.struct.dataclass
class Gemma3ForCausalLM:
    model: Decoder
    lm_head: Linear | None  # None: tied to embed_tokens


def param_specs(config: ModelConfig) -> Gemma3ForCausalLM:
    """The weights under their checkpoint names."""
    norm = norm_spec(config.hidden_size, unit_offset=True)
    layer = DecoderLayer(
        input_layernorm=norm,
        self_attn=attention_spec(
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            qkv_bias=config.qkv_bias,
            o_bias=config.o_bias,
            qk_norm=True,
            unit_offset=True,
        ),
        post_attention_layernorm=norm,
        pre_feedforward_layernorm=norm,
        mlp=mlp_spec(config.hidden_size, config.intermediate_size, bias=config.mlp_bias),
        post_feedforward_layernorm=norm,
    )
    decoder = Decoder(embedding_spec(config.vocab_size, config.hidden_size), (layer,) * config.num_layers, norm)
    tied = config.tie_word_embeddings
    return Gemma3ForCausalLM(
        decoder, None if tied else linear_spec(config.vocab_size, config.hidden_size, "vocab", "embed")
    )


def forward(
    params: Gemma3ForCausalLM,
    config: ModelConfig,
    plan: AttentionPlan,
    kv_caches: tuple[KVPool, ...],
    batch: ForwardBatch,
) -> tuple[Array, tuple[KVPool, ...]]:
    """Returns the normed hidden states of batch.output_tokens, [S, D], and the KV pools (one per layer) written."""
    rotary = {
        "full": rotary_table(batch.positions, config.rope, config.head_dim),
        "sliding": rotary_table(batch.positions, config.rope_sliding, config.head_dim),
    }
    x = embed(batch.token_ids, params.model.embed_tokens)
    x = x * jnp.asarray(config.hidden_size**0.5, x.dtype)  # rounded to the model's dtype, as it was trained
    caches = list(kv_caches)
    for i, layer in enumerate(params.model.layers):
        table, metadata = rotary[config.layer_types[i]], batch.groups[plan.group[i]]
        x, caches[i] = decoder_layer(x, layer, caches[i], table, metadata, config=config, options=plan.options[i])
    x = rms_norm_unit_offset(x[batch.output_tokens], params.model.norm, config.rms_norm_eps)
    return x, tuple(caches)


@partial(jax.jit, static_argnames=("config", "options"))  # so that like layers are traced once; XLA inlines the call
def decoder_layer(
    x: Array,
    p: DecoderLayer,
    kv_cache: KVPool,
    rotary: tuple[Array, Array],
    metadata: AttentionMetadata,
    *,
    config: ModelConfig,
    options: AttentionOptions,
) -> tuple[Array, KVPool]:
    """x [T, D] -> [T, D], and the layer's KV pool written."""
    norm = partial(rms_norm_unit_offset, eps=config.rms_norm_eps)
    attended, kv_cache = self_attention(
        norm(x, p.input_layernorm), p.self_attn, kv_cache, rotary, metadata, options, norm
    )
    x = x + norm(attended, p.post_attention_layernorm)
    fed = gated_mlp(norm(x, p.pre_feedforward_layernorm), p.mlp, config.hidden_act)
    return x + norm(fed, p.post_feedforward_layernorm), kv_cache
