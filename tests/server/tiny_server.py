"""A live server over a random tiny model whose template shows all that a template can be given."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from tests import tiny_models
from tests.server.harness import LiveServer, served
from tests.toys import with_named_tokens, write_tokenizer
from xlaserve.engine.llm import LLM
from xlaserve.engine.spelling import CHAR_OF_BYTE
from xlaserve.engine.vocabulary import Vocabulary
from xlaserve.runner.compilations import LOG

NUM_BYTES = 248  # of the 256: the last eight are in no text, and make room for special tokens
BOS, EOS = NUM_BYTES, NUM_BYTES + 1
TEMPLATE = (
    "{% if not bare %}{{ bos_token }}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% endif %}"
    "{% for d in documents or [] %}{{ d.text }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}]"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{{ m.tool_call_id }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if thinking %}<think>{% endif %}{% endif %}"
)
SETTINGS = {
    "model.dtype": "float32",
    "model.served_name": "toy",
    "model.tool_parser": "hermes",
    "model.reasoning_parser": "think",
    "scheduler.policy": "priority",
    # as other tests have them: programs are compiled once for all
    "model.max_model_len": 256,
    "cache.num_blocks": 40,
    "scheduler.max_num_seqs": 4,
    "scheduler.max_num_batched_tokens": 8,
}


def vocabulary() -> Vocabulary:
    """Token n is byte n, but for <s> and </s>, which are special and take the place of bytes that UTF-8 never has."""
    vocab = {CHAR_OF_BYTE[byte]: byte for byte in range(NUM_BYTES)}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return with_named_tokens(backend, add_bos=True, template=TEMPLATE)


@contextmanager
def tiny_server(folder: Path, cache_dir: Path, **model: str) -> Iterator[LiveServer]:
    """model: further settings of that section."""
    shutil.copytree(tiny_models.folder("llama"), folder, dirs_exist_ok=True)
    write_tokenizer(vocabulary(), folder)
    settings = SETTINGS | {f"model.{name}": value for name, value in model.items()}
    overrides = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    with LLM(str(folder), overrides=overrides, cache_dir=cache_dir) as llm:
        server = LiveServer()
        server.service = llm.service
        server.state.set_ready(served(llm.service))
        before = LOG.compiled().get("unexpected", 0)
        yield server
        assert LOG.compiled().get("unexpected", 0) == before, "a request has waited for a compilation"
        server.state.stop()
        server.close()
