// What the kernels of matrix products have in common: how outputs are shared out, and what becomes of a sum.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "matmul.h"
#include "simd.h"

namespace xlaserve {

constexpr int64_t kWorkOfAnItem = 1 << 17;  // products, about; of fewer, a thread takes longer to fetch the next
constexpr int64_t kUnit = 48;               // outputs: strips are made of as many, whatever their size

// Calls strip(matmul, first output, end) for all outputs of all matmuls.
template <class M, class Strip>
void over_strips(const std::vector<M>& matmuls, int64_t tokens, const Parallel& parallel, const Strip& strip) {
  struct Item {
    const M& m;
    int64_t output, end;
  };
  int64_t units = 0;
  for (const M& m : matmuls) units += (m.out + kUnit - 1) / kUnit;
  const int64_t least = std::max<int64_t>(kWorkOfAnItem / (tokens * matmuls[0].in * kUnit), 1);
  const int64_t size = std::min(least, (units + 7) / 8) * kUnit;  // for as many threads as there may be
  std::vector<Item> items;
  for (const M& m : matmuls)
    for (int64_t output = 0; output < m.out; output += size)
      items.push_back({m, output, std::min(m.out, output + size)});
  const int64_t count = items.size();
  parallel(count, (count + 1) / 2, [&](int64_t i) { strip(items[i].m, items[i].output, items[i].end); });
}

// What becomes of the sums of M outputs, of kLanes at most.
template <int M>
struct Finish {
  const Matmul& m;
  int64_t output;  // the first
  Floats scale = splat(1), bias = {};

  XLASERVE_INLINE Finish(const Matmul& m, const float* scales, int64_t output) : m(m), output(output) {
    if (scales) scale = widen_some(scales + output, M);
    if (m.bias) bias = widen_some(m.bias + output, M);
  }
  XLASERVE_INLINE void put(int64_t token, Floats sums) const {
    const Floats y = sums * scale + bias;
    const int64_t place = token * m.out + output;
    if (m.y_is_bfloat16) return narrow_some(static_cast<BFloat16*>(m.y) + place, y, M);
    narrow_some(static_cast<float*>(m.y) + place, y, M);
  }
};

// The tokens whose inputs are not all zero. Those of padding are, and so cost nothing: their product is the bias.
template <class M, class IsZero>
std::vector<int64_t> live_tokens(const std::vector<M>& matmuls, const IsZero& is_zero) {
  std::vector<int64_t> live;
  for (int64_t token = 0; token < matmuls[0].tokens; token++) {
    if (!is_zero(token)) {
      live.push_back(token);
      continue;
    }
    for (const M& m : matmuls) {
      int64_t output = 0;
      for (; output + kLanes <= m.out; output += kLanes) Finish<kLanes>(m, nullptr, output).put(token, Floats{});
      for (; output < m.out; output++) Finish<1>(m, nullptr, output).put(token, Floats{});
    }
  }
  return live;
}

}  // namespace xlaserve
