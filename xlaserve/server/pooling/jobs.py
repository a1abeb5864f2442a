"""From the JSON of a request for embeddings, scores or ranks to its answer. Knows of no connection."""

import base64
import time
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xlaserve.engine.embeddings import normalised
from xlaserve.engine.generations import Generations, collect
from xlaserve.errors import InvalidRequest
from xlaserve.sampling_params import PoolingParams
from xlaserve.server.jobs import Job
from xlaserve.server.pooling import replies
from xlaserve.server.pooling.requests import (
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    parse_embedding,
    parse_rerank,
    parse_score,
)
from xlaserve.server.renaming import renamed
from xlaserve.server.responses import Reply
from xlaserve.server.tokens import prompt_ids, truncated

if TYPE_CHECKING:
    from collections.abc import Callable

    from xlaserve.engine.service import GenerationService
    from xlaserve.scheduling_params import SchedulingParams


class _Renderer:
    """What the answers have in common."""

    prefix: str

    def __init__(self, model: str, asked: EmbeddingRequest | ScoreRequest | RerankRequest):
        self.id = f"{self.prefix}-{asked.request_id or uuid.uuid4().hex}"
        self.model = model

    @property
    def listed(self) -> dict[str, Any]:
        """What a list begins with."""
        return {"id": self.id, "object": "list", "created": int(time.time()), "model": self.model}

    @abstractmethod
    def whole(self, embeddings: np.ndarray, usage: replies.PoolingUsage) -> Reply:
        """embeddings: float32 [n, D], one of each prompt, of length 1."""


class _EmbeddingRenderer(_Renderer):
    prefix = "embd"

    def __init__(self, model: str, asked: EmbeddingRequest):
        super().__init__(model, asked)
        self._as_base64 = asked.encoding_format == "base64"
        self._dimensions = asked.dimensions

    def whole(self, embeddings: np.ndarray, usage: replies.PoolingUsage) -> Reply:
        if self._dimensions is not None:
            embeddings = normalised(embeddings[:, : self._dimensions])
        data = [
            replies.Embedding(object="embedding", index=index, embedding=self._written(embedding))
            for index, embedding in enumerate(embeddings)
        ]
        return replies.EmbeddingReply(**self.listed, data=data, usage=usage)

    def _written(self, embedding: np.ndarray) -> list[float] | str:
        if self._as_base64:
            return base64.b64encode(embedding.astype("<f4").tobytes()).decode("ascii")
        return embedding.tolist()


class _ScoreRenderer(_Renderer):
    prefix = "score"

    def __init__(self, model: str, asked: ScoreRequest):
        super().__init__(model, asked)
        self._num_first = len(asked.text_1)

    def whole(self, embeddings: np.ndarray, usage: replies.PoolingUsage) -> Reply:
        scores = _cosines(embeddings[: self._num_first], embeddings[self._num_first :])
        data = [replies.Score(object="score", index=index, score=score) for index, score in enumerate(scores)]
        return replies.ScoreReply(**self.listed, data=data, usage=usage)


class _RerankRenderer(_Renderer):
    prefix = "rerank"

    def __init__(self, model: str, asked: RerankRequest):
        super().__init__(model, asked)
        self._asked = asked

    def whole(self, embeddings: np.ndarray, usage: replies.PoolingUsage) -> Reply:
        scores, texts = _cosines(embeddings[:1], embeddings[1:]), self._asked.texts
        best = sorted(range(len(texts)), key=lambda index: -scores[index])  # stable: equals stay in their order
        shown = self._asked.return_documents
        results = [
            replies.Ranked(
                index=index,
                relevance_score=scores[index],
                **({"document": replies.RankedText(text=texts[index])} if shown else {}),
            )
            for index in best[: self._asked.top_n]
        ]
        return replies.RerankReply(id=self.id, model=self.model, results=results, usage=usage)


def _cosines(first: np.ndarray, second: np.ndarray) -> list[float]:
    """Of float32 [n or 1, D] and [n, D], all of length 1."""
    return np.clip((first.astype(np.float64) * second).sum(axis=-1), -1, 1).tolist()


@dataclass(frozen=True)
class PoolingJob(Job):
    renderer: _Renderer

    def start(
        self, service: "GenerationService", scheduling: "SchedulingParams", check: "Callable[[], None]"
    ) -> Generations:
        return Generations(
            service, self.prompts, self.params, self.renderer.id,
            scheduling=scheduling, check=check, at_once=2 * service.max_num_seqs,
        )  # fmt: skip

    def _answer(self, generations: Generations) -> Reply:
        embeddings = [completion.embedding for completion in collect(generations)]
        num_tokens = sum(map(len, self.prompts))
        usage = replies.PoolingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
        return self.renderer.whole(normalised(np.stack([each for each in embeddings if each is not None])), usage)


def embedding_job(service: "GenerationService", data: dict[str, Any]) -> Job:
    """Raises InvalidRequest."""
    asked = parse_embedding(data)
    size = service.info.hidden_size
    if asked.dimensions is not None and asked.dimensions > size:
        message = f"dimensions is {asked.dimensions}: this model's embeddings have {size}."
        raise InvalidRequest(message, param="dimensions")
    return _job(service, asked, {"input": asked.input}, _EmbeddingRenderer(service.info.name, asked))


def score_job(service: "GenerationService", data: dict[str, Any]) -> Job:
    """Raises InvalidRequest."""
    asked = parse_score(data)
    texts = {"text_1": asked.text_1, "text_2": asked.text_2}
    return _job(service, asked, texts, _ScoreRenderer(service.info.name, asked))


def rerank_job(service: "GenerationService", data: dict[str, Any]) -> Job:
    """Raises InvalidRequest."""
    asked = parse_rerank(data)
    texts = {"query": [asked.query], "documents": asked.texts}
    return _job(service, asked, texts, _RerankRenderer(service.info.name, asked))


def _job(
    service: "GenerationService",
    asked: EmbeddingRequest | ScoreRequest | RerankRequest,
    texts: Mapping[str, Sequence[str | list[int]]],
    renderer: _Renderer,
) -> Job:
    """texts: the prompts, by the field that they are of; errors name it."""
    prompts = []
    for name, its_texts in texts.items():
        with renamed({"prompt": name}):
            prompts += [_encode(service, asked, text) for text in its_texts]
    return PoolingJob(asked, PoolingParams(pooling=service.info.pooling), prompts, renderer)


def _encode(
    service: "GenerationService", asked: EmbeddingRequest | ScoreRequest | RerankRequest, text: str | list[int]
) -> list[int]:
    """Raises InvalidRequest for what cannot be served."""
    special = asked.add_special_tokens is not False
    limit = service.info.max_model_len
    ids = prompt_ids(service.tokenizer, text, max_model_len=limit, add_special_tokens=special)
    ids = truncated(ids, asked, 0, service.info)
    service.check_prompt(ids, 0)
    return ids
