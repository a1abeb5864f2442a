// RMSNorm of rows, in float32.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace xlaserve {

struct RmsNorm {
  int64_t rows, size;
  const void* x;       // [rows, size]
  const void* weight;  // [size]
  void* y;             // [rows, size]
  bool is_bfloat16;    // all three; else float32
  float eps;
  // The weight is the distance from 1, and the product is rounded once; else what it scales has been rounded.
  bool unit_offset;
};

void normalize(const RmsNorm& n, const Parallel& parallel);

}  // namespace xlaserve
