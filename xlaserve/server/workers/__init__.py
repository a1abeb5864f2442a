"""Processes beside the engine's that make and write the events of streamed answers: `server.api_workers` of them."""
