"""What is answered to requests for embeddings, scores and ranks."""

from typing import Literal

from xlaserve.server.responses import Reply


class PoolingUsage(Reply):
    prompt_tokens: int
    total_tokens: int


class Embedding(Reply):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str  # str: base64 of float32, little-endian


class EmbeddingReply(Reply):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: PoolingUsage


class Score(Reply):
    object: Literal["score"]
    index: int
    score: float  # the cosine of the angle between the embeddings, -1 to 1


class ScoreReply(Reply):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PoolingUsage


class RankedText(Reply):
    text: str


class Ranked(Reply):
    index: int  # among the documents of the request
    relevance_score: float  # as Score.score
    document: RankedText | None = None


class RerankReply(Reply):
    """Best first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PoolingUsage
