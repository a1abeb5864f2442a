"""Rotary embedding parameters: transformers 4 writes `rope_theta` and `rope_scaling`, 5 writes `rope_parameters`."""

from xlaserve.layers.rotary import RopeConfig
from xlaserve.models.fields import Fields

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def parse_rope(config: Fields, max_position_embeddings: int) -> RopeConfig:
    """The one rotary embedding of all families but Gemma 3."""
    scaling = config.mapping("rope_scaling" if config.values.get("rope_scaling") else "rope_parameters")
    theta = config.number("rope_theta", 10_000.0)
    return _parse_scaling(scaling, theta, config, max_position_embeddings)


def parse_gemma3_ropes(config: Fields, max_position_embeddings: int) -> tuple[RopeConfig, RopeConfig]:
    """(of the full layers, of the sliding layers): the older `rope_scaling` concerns the full ones alone."""
    parameters = config.mapping("rope_parameters")
    for key, value in parameters.values.items():
        says_nothing = value is None or (key, value) == ("rope_type", "default")  # as transformers 5.0 to 5.2 save
        if key not in ("full_attention", "sliding_attention") and not says_nothing:
            raise parameters.error(key, "only the keys full_attention and sliding_attention here, for Gemma 3")
    full = config.mapping("rope_scaling") if config.values.get("rope_scaling") else parameters.mapping("full_attention")
    full_theta = config.number("rope_theta", 1_000_000.0)
    sliding_theta = config.number("rope_local_base_freq", 10_000.0)
    return (
        _parse_scaling(full, full_theta, config, max_position_embeddings),
        _parse_scaling(parameters.mapping("sliding_attention"), sliding_theta, config, max_position_embeddings),
    )


def _parse_scaling(scaling: Fields, theta: float, config: Fields, max_position_embeddings: int) -> RopeConfig:
    theta = scaling.number("rope_theta", theta)
    for fields in (scaling, config):
        if fields.number("partial_rotary_factor", 1.0) != 1.0:
            raise fields.error("partial_rotary_factor", "1: rotating a part of the head is not supported")
    type_key = "rope_type" if "rope_type" in scaling.values else "type"  # the name before transformers 4.43
    rope_type = scaling.choice(type_key, ROPE_TYPES, "default")
    if rope_type == "default":
        return RopeConfig(theta)
    if rope_type == "linear":
        return RopeConfig(theta, "linear", factor=scaling.number("factor"))
    # `max_position_embeddings` already is the extended length and is never multiplied by the factor.
    original = scaling.integer("original_max_position_embeddings", max_position_embeddings)
    original = config.integer("original_max_position_embeddings", original)  # Phi-3's place for it wins in transformers
    if rope_type == "llama3":
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if high <= low:
            raise scaling.error("high_freq_factor", f"more than low_freq_factor, {low}")
        return RopeConfig(theta, "llama3", scaling.number("factor"), low, high, original)
    return RopeConfig(
        theta,
        "yarn",
        factor=scaling.number("factor", max_position_embeddings / original),
        original_max_position_embeddings=original,
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        attention_factor=scaling.number("attention_factor", None),
        mscale=scaling.number("mscale", None),
        mscale_all_dim=scaling.number("mscale_all_dim", None),
        truncate=scaling.boolean("truncate", True),
    )
