"""What the fields of the other requests mean, and those of the objects that requests hold: by the model's name."""

_MODEL = "The name of the model served, as in /v1/models."
_PROMPT_TOKENS = "Whether the tokenizer adds its own (BOS)."
_FUNCTION_TYPE = "There is no other."
_OF_THE_CLIENT = "The client's own: changes nothing."
_NAME_OF_FUNCTION = "Of one of the tools."
_LIMIT = "Of items in a page."
_AFTER = "The id of an item: the page begins with the next one."
_SCHEMA = "The JSON schema, as an object or as text."
_REGEX = "A regular expression, from beginning to end."
_ITEM_ID = "Of the item where it is told again; default: a new one."
_SENT_BACK = "Taken without effect: what an answer had may be sent back."

OBJECTS: dict[str, dict[str, str]] = {
    "TokenizeRequest": {
        "model": _MODEL,
        "prompt": "A text. Either this or messages.",
        "messages": "A conversation, for the chat template.",
        "add_special_tokens": _PROMPT_TOKENS,
        "add_generation_prompt": "false: the prompt does not open an answer. Of messages.",
        "return_token_strs": "true: the tokens as text, too.",
    },
    "WeightsRequest": {
        "path": "A folder or a .gguf file of the server's machine, in a folder of server.admin_paths: a checkpoint of "
        "the same architecture.",
        "policy": "What becomes of requests that run: drain: they finish on the old weights; recompute: they go on "
        "with the new ones; abort: they end with an error.",
        "timeout": "Seconds for those that finish on the old weights, after which they end with an error.",
    },
    "SleepQuery": {
        "model": "Its name; default: all models.",
        "level": "1: the weights go to the host's memory. 2: they are dropped, with the KV pool, and read to wake.",
        "timeout": "Seconds for requests that run, after which they end with an error.",
    },
    "WakeQuery": {"model": "Its name; default: all models."},
    "Document": {"text": "Of the document."},
    "DetokenizeRequest": {"model": _MODEL, "tokens": "Token ids, below the size of the vocabulary."},
    "FileUpload": {"purpose": "There is no other.", "file": "One part with a filename. Not empty."},
    "FilesQuery": {
        "limit": _LIMIT,
        "after": _AFTER,
        "order": "By the time of the upload.",
        "purpose": "Only files of this purpose: batch (uploaded) or batch_output (results).",
    },
    "BatchRequest": {
        "input_file_id": "An uploaded file of JSON lines: custom_id, method, url, body.",
        "endpoint": "Where all lines go.",
        "completion_window": "There is no other: what has not run by then is expired.",
        "metadata": "Told again with the batch.",
    },
    "BatchesQuery": {"limit": _LIMIT, "after": _AFTER},
    "ItemsQuery": {"limit": _LIMIT, "after": _AFTER, "order": "By their place in the conversation."},
    "ResponseQuery": {"stream": "There is no other: a stored response is whole."},
    "StreamOptions": {
        "include_obfuscation": "There is none.",
        "include_usage": "true: a last event has the usage.",
        "continuous_usage_stats": "true: every event has the usage so far. An extension, with include_usage.",
    },
    "NoObfuscation": {"include_obfuscation": "There is none."},
    "ResponseFormat": {
        "type": "What the output is. structural_tag is an extension.",
        "json_schema": "Of the type json_schema.",
        "structures": "Of a structural_tag: objects with begin, schema and end. An extension.",
        "triggers": "Of a structural_tag: texts after which one of the structures must follow. An extension.",
    },
    "JsonSchema": {
        "name": _OF_THE_CLIENT,
        "description": _OF_THE_CLIENT,
        "schema": _SCHEMA,
        "strict": "Changes nothing: every schema is kept to.",
    },
    "StructuredOutputs": {
        "json": _SCHEMA,
        "regex": _REGEX,
        "choice": "The output is one of these.",
        "grammar": "In Lark or EBNF, from the rule start or root.",
        "json_object": "true: any JSON object.",
        "structural_tag": "As the structural_tag of response_format.",
    },
    "Tool": {"type": _FUNCTION_TYPE, "function": "What may be called."},
    "Function": {
        "name": "Of letters, digits, _ and -.",
        "description": "For the chat template.",
        "parameters": "A JSON schema of an object; none: it takes no arguments.",
        "strict": "true: the arguments keep to the parameters, wherever the model calls it.",
    },
    "NamedTool": {"type": _FUNCTION_TYPE, "function": "What must be called."},
    "NamedFunction": {"name": _NAME_OF_FUNCTION},
    "Message": {
        "role": "Who speaks.",
        "content": "Text, or parts {type: text, text}, joined by newlines. May be left out where there are tool_calls.",
        "name": "For the chat template.",
        "tool_calls": "Of an assistant.",
        "tool_call_id": "Of a tool: whose answer it is.",
        "refusal": "Of an assistant, in place of content.",
        "reasoning_content": "Of an assistant, for the chat template.",
        "annotations": "Taken where it is empty, as the openai client's messages have it.",
    },
    "ToolCall-Input": {
        "id": "For the chat template.",
        "type": _FUNCTION_TYPE,
        "function": "What was called.",
        "index": _SENT_BACK,
    },
    "FunctionCall-Input": {
        "name": "Of the function.",
        "arguments": "A JSON object, as text.",
        "parsed_arguments": _SENT_BACK,
    },
    "InputMessage": {
        "id": _ITEM_ID,
        "status": _SENT_BACK,
        "type": _FUNCTION_TYPE,
        "role": "Who speaks.",
        "content": "Text, or parts of text.",
        "phase": _SENT_BACK,
    },
    "InputFunctionCall": {
        "id": _ITEM_ID,
        "status": _SENT_BACK,
        "type": "A call that the model made.",
        "call_id": "By which its output is found.",
        "name": "Of the function.",
        "arguments": "A JSON object, as text.",
        "parsed_arguments": _SENT_BACK,
    },
    "InputFunctionOutput": {
        "id": _ITEM_ID,
        "status": _SENT_BACK,
        "type": "What a call gave.",
        "call_id": "Of the call, which comes before it.",
        "output": "Text, or parts {type: input_text, text}.",
    },
    "InputReasoning": {
        "id": _ITEM_ID,
        "status": _SENT_BACK,
        "type": "What the model thought before an answer.",
        "summary": "Parts {type: summary_text, text}.",
        "content": "Parts {type: reasoning_text, text}.",
    },
    "Text": {"format": "What the output is."},
    "TextFormat": {
        "type": "text, any JSON object, or one that keeps to the schema.",
        "name": _OF_THE_CLIENT,
        "description": _OF_THE_CLIENT,
        "schema": _SCHEMA,
        "strict": "Changes nothing: every schema is kept to.",
    },
    "FunctionTool": {
        "type": _FUNCTION_TYPE,
        "name": "Of letters, digits, _ and -.",
        "description": "For the chat template.",
        "parameters": "A JSON schema of an object; none: it takes no arguments.",
        "strict": "true: the arguments keep to the parameters, wherever the model calls it.",
    },
    "NamedFunctionTool": {"type": _FUNCTION_TYPE, "name": _NAME_OF_FUNCTION},
    "Reasoning": {"effort": "As chat's reasoning_effort."},
}
EXTENDING = (  # what OpenAI has not got
    *("SleepQuery", "WakeQuery"),
    "WeightsRequest",
    *("StructuredOutputs", "ScoreRequest", "RerankRequest", "Document", "TokenizeRequest", "DetokenizeRequest"),
)
