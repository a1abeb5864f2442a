"""What the fields of requests for text mean, for the OpenAPI document: words only.

Types and ranges are the protocol's models', as are the defaults but for those that are not the same everywhere.
"""

# OpenAI's fields; those that are taken without effect say so.
OPENAI = {
    "model": "The name of the model served, as in /v1/models.",
    "prompt": "A text, a list of texts, token ids, or a list of lists of them. Each is answered by `n` choices.",
    "messages": "The conversation. Roles: system, developer, user, assistant, tool. Content: text or parts of text.",
    "n": "Answers to each prompt.",
    "max_tokens": "Tokens to generate at most. Completions: 0 computes the prompt only, for echo and prompt_logprobs.",
    "max_completion_tokens": "As max_tokens, over which it wins.",
    "temperature": "0: greedy.",
    "top_p": "Only the likeliest tokens that together have this probability. 1: off.",
    "presence_penalty": "Subtracted from the logits of tokens that the output has.",
    "frequency_penalty": "Subtracted as often as the output has the token.",
    "logit_bias": "Token id (written as a string) to what is added to its logit.",
    "seed": "The same request gives the same answer.",
    "stop": "The text ends before the first of these that appears.",
    "logprobs": "Completions: so many alternatives for each token. Chat: true for the logprob of each token. They are "
    "the model's own, whatever the sampling.",
    "top_logprobs": "So many alternatives for each token. Only with logprobs.",
    "best_of": "Answers drawn, of which the n likeliest per token are told, the best first. All count in the usage. "
    "Not with stream.",
    "echo": "true: the text begins with the prompt, and logprobs with those of its tokens.",
    "tools": "Functions that the model may call.",
    "tool_choice": "none, auto, required, or one function.",
    "parallel_tool_calls": "false: one call at most. Only with tools.",
    "response_format": "text, json_object, or json_schema with a schema that the output keeps to.",
    "reasoning_effort": "none, minimal, low, medium, high, xhigh or max, where the chat template reads it; where it "
    "only reads enable_thinking: none.",
    "stream": "true: server-sent events instead of one object.",
    "stream_options": "include_usage: a last chunk with the usage. continuous_usage_stats (extension, with "
    "include_usage): the usage so far in every chunk. Only with stream.",
    "user": "Taken without effect.",
    "metadata": "Taken without effect.",
}
EXTENSIONS = {
    "top_k": "Only so many of the likeliest tokens. 0 and -1: off.",
    "min_p": "Only tokens at least this share as likely as the likeliest. 0: off.",
    "repetition_penalty": "Divides positive logits of tokens seen, multiplies negative ones. 1: off.",
    "prompt_logprobs": "So many alternatives for each token of the prompt, which is then not taken from the prefix "
    "cache. Not with stream.",
    "allowed_token_ids": "Only these are ever generated.",
    "bad_words": "Strings that are never generated.",
    "min_tokens": "No EOS and no stop token ends the output before so many tokens; stop strings do.",
    "stop_token_ids": "Token ids that end the output, like EOS.",
    "ignore_eos": "true: EOS does not end the output.",
    "skip_special_tokens": "false: special tokens show in the text.",
    "spaces_between_special_tokens": "false: none between added tokens, where the tokenizer puts one.",
    "include_stop_str_in_output": "true: the text ends with what has ended it, stop string or token.",
    "use_beam_search": "true: the best answers that a beam search finds, instead of sampling. Not with stream.",
    "beam_width": "Answers followed at a time, at least n. Only with use_beam_search.",
    "length_penalty": "The power of the length that scores are divided by. Only with use_beam_search.",
    "return_token_ids": "true: the ids of the prompt and of the answer, too.",
    "return_tokens_as_token_ids": "true: logprobs show tokens as token_id:N. Only with logprobs.",
    "return_timings": "true: each choice ends with `timings`, in seconds.",
    "truncate_prompt_tokens": "Only the last so many tokens of each prompt are kept. -1: as many as leave "
    "room for max_tokens (for one token, where that is not given). 0 is refused.",
    "add_special_tokens": "Whether the tokenizer adds its own (BOS).",
    "request_id": "The answer's id ends with it, X-Request-Id is it.",
    "priority": "Lower is earlier, where scheduler.policy is priority; elsewhere 0 only.",
    "timeout": "In seconds: the answer ends with what there is by then.",
    "cache_salt": "Cached prompts are shared only among requests of one salt.",
    "structured_outputs": "What the output must look like: one of json, regex, choice, grammar, structural_tag.",
    "guided_json": "As structured_outputs.json.",
    "guided_regex": "As structured_outputs.regex.",
    "guided_choice": "As structured_outputs.choice.",
    "guided_grammar": "As structured_outputs.grammar.",
    "include_reasoning": "false: reasoning is left out of the answer.",
    "thinking_token_budget": "Tokens of reasoning at most.",
    "add_generation_prompt": "false: the prompt does not open an answer.",
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
    "max_output_tokens": "Tokens to generate at most, reasoning among them.",
    "text": "format: text, json_object, or json_schema with a schema that the output keeps to.",
    "tools": "Functions that the model may call.",
    "parallel_tool_calls": "false: one call at most.",
    "reasoning": "effort: none, minimal, low, medium, high, xhigh or max, where the chat template reads "
    "reasoning_effort; where it only reads enable_thinking: none.",
    "include": "message.output_text.logprobs: the logprob of each token of the text. Not with tools.",
    "top_logprobs": "So many alternatives for each token. Only with include.",
    "truncation": "auto: where the input is too long for the context, the oldest turns are left out.",
    "store": "true: the response can be asked for again, until others need its room (server.responses).",
    "stream_options": "include_obfuscation: false only. Only with stream.",
    "user": "Told again in the response.",
    "metadata": "Told again in the response.",
}
# Of the fields whose models have none; by the request's name where requests differ.
# Of /v1/embeddings, /v1/score (as vLLM has it) and /v1/rerank (as Jina has it).
POOLING = {
    "input": "A text, a list of texts, token ids, or a list of lists of them, 2048 at most. Each has one embedding.",
    "encoding_format": "base64: of float32, little-endian.",
    "dimensions": "Only so many numbers of each embedding are told, whose length is 1 all the same.",
    "text_1": "A text, which goes with each of text_2, or a list of as many.",
    "text_2": "A text or a list of them, 2048 at most: each has one score.",
    "query": "A text.",
    "documents": "Texts, or objects with a text, 2048 at most.",
    "top_n": "Only so many of the documents are told, the best.",
    "return_documents": "false: the results tell of documents by their index alone.",
    "truncate_prompt_tokens": "1 or more: only the last so many tokens of each text are kept. -1: as many as the "
    "context has room for.",
    "add_special_tokens": "Whether the tokenizer adds its own (BOS).",
    "timeout": "Seconds: the request fails with a 504 when it has not been computed by then.",
}
_OF_CHECKPOINT = "the checkpoint's, else "
DEFAULTS = {
    "n": "1",
    "best_of": "n",
    "temperature": f"{_OF_CHECKPOINT}1",
    "top_p": f"{_OF_CHECKPOINT}1",
    "top_k": f"{_OF_CHECKPOINT}off",
    "min_p": f"{_OF_CHECKPOINT}0",
    "presence_penalty": "0",
    "frequency_penalty": "0",
    "repetition_penalty": f"{_OF_CHECKPOINT}1",
    "min_tokens": "0",
    "seed": "drawn afresh",
    "beam_width": "n",
    "length_penalty": "1",
    "tool_choice": "auto where there are tools",
    "parallel_tool_calls": "true where there are tools",
}
_REST = "what the context has left"
DEFAULTS_OF = {
    "EmbeddingRequest": {"dimensions": "all", "add_special_tokens": "true"},
    "ScoreRequest": {"add_special_tokens": "true"},
    "RerankRequest": {"top_n": "all", "add_special_tokens": "true"},
    "CompletionRequest": {"max_tokens": "16", "add_special_tokens": "true"},
    "ChatRequest": {"max_tokens": _REST, "add_special_tokens": "false: the template writes them"},
    "ResponsesRequest": {"max_output_tokens": _REST},
    "TokenizeRequest": {"add_special_tokens": "true; of messages false"},
}
