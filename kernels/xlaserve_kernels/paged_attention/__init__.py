"""Ragged paged attention and the KV pool's layout."""

from xlaserve_kernels.paged_attention.api import KVLayout, make_layout, paged_attention
from xlaserve_kernels.paged_attention.checks import check_tables
from xlaserve_kernels.paged_attention.layout import NULL_BLOCK, KVPool, slot_mapping

__all__ = ["NULL_BLOCK", "KVLayout", "KVPool", "check_tables", "make_layout", "paged_attention", "slot_mapping"]
