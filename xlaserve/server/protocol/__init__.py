"""What requests may say: pydantic models, a file per endpoint. Knows nothing of flask or of the engine.

Types are strict (true is not 1, "5" is not 5), null is the same as absent, and a field is honoured or refused: OpenAI's
no-ops (`user`, `metadata`, `store: false`, `service_tier: "auto"`) are all that is taken without effect.
"""
