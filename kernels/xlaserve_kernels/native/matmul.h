// Matrix products of activations [tokens, in] with weights [out, in], as checkpoints have them: y = x * w^T.
//
// Those of the same activations with several weights are one call: they are read once, threads share the outputs of
// all, and calls by XLA cost more than the products of a token with a small weight.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel.h"

namespace xlaserve {

struct Matmul {
  int64_t tokens, in, out;
  void* y;  // [tokens, out], float32 or bfloat16
  bool y_is_bfloat16;
  const float* bias;  // [out], or null
};

struct Int8Matmul : Matmul {
  const int8_t* x;        // [tokens, in]; none is -128
  const float* x_scales;  // [tokens, in / group]
  const int8_t* w;        // [out, in]
  const float* w_scales;  // [out]
  int64_t group;          // inputs: 32, 64, 128 or all
};

// Outputs that int8 weights of a FloatMatmul have side by side.
constexpr int64_t kWide = 16;

enum class Weights { kFloat32, kBFloat16, kInt8 };

struct FloatMatmul : Matmul {
  const void* x;  // float32 or bfloat16
  bool x_is_bfloat16;
  const void* w;  // [out, in]; int8: [ceil(out / kWide), in, kWide]
  Weights w_stored;
  const float* w_scales;  // [out], of int8; else null
};

// One or more, whose x are the same. Products are summed exactly within a group, those sums in float32.
void multiply(const std::vector<Int8Matmul>& matmuls, const Parallel& parallel);
// One or more, whose x are the same. Products are summed in float32.
void multiply(const std::vector<FloatMatmul>& matmuls, const Parallel& parallel);

}  // namespace xlaserve
