"""Llama, and what differs from it by configuration only: Mistral (sliding window) and Qwen2 (biases on q, k, v)."""

from functools import partial

import flax.struct
import jax
from jax import Array
from xlaserve_kernels.paged_attention import KVPool

from xlaserve.layers.attention import Attention, AttentionMetadata, AttentionOptions, attention_spec, self_attention
from xlaserve.layers.linear import Embedding, Linear, embed, embedding_spec, linear_spec
from xlaserve.layers.mlp import MLP, gated_mlp, mlp_spec
from xlaserve.layers.norm import RMSNorm, norm_spec, rms_norm
from xlaserve.layers.rotary import rotary_table
from xlaserve.models.config import ModelConfig
from xlaserve.models.forward_batch import AttentionPlan, ForwardBatch


@flax.struct.dataclass
class DecoderLayer:
    input_layernorm: RMSNorm
    self_attn: Attention
    post_attention_layernorm: RMSNorm
    mlp: MLP


@flax.struct.dataclass
class Decoder:
    embed_tokens: Embedding
    layers: tuple[DecoderLayer, ...]
    norm: RMSNorm


@flax.struct.dataclass
class LlamaForCausalLM:
    model: Decoder
    lm_head: Linear | None  # None: tied to embed_tokens


def param_specs(config: ModelConfig, *, qk_norm: bool = False) -> LlamaForCausalLM:
    """The weights under their checkpoint names."""
    size = config.hidden_size
    layer = DecoderLayer(
        input_layernorm=norm_spec(size),
        self_attn=attention_spec(
            size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            qkv_bias=config.qkv_bias,
            o_bias=config.o_bias,
            qk_norm=qk_norm,
        ),
        post_attention_layernorm=norm_spec(size),
        mlp=mlp_spec(size, config.intermediate_size, bias=config.mlp_bias),
    )
    decoder = Decoder(embedding_spec(config.vocab_size, size), (layer,) * config.num_layers, norm_spec(size))
    tied = config.tie_word_embeddings
    return LlamaForCausalLM(decoder, None if tied else linear_spec(config.vocab_size, size, "vocab", "embed"))


def forward(
    params: LlamaForCausalLM,
    config: ModelConfig,
    plan: AttentionPlan,
    kv_caches: tuple[KVPool, ...],
    batch: ForwardBatch,
) -> tuple[Array, tuple[KVPool, ...]]:
    """Returns the normed hidden states of batch.output_tokens, [S, D], and the KV pools (one per layer) written."""
    rotary = rotary_table(batch.positions, config.rope, config.head_dim)
    x = embed(batch.token_ids, params.model.embed_tokens)
    caches = list(kv_caches)
    for i, layer in enumerate(params.model.layers):
        metadata = batch.groups[plan.group[i]]
        x, caches[i] = decoder_layer(x, layer, caches[i], rotary, metadata, config=config, options=plan.options[i])
    x = rms_norm(x[batch.output_tokens], params.model.norm, config.rms_norm_eps)
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
    norm = partial(rms_norm, eps=config.rms_norm_eps)
    attended, kv_cache = self_attention(
        norm(x, p.input_layernorm), p.self_attn, kv_cache, rotary, metadata, options, norm
    )
    x = x + attended
    x = x + gated_mlp(norm(x, p.post_attention_layernorm), p.mlp, config.hidden_act)
    return x, kv_cache
