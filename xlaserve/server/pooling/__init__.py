"""Embeddings, and what is made of them: scores of pairs of texts, and texts ranked by a query."""
