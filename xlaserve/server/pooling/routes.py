"""POST /v1/embeddings, /v1/score and /v1/rerank."""

from flask import Blueprint, Response

from xlaserve.server.answering import answer
from xlaserve.server.pooling.jobs import embedding_job, rerank_job, score_job

routes = Blueprint("pooling", __name__)


@routes.post("/v1/embeddings")
def embeddings() -> Response:
    return answer(embedding_job)


@routes.post("/v1/score")
def score() -> Response:
    return answer(score_job)


@routes.post("/v1/rerank")
def rerank() -> Response:
    return answer(rerank_job)
