"""The engine as a Python object: `LLM("demo").generate(["Once upon a time"], SamplingParams(max_tokens=20))`."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from xlaserve.config import load_config
from xlaserve.engine.build import build_service
from xlaserve.engine.completion import Completion
from xlaserve.engine.embeddings import normalised
from xlaserve.engine.generations import AnyParams, Generations, collect
from xlaserve.engine.reporter import Reporter, SilentReporter
from xlaserve.errors import InvalidRequest
from xlaserve.sampling_params import BeamSearchParams, PoolingParams, SamplingParams

DEFAULT_CACHE_DIR = Path.home() / ".cache" / "xlaserve"


class LLM:
    """A model and its engine in this process; close it, or use it in a `with` block, to stop the engine's thread.

    model: as `model.source` in a config (demo, a folder, a .gguf file, a hub id). config: a YAML file. overrides:
    "section.key=value", as `--set`. cache_dir: for the demo model and compiled programs.
    Raises ConfigError and CheckpointError.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config: Path | None = None,
        overrides: Sequence[str] = (),
        cache_dir: Path = DEFAULT_CACHE_DIR,
        reporter: Reporter | None = None,
    ):
        overrides = ["server.max_waiting=1000000000", *overrides]  # offline nobody is kept waiting but the caller
        if model is not None:
            overrides.append(f"model.source={model}")
        self.service = build_service(
            load_config(config, overrides), cache_dir=cache_dir, reporter=reporter or SilentReporter()
        )
        self.tokenizer = self.service.tokenizer
        self.info = self.service.info

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Completes all prompts (texts, or lists of token ids) as one batch; results are in their order.

        params: for all, or one per prompt; None means SamplingParams() with the checkpoint's sampling defaults.
        Raises InvalidRequest for a prompt that cannot be served, and then generates nothing; GenerationFailed when the
        engine could not finish one.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if params is None:
            params = SamplingParams(**self.info.sampling_defaults)
        if not isinstance(params, SamplingParams) and len(params) != len(texts):
            raise InvalidRequest(f"{len(params)} params for {len(texts)} prompts", param="params")
        return self._collect(texts, params)

    def embed(self, prompts: str | Sequence[str] | Sequence[Sequence[int]]) -> np.ndarray:
        """float32 [n, D]: an embedding of each prompt, of length 1, pooled as `model.pooling` says.

        Raises as `generate`.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        found = [each.embedding for each in self._collect(texts, PoolingParams(pooling=self.info.pooling))]
        return normalised(np.stack([each for each in found if each is not None]))

    def beam_search(
        self, prompts: str | Sequence[str] | Sequence[Sequence[int]], params: BeamSearchParams
    ) -> list[list[Completion]]:
        """The `params.n` best answers to each prompt, best first, with their scores: as transformers' beam search.

        Raises as `generate`.
        """
        found = self._collect([prompts] if isinstance(prompts, str) else list(prompts), params)
        return [found[first : first + params.n] for first in range(0, len(found), params.n)]

    def _collect(
        self, prompts: Sequence[str | Sequence[int]], params: AnyParams | Sequence[AnyParams]
    ) -> list[Completion]:
        all_ids = [self.tokenizer.encode(each) if isinstance(each, str) else list(each) for each in prompts]
        generations = Generations(self.service, all_ids, params, f"llm-{secrets.token_hex(8)}")
        try:
            return collect(generations)
        finally:
            generations.abort()

    def chat(self, messages: list[dict], params: SamplingParams | None = None) -> Completion:
        """Answers a conversation of {"role", "content"} messages through the model's chat template."""
        prompt = self.tokenizer.apply_chat_template(messages)
        return self.generate([self.tokenizer.encode(prompt, add_special_tokens=False)], params)[0]

    def close(self) -> None:
        """Aborts what is running and stops the engine's thread. Idempotent."""
        self.service.shutdown(timeout=0)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
