"""A model's architecture in our words, made from a Hugging Face config.json (a GGUF file is translated into one)."""

from dataclasses import dataclass
from typing import Any, Literal

from xlaserve.models.fields import Fields
from xlaserve.models.rope_config import RopeConfig, parse_gemma3_ropes, parse_rope

LayerType = Literal["full", "sliding"]


@dataclass(frozen=True)
class ModelConfig:
    """Hashable, so that it can be a static argument of the compiled programs."""

    family: Literal["llama", "qwen3", "gemma3"]  # llama covers Llama, Mistral and Qwen2
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    hidden_act: Literal["silu", "gelu_pytorch_tanh"]
    tie_word_embeddings: bool
    max_position_embeddings: int
    layer_types: tuple[LayerType, ...]
    rope: RopeConfig
    rope_sliding: RopeConfig  # of the sliding layers; equal to `rope` in all families but Gemma 3
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None  # tokens seen, the current one included; of the sliding layers
    query_scale: float = 1.0  # multiplies q.k: head_dim**-0.5, or query_pre_attn_scalar**-0.5
    final_logit_softcap: float | None = None
    eos_token_ids: tuple[int, ...] = ()  # of config.json only; the union is made in engine/tokenizer.py
    bos_token_id: int | None = None
    checkpoint_dtype: str = "float32"  # torch_dtype / dtype of config.json


@dataclass(frozen=True)
class _Family:
    """What transformers assumes of a model_type when config.json lacks the key (a null means what None says here)."""

    family: Literal["llama", "qwen3", "gemma3"]
    architecture: str
    max_position_embeddings: int
    num_kv_heads: int | None = None  # None: as many as query heads
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    act_key: str = "hidden_act"
    act: str = "silu"
    tied: bool = False


_FAMILIES = {
    "llama": _Family("llama", "LlamaForCausalLM", 2048),
    "mistral": _Family("llama", "MistralForCausalLM", 131072, num_kv_heads=8),
    "qwen2": _Family("llama", "Qwen2ForCausalLM", 32768, num_kv_heads=32),
    "qwen3": _Family("qwen3", "Qwen3ForCausalLM", 32768, num_kv_heads=32, head_dim=128),
    "gemma3_text": _Family(
        "gemma3",
        "Gemma3ForCausalLM",
        131072,
        num_kv_heads=4,
        head_dim=256,
        act_key="hidden_activation",
        act="gelu_pytorch_tanh",
        tied=True,
    ),
}
_DTYPES = ("float32", "bfloat16", "float16")


def parse_config(hf: dict[str, Any], where: str) -> ModelConfig:
    """Checks a Hugging Face config (of transformers 4 or 5) and puts it in our words.

    `where` is the file it came from. Absent keys mean what they mean in transformers. Raises CheckpointError naming
    the file, the key, what was found and what is allowed.
    """
    config = Fields(hf, where)
    model_type = _model_type(config)
    known = _FAMILIES[model_type]
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_layers = config.integer("num_hidden_layers")
    max_position_embeddings = config.integer("max_position_embeddings", known.max_position_embeddings)
    num_kv_heads = _num_kv_heads(config, known, num_heads)
    head_dim = _head_dim(config, known, hidden_size, num_heads)
    if known.family == "gemma3":
        rope, rope_sliding = parse_gemma3_ropes(config, max_position_embeddings)
    else:
        rope = rope_sliding = parse_rope(config, max_position_embeddings)
    layer_types, sliding_window = _attention_windows(config, model_type, num_layers)
    qkv_bias, o_bias = _attention_biases(config, model_type)
    return ModelConfig(
        family=known.family,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        hidden_act=config.choice(known.act_key, ("silu", "gelu_pytorch_tanh"), known.act),
        tie_word_embeddings=config.boolean("tie_word_embeddings", known.tied),
        max_position_embeddings=max_position_embeddings,
        layer_types=layer_types,
        rope=rope,
        rope_sliding=rope_sliding,
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=model_type == "llama" and config.boolean("mlp_bias", False),
        sliding_window=sliding_window,
        query_scale=(config.number("query_pre_attn_scalar", 256.0) if known.family == "gemma3" else head_dim) ** -0.5,
        eos_token_ids=config.token_ids("eos_token_id"),
        bos_token_id=config.integer("bos_token_id", None, minimum=0),
        checkpoint_dtype=_dtype(config),
        **_soft_caps(config, known),
    )


def _model_type(config: Fields) -> str:
    supported = f"one of {', '.join(_FAMILIES)}"
    model_type, architectures = config.values.get("model_type"), config.values.get("architectures") or []
    if model_type == "gemma3" or "Gemma3ForConditionalGeneration" in architectures:
        raise config.error(
            "model_type", f"{supported}: of Gemma 3 only the text models are supported, not those with images"
        )
    by_architecture = {known.architecture: name for name, known in _FAMILIES.items()}
    if not isinstance(architectures, list) or not by_architecture.keys() >= set(map(str, architectures)):
        raise config.error("architectures", f"one of {', '.join(by_architecture)}")
    if model_type is None and architectures:
        return by_architecture[architectures[0]]
    if model_type not in _FAMILIES:
        raise config.error("model_type", supported)
    return model_type


def _num_kv_heads(config: Fields, known: _Family, num_heads: int) -> int:
    absent = "num_key_value_heads" not in config.values
    num_kv_heads = config.integer("num_key_value_heads", (absent and known.num_kv_heads) or num_heads)
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    return num_kv_heads


def _head_dim(config: Fields, known: _Family, hidden_size: int, num_heads: int) -> int:
    head_dim = config.integer("head_dim", None if "head_dim" in config.values else known.head_dim)
    if head_dim is None:
        if hidden_size % num_heads:
            raise config.error("head_dim", f"a value, as hidden_size {hidden_size} is no multiple of {num_heads} heads")
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise config.error("head_dim", f"an even head size for the rotary embedding, not {head_dim}")
    return head_dim


def _attention_biases(config: Fields, model_type: str) -> tuple[bool, bool]:
    """(of q, k and v; of o). Qwen2 always has the first, Mistral neither, and neither has a key for it."""
    if model_type in ("qwen2", "mistral"):
        return model_type == "qwen2", False
    bias = config.boolean("attention_bias", False)
    return bias, bias


def _attention_windows(config: Fields, model_type: str, num_layers: int) -> tuple[tuple[LayerType, ...], int | None]:
    """The type of each layer, and the window of the sliding ones (None when there are none)."""
    if model_type == "llama":
        return tuple("full" for _ in range(num_layers)), None
    window = None
    if model_type not in ("qwen2", "qwen3") or config.boolean("use_sliding_window", False):
        absent_means = None if "sliding_window" in config.values else 4096
        window = config.integer("sliding_window", absent_means)
    if model_type == "gemma3_text" and config.boolean("use_bidirectional_attention", False):
        raise config.error("use_bidirectional_attention", "false: only causal models are supported")
    layer_types = _layer_types(config, model_type, window, num_layers)
    if "sliding" not in layer_types:
        return layer_types, None
    if window is None:
        raise config.error("sliding_window", "a number of tokens in use, as layer_types has sliding_attention")
    return layer_types, window


def _layer_types(config: Fields, model_type: str, window: int | None, num_layers: int) -> tuple[LayerType, ...]:
    named = config.values.get("layer_types")
    if named is not None:
        ours: dict[str, LayerType] = {"full_attention": "full", "sliding_attention": "sliding"}
        if not isinstance(named, list) or len(named) != num_layers or not all(n in ours for n in map(str, named)):
            raise config.error("layer_types", f"{num_layers} times one of {', '.join(ours)}")
        return tuple(ours[name] for name in named)
    if model_type == "gemma3_text":
        pattern = config.integer("sliding_window_pattern", 6)
        return tuple("sliding" if (layer + 1) % pattern else "full" for layer in range(num_layers))
    first_sliding = config.integer("max_window_layers", 28, minimum=0) if model_type != "mistral" else 0
    return tuple("sliding" if window and layer >= first_sliding else "full" for layer in range(num_layers))


def _soft_caps(config: Fields, known: _Family) -> dict[str, float | None]:
    if known.family != "gemma3":
        return {}
    if config.values.get("attn_logit_softcapping") is not None:  # transformers keeps the key, and never applies it
        raise config.error("attn_logit_softcapping", "null: Gemma 3's attention scores are not capped")
    return {"final_logit_softcap": config.number("final_logit_softcapping", None)}


def _dtype(config: Fields) -> str:
    key = "dtype" if config.values.get("dtype") is not None else "torch_dtype"  # the name before transformers 5
    return config.choice(key, _DTYPES, "float32")
