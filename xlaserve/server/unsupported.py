"""Fields of the OpenAI and vLLM APIs that are not served: a value that asks for nothing passes, any other is a 400.

So a client that always sends its defaults works, and no setting is ever taken and then ignored.
"""

import json
from typing import Any

from xlaserve.errors import InvalidRequest


class Unsupported:
    """One field: the values that ask for nothing, and what to do instead of any other."""

    def __init__(self, *neutral: Any, advice: str = "leave it out"):
        self.neutral = neutral
        self.advice = advice

    def accepts(self, value: Any) -> bool:
        return any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in self.neutral
        )

    def refusal(self, name: str) -> InvalidRequest:
        allowed = ", ".join(json.dumps(neutral) for neutral in self.neutral)
        only = f" (only {allowed} is accepted)" if allowed else ""
        return InvalidRequest(f"{name} is not supported by this server: {self.advice}{only}.", param=name)


_ONE_CHOICE = "use n"
_USE_TOOLS = "use tools and tool_choice"
_TEXT_ONLY = "this server takes and returns text only; leave it out"

_COMMON = {
    "store": Unsupported(False, advice="answers are not stored; leave it out"),
    "service_tier": Unsupported("auto", advice="there is one tier; leave it out"),
    "prompt_embeds": Unsupported(advice="send text or token ids"),
    "logits_processors": Unsupported([]),
    "kv_transfer_params": Unsupported(),
    "vllm_xargs": Unsupported({}),
    "safety_identifier": Unsupported(advice="use `user`"),
    "prompt_cache_key": Unsupported(),
}

COMPLETION = _COMMON | {
    "suffix": Unsupported("", advice="text is generated after the prompt only; leave it out"),
    "max_completion_tokens": Unsupported(advice="use max_tokens"),
    "top_logprobs": Unsupported(advice="use logprobs, a number from 0 to 5"),
    "messages": Unsupported(advice="use /v1/chat/completions, or send a prompt"),
}

CHAT = _COMMON | {
    "echo": Unsupported(False, advice="the conversation is not repeated in the answer; leave it out"),
    "functions": Unsupported([], advice=_USE_TOOLS),
    "function_call": Unsupported("none", advice=_USE_TOOLS),
    "modalities": Unsupported(["text"], advice=_TEXT_ONLY),
    "audio": Unsupported(advice=_TEXT_ONLY),
    "prediction": Unsupported(),
    "web_search_options": Unsupported(),
    "verbosity": Unsupported(),
    "mm_processor_kwargs": Unsupported({}, advice=_TEXT_ONLY),
    "best_of": Unsupported(1, advice=_ONE_CHOICE),
    "prompt": Unsupported(advice="use /v1/completions, or send messages"),
}


def drop_neutral(data: dict[str, Any], unsupported: dict[str, Unsupported]) -> dict[str, Any]:
    """`data` without nulls (null is absent) and without unsupported fields that ask for nothing.

    Raises InvalidRequest naming the first unsupported field that asks for something.
    """
    kept = {}
    for name, value in data.items():
        field = unsupported.get(name)
        if value is None:
            continue
        if field is None:
            kept[name] = value
        elif not field.accepts(value):
            raise field.refusal(name)
    return kept
