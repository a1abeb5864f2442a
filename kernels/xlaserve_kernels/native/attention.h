// Ragged paged attention: see ../paged_attention/api.py for what it computes, attention.cc for how.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace xlaserve {

enum class Stored { kFloat32, kBFloat16, kFloat16, kInt8, kFloat8 };  // as the pool holds keys and values

struct Attention {
  const void* q;  // [num_tokens, num_heads, head_dim], float32 or bfloat16
  void* out;      // the same
  bool q_is_bfloat16;
  Stored stored;
  const void* pages;               // [num_blocks, 2, num_kv_heads, block_size, head_dim]
  const float* scales;             // [num_blocks, 2, num_kv_heads, block_size], or null
  const int32_t* block_tables;     // [num_rows, table_width]
  const int32_t* query_start_loc;  // [num_rows + 1]
  const int32_t* seq_lens;         // [num_rows]
  const float* sinks;              // [num_heads], or null
  int64_t num_tokens, num_heads, head_dim, num_blocks, num_kv_heads, block_size, num_rows, table_width;
  float scale, soft_cap;   // soft_cap 0: none
  int64_t sliding_window;  // 0: none
};

// Integers out of range are clamped: nothing outside the arrays is read or written, whatever they hold.
void attend(const Attention& a, const Parallel& parallel);

}  // namespace xlaserve
