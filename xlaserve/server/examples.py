"""Calls of curl, one for each operation, that work as they are pasted into a shell."""

import json
import shlex
from typing import Any

_BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "The capital of Norway is", "max_tokens": 8},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16},
    "/v1/responses": {"input": "Hello!", "max_output_tokens": 16},
    "/v1/embeddings": {"input": "Hello!"},
    "/v1/score": {"text_1": "Oslo", "text_2": ["A city in Norway", "A kind of cheese"]},
    "/v1/rerank": {"query": "Oslo", "documents": ["A kind of cheese", "A city in Norway"]},
    "/tokenize": {"prompt": "Hello!"},
    "/detokenize": {"tokens": [72, 105]},
}
_LONG = {"prompt": "Hello", "max_tokens": 1000, "ignore_eos": True}  # so that there is still something to cancel
# What makes the thing that a path names, and what its id looks like.
_MADE_BY = {
    "response_id": ("/v1/responses", "resp_"),
    "file_id": ("/v1/files", "file-"),
    "batch_id": ("/v1/batches", "batch_"),
}


class Examples:
    """url: of the server, without a slash at its end. model: its name. with_key: whether requests need one."""

    def __init__(self, url: str, model: str, *, with_key: bool):
        self._url = url
        self._model = model
        self._key = ' -H "Authorization: Bearer $API_KEY"' if with_key else ""

    def of(self, method: str, path: str) -> str | None:
        """None for what is always refused, and for orders, which need more than a call."""
        if path == "/v1/responses/{response_id}/cancel" or path.startswith("/admin/"):
            return None
        first, _, rest = path.partition("{")
        name, _, last = rest.partition("}")
        if method == "post" and not name:
            return "\n".join(self._post(path))
        if not name:
            return f"{self._curl()} {self._where(path)}"
        if name == "name":
            return f"{self._curl()} {self._where(first + self._model)}"
        option = {"get": "", "post": " -X POST", "delete": " -X DELETE"}[method]
        made = self._made(name, is_long=method == "post")
        return "\n".join([*made, f'{self._curl(option)} {self._where(first)}"${name.upper()}"{last}'])

    def _made(self, name: str, *, is_long: bool) -> list[str]:
        """Commands that make a thing, and keep its id in a variable."""
        path, prefix = _MADE_BY[name]
        *before, last = self._post(path, is_long=is_long)
        return [*before, f"{name.upper()}=$({last} | grep -o '{prefix}[0-9a-f]*' | head -n 1)"]

    def _post(self, path: str, *, is_long: bool = False) -> list[str]:
        if path == "/v1/files":
            body = {"model": self._model} | (_LONG if is_long else _BODIES["/v1/completions"])
            line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body})
            form = "-F purpose=batch -F 'file=@-;filename=requests.jsonl'"
            return [f"echo {shlex.quote(line)} |\n  {self._curl()} {self._where(path)} {form}"]
        command = f"{self._curl()} {self._where(path)} -H 'Content-Type: application/json' \\\n  -d "
        if path == "/v1/batches":
            asked = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": ""}
            start = shlex.quote(json.dumps(asked).removesuffix('"}'))
            return [*self._made("file_id", is_long=is_long), f"""{command}{start}"$FILE_ID"'"}}'"""]
        return [command + shlex.quote(json.dumps({"model": self._model} | _BODIES[path]))]

    def _curl(self, option: str = "") -> str:
        return f"curl -s{option}{self._key}"

    def _where(self, path: str) -> str:
        return shlex.quote(self._url + path)
