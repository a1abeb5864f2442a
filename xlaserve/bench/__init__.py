"""Measurements of servers and of the engine, by the names and the arithmetic of `vllm bench`."""
