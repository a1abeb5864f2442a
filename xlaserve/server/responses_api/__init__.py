"""OpenAI's /v1/responses, over chat completions: what is asked becomes a chat request, its answer a list of items."""
