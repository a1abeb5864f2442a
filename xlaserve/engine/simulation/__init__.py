"""The production scheduler on a virtual clock, with a cost model in the place of a device. No jax, no text."""
