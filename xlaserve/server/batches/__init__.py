"""OpenAI's files and batches: what clients upload, the runs over it in the background, and their results.

All of it lies in one folder and survives a restart, however the server ended.
"""
