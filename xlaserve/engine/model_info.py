"""What a client may know of a model."""

from dataclasses import dataclass, field
from typing import Any

from xlaserve.sampling_params import PoolingType, SamplingParams


@dataclass(frozen=True)
class ModelInfo:
    """Of a model as it is served."""

    name: str
    max_model_len: int  # tokens, prompt and output together
    vocab_size: int  # rows of the embedding: ids from 0 to vocab_size - 1
    max_request_tokens: int  # what the KV pool holds of one request
    eos_ids: frozenset[int]
    sampling_defaults: dict[str, Any] = field(default_factory=dict)  # for what a request does not set
    created: int = 0  # Unix time
    tool_parser: str | None = None  # one of tool_parsers.PARSERS: how the model writes calls; None: not known
    thinks: bool = False  # answers may begin with <think>...</think>
    takes_chat_template: bool = False  # a client may send its own
    pooling: PoolingType = "last"  # how embeddings are made
    hidden_size: int = 0  # numbers in an embedding

    def end_ids(self, params: SamplingParams) -> frozenset[int]:
        """EOS, unless it is ignored: what ends an answer without being asked for."""
        return frozenset() if params.ignore_eos and params.grammar is None else self.eos_ids

    def stop_ids(self, params: SamplingParams) -> frozenset[int]:
        """All that end an answer."""
        return self.end_ids(params) | set(params.stop_token_ids)
