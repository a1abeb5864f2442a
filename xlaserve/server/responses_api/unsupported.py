"""What of OpenAI's /v1/responses is not served, as xlaserve.server.unsupported has it."""

from xlaserve.server.unsupported import Unsupported

RESPONSES = {
    "background": Unsupported(False, advice="the answer comes with the request; leave it out, or use /v1/batches"),
    "background_options": Unsupported(),
    "conversation": Unsupported(advice="use previous_response_id, or send the conversation as input"),
    "prompt": Unsupported(advice="send its text as instructions and input"),
    "max_tool_calls": Unsupported(advice="it counts calls of tools that a server runs; leave it out"),
    "context_management": Unsupported([], advice="use truncation"),
    "service_tier": Unsupported("auto", "default", advice="there is one tier; leave it out"),
    "safety_identifier": Unsupported(advice="use `user`"),
    "prompt_cache_key": Unsupported(advice="use cache_salt to keep cached prompts apart"),
    "prompt_cache_retention": Unsupported(),
    "prompt_cache_options": Unsupported(),
    "moderation": Unsupported(),
    "access_programs": Unsupported(),
    "image": Unsupported(),
    "n": Unsupported(1, advice="send several requests"),
    "messages": Unsupported(advice="send them as input"),
    "max_tokens": Unsupported(advice="use max_output_tokens"),
    "max_completion_tokens": Unsupported(advice="use max_output_tokens"),
    "response_format": Unsupported(advice="use text.format"),
    "reasoning_effort": Unsupported(advice="use reasoning.effort"),
    "logprobs": Unsupported(False, advice='use include: ["message.output_text.logprobs"]'),
}
QUERY = {
    "include": Unsupported(advice="what was asked for with the request is there; leave it out"),
    "include_obfuscation": Unsupported("false"),
    "starting_after": Unsupported(advice="an answer is streamed with its request only; leave it out"),
}
