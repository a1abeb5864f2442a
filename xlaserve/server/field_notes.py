"""What the fields of requests for text mean, for the OpenAPI document: words only, the protocol's models check them."""

from xlaserve.sampling_params import MAX_BEAM_WIDTH, MAX_CHOICES, MAX_LENGTH_PENALTY, MAX_LOGPROBS, MAX_STOP_STRINGS

# OpenAI's fields; those that are taken without effect say so.
OPENAI = {
    "model": "The name of the model served, as in /v1/models.",
    "prompt": "A text, a list of texts, token ids, or a list of lists of them. Each is answered by `n` choices.",
    "messages": "The conversation. Roles: system, developer, user, assistant, tool. Content: text or parts of text.",
    "n": f"Answers to each prompt, 1 to {MAX_CHOICES}; default 1.",
    "max_tokens": "Tokens to generate at most. Default: 16 for completions, for chat what the context has left. "
    "Completions: 0 computes the prompt only, for echo and prompt_logprobs.",
    "max_completion_tokens": "As max_tokens, over which it wins.",
    "temperature": "0 (greedy) to 2. Default: the checkpoint's, else 1.",
    "top_p": "Above 0, up to 1 (off). Default: the checkpoint's, else 1.",
    "presence_penalty": "-2 to 2, default 0: subtracted from the logits of tokens that the output has.",
    "frequency_penalty": "-2 to 2, default 0: subtracted as often as the output has the token.",
    "logit_bias": "Token id (written as a string) to a number from -100 to 100, added to its logit.",
    "seed": "An integer of 64 bits: the same request gives the same answer. Default: drawn afresh.",
    "stop": f"A string or up to {MAX_STOP_STRINGS}, none empty: the text ends before the first that appears.",
    "logprobs": "Completions: 0 to 5 alternatives for each token. Chat: true for the logprob of each token. They are "
    "the model's own, whatever the sampling.",
    "top_logprobs": f"0 to {MAX_LOGPROBS} alternatives for each token; with logprobs only.",
    "echo": "true: the text begins with the prompt, and logprobs with those of its tokens. Default false.",
    "tools": "Functions that the model may call.",
    "tool_choice": "none, auto, required, or one function.",
    "parallel_tool_calls": "false: one call at most. Only with tools.",
    "response_format": "text, json_object, or json_schema with a schema that the output keeps to.",
    "reasoning_effort": "none, minimal, low, medium, high, xhigh or max, where the chat template reads it; where it "
    "only reads enable_thinking: none.",
    "stream": "Server-sent events instead of one object; default false.",
    "stream_options": "include_usage: a last chunk with the usage. continuous_usage_stats (extension, with "
    "include_usage): the usage so far in every chunk. Only with stream.",
    "user": "Taken without effect.",
    "metadata": "Taken without effect.",
}
EXTENSIONS = {
    "top_k": "1 or more: only the k likeliest tokens; 0 and -1: off. Default: the checkpoint's, else off.",
    "min_p": "0 (off) to 1: only tokens at least this share as likely as the likeliest.",
    "repetition_penalty": "Above 0, default 1 (off): divides positive logits of tokens seen, multiplies negative ones.",
    "prompt_logprobs": f"0 to {MAX_LOGPROBS} alternatives for each token of the prompt, which is then not taken from "
    "the prefix cache. Not with stream.",
    "allowed_token_ids": "Only these are ever generated.",
    "bad_words": "Strings that are never generated.",
    "min_tokens": "0 or more: no EOS and no stop token ends the output before so many tokens; stop strings do.",
    "stop_token_ids": "Token ids that end the output, like EOS.",
    "ignore_eos": "true: EOS does not end the output.",
    "skip_special_tokens": "false: special tokens show in the text. Default true.",
    "spaces_between_special_tokens": "false: none between added tokens, where the tokenizer puts one. Default true.",
    "include_stop_str_in_output": "true: the text ends with what has ended it, stop string or token.",
    "use_beam_search": "true: the best answers that a beam search finds, instead of sampling. Not with stream.",
    "beam_width": f"1 to {MAX_BEAM_WIDTH}, at least n; default n. Only with use_beam_search.",
    "length_penalty": f"-{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}, default 1. Only with use_beam_search.",
    "return_token_ids": "true: the ids of the prompt and of the answer, too.",
    "return_tokens_as_token_ids": "true: logprobs show tokens as token_id:N. Only with logprobs.",
    "return_timings": "true: each choice ends with `timings`, in seconds.",
    "truncate_prompt_tokens": "1 or more: only the last so many tokens of each prompt are kept. -1: as many as leave "
    "room for max_tokens (for one token, where that is not given).",
    "add_special_tokens": "Whether the tokenizer adds its own (BOS). Default: true for completions, false for chat, "
    "whose template writes them.",
    "request_id": "1 to 128 visible ASCII characters: the answer's id ends with it, X-Request-Id is it.",
    "priority": "Lower is earlier, where scheduler.policy is priority; elsewhere 0 only.",
    "timeout": "Seconds, above 0: the answer ends with what there is by then.",
    "cache_salt": "Cached prompts are shared only among requests of one salt.",
    "structured_outputs": "What the output must look like: one of json, regex, choice, grammar, structural_tag.",
    "guided_json": "As structured_outputs.json.",
    "guided_regex": "As structured_outputs.regex.",
    "guided_choice": "As structured_outputs.choice.",
    "guided_grammar": "As structured_outputs.grammar.",
    "include_reasoning": "false: reasoning is left out of the answer. Default true.",
    "thinking_token_budget": "Tokens of reasoning at most.",
    "add_generation_prompt": "false: the prompt does not open an answer. Default true.",
    "continue_final_message": "true: the answer continues the last message. Only with add_generation_prompt false.",
    "chat_template": "A Jinja template in place of the model's own, where server.allow_chat_template is true; "
    "rendered in a process of its own, which is killed when it runs away.",
    "chat_template_kwargs": "Further variables of the chat template; those that it does not read are refused.",
    "documents": "Documents for the chat template, if it reads them.",
}
# Of /v1/responses, where they are not the others' or mean something else.
RESPONSES = {
    "input": "A text, or items: messages (roles user, assistant, system, developer; content: text, or parts "
    "input_text, of an assistant output_text and refusal), function_call, function_call_output, reasoning.",
    "instructions": "A system message before the conversation. Those of a previous response are not kept.",
    "previous_response_id": "A stored response: the conversation goes on after it.",
    "max_output_tokens": "Tokens to generate at most, reasoning among them. Default: what the context has left.",
    "text": "format: text, json_object, or json_schema with a schema that the output keeps to.",
    "tools": "Functions that the model may call. strict, default false: their arguments keep to the parameters.",
    "parallel_tool_calls": "false: one call at most. Default true.",
    "reasoning": "effort: none, minimal, low, medium, high, xhigh or max, where the chat template reads "
    "reasoning_effort; where it only reads enable_thinking: none.",
    "include": "message.output_text.logprobs: the logprob of each token of the text. Not with tools.",
    "top_logprobs": f"0 to {MAX_LOGPROBS} alternatives for each token, default 0; only with include.",
    "truncation": "auto: where the input is too long for the context, the oldest turns are left out. Default disabled.",
    "store": "true, the default: the response can be asked for again, until others need its room (server.responses).",
    "stream_options": "include_obfuscation: false only. Only with stream.",
    "user": "Told again in the response.",
    "metadata": "Told again in the response. 16 strings at most, of 512 characters, under names of 64.",
}
