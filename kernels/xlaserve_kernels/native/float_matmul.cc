// Products summed in float32, with weights of float32, bfloat16, or int8 with a scale per output.
//
// Vectors run along the outputs, so that no lanes are to be added up: every output is the sum of its inputs in their
// order, whatever the number of tokens. A panel of the weights of some outputs and a block of inputs stays in the first cache as
// floats [inputs][outputs], while tokens are multiplied with it, a few at a time, whose sums stay in registers.
#include "matmul.h"
#include "products.h"
#include "simd.h"
#include "transpose.h"

namespace xlaserve {
namespace {

constexpr int kVectors = kWide / kLanes;       // of the outputs that int8 weights have side by side
constexpr int kSums = kLanes == 16 ? 24 : 12;  // vectors that fit into the registers beside what is multiplied
constexpr int kFew = 3, kMany = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 3;  // tokens of a tile
constexpr int kMostInPlace = kLanes == 16 ? 16 : kFew;  // tokens of a product with int8 that is not widened first
constexpr int64_t kBlock = 128;              // inputs; a panel of floats is 24 KB, and sums that begin at zero lose less
constexpr int64_t kCachedInputs = 48 << 10;  // of the tokens that go along a strip: 192 KB of the second cache

// Floats that no vector of them lies across two lines of the cache, if their number is a multiple of kLanes.
class Aligned {
 public:
  void resize(int64_t size) { vectors_.resize((size + kLanes - 1) / kLanes); }
  float* data() { return reinterpret_cast<float*>(vectors_.data()); }
  const float* data() const { return reinterpret_cast<const float*>(vectors_.data()); }

 private:
  std::vector<Floats> vectors_;
};

// The inputs of a block of the tokens stand one after another, whatever distance the tokens have: the caches keep few lines
// of those a power of two apart.
struct LiveFloats {
  std::vector<int64_t> tokens;
  Aligned x;  // [in / kBlock][tokens][kBlock]; the last block may have fewer

  const float* at(int64_t token, int64_t start, int64_t num_inputs) const {
    return x.data() + start * tokens.size() + token * num_inputs;
  }
};

template <class T>
LiveFloats live_floats(const std::vector<FloatMatmul>& matmuls, const T* x) {
  const int64_t in = matmuls[0].in;
  auto is_zero = [&](int64_t token) {
    return std::all_of(x + token * in, x + (token + 1) * in, [](T value) { return xlaserve::is_zero(value); });
  };
  LiveFloats live{live_tokens(matmuls, is_zero), {}};
  const int64_t tokens = live.tokens.size();
  live.x.resize(tokens * in);
  for (int64_t start = 0; start < in; start += kBlock) {
    const int64_t size = std::min(kBlock, in - start);
    for (int64_t token = 0; token < tokens; token++) {
      const T* from = x + live.tokens[token] * in + start;
      float* to = live.x.data() + start * tokens + token * size;
      int64_t i = 0;
      for (; i + kLanes <= size; i += kLanes) store(to + i, widen(from + i));
      if (i < size) narrow_some(to + i, widen_some(from + i, size - i), size - i);
    }
  }
  return live;
}

// Fetches those `behind`, too. A function of its own: inlined, its pointers find no registers.
__attribute__((noinline)) void widen_all(const int8_t* from, int64_t size, int64_t behind, float* to) {
  constexpr int64_t kLine = 64;
  int64_t i = 0;
  for (; i + kLine <= size; i += kLine) {
    __builtin_prefetch(from + i + behind);
#pragma GCC unroll 16
    for (int64_t k = i; k < i + kLine; k += kLanes) store(to + k, widen(from + k));
  }
  for (; i < size; i += kLanes) store(to + i, widen(from + i));
}

// sums[n][v]: of token n, by the outputs of vector v. x: `inputs` of each token, one token after another. w: as many of
// each wide, [inputs][kWide], `distance` apart.
template <int N, int kCount, class W>
XLASERVE_INLINE void multiply_tile(const float* x, const W* w, int64_t distance, int64_t inputs,
                                   Floats (&sums)[N][kCount]) {
#pragma GCC unroll 16
  for (int n = 0; n < N; n++)
#pragma GCC unroll 16
    for (int v = 0; v < kCount; v++) sums[n][v] = Floats{};
  auto add = [&](int64_t i) __attribute__((always_inline)) {
    Floats weights[kCount];
#pragma GCC unroll 16
    for (int v = 0; v < kCount; v++)
      weights[v] = widen(w + v / kVectors * distance + i * kWide + v % kVectors * kLanes);
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) {
      const Floats input = splat(x[n * inputs + i]);
#pragma GCC unroll 16
      for (int v = 0; v < kCount; v++) sums[n][v] += input * weights[v];
    }
  };
  constexpr int kOfLine = 64 / sizeof(W) / kWide;
  int64_t i = 0;
  if constexpr (kOfLine > 1)  // weights in place: those of the next panel are fetched
    for (; i + kOfLine <= inputs; i += kOfLine) {
#pragma GCC unroll 16
      for (int v = 0; v < kCount; v += kVectors)
        __builtin_prefetch(w + (v + kCount) / kVectors * distance + i * kWide);
#pragma GCC unroll 4
      for (int k = 0; k < kOfLine; k++) add(i + k);
    }
  for (; i < inputs; i++) add(i);
}

// The outputs from `output` on of N tokens, `token` and the next.
template <int N, int kCount>
XLASERVE_INLINE void finish(const FloatMatmul& m, const int64_t* tokens, int64_t output,
                            const Floats (&sums)[N][kCount]) {
#pragma GCC unroll 16
  for (int v = 0; v < kCount; v++, output += kLanes) {
    if (output + kLanes <= m.out) {
      const Finish<kLanes> finish(m, m.w_scales, output);
      for (int n = 0; n < N; n++) finish.put(tokens[n], sums[n][v]);
    } else {
      for (int64_t o = output; o < m.out; o++) {
        const Finish<1> finish(m, m.w_scales, o);
        for (int n = 0; n < N; n++) finish.put(tokens[n], splat(sums[n][v][o - output]));
      }
    }
  }
}

// What is multiplied with a block of inputs: of each wide [inputs][kWide], `distance` apart.
template <class W>
struct Panel {
  const W* w;
  int64_t distance;
};

// Those of int8 in place: for few tokens it takes less time to widen them once more than to write and read them as floats.
Panel<int8_t> panel_in_place(const FloatMatmul& m, const int8_t* w, int64_t output, int64_t start) {
  return {w + output * m.in + start * kWide, m.in * kWide};
}

template <int kWides>
void fill(const FloatMatmul& m, const int8_t* w, int64_t output, int64_t start, int64_t inputs, float* panel) {
  for (int i = 0; i < kWides; i++)
    widen_all(w + (output + i * kWide) * m.in + start * kWide, inputs * kWide, kWides * kWide * m.in,
              panel + i * kWide * kBlock);
}

template <int kWides, class W>
void fill(const FloatMatmul& m, const W* w, int64_t output, int64_t start, int64_t inputs, float* panel) {
  for (int v = 0; v < kWides * kVectors; v++, output += kLanes) {
    const W* rows[kLanes];
    for (int r = 0; r < kLanes; r++) rows[r] = w + std::min(output + r, m.out - 1) * m.in + start;
    widen_transposed(rows, inputs, panel + v / kVectors * kWide * kBlock + v % kVectors * kLanes, kWide);
  }
}

template <int kWides, class W>
Panel<float> panel_of_floats(const FloatMatmul& m, const W* w, int64_t output, int64_t start, int64_t inputs) {
  static thread_local Aligned floats;
  floats.resize(kWides * kWide * kBlock);
  fill<kWides>(m, w, output, start, inputs, floats.data());
  return {floats.data(), kBlock * kWide};
}

struct Part {  // of the tokens and inputs
  int64_t first, num_tokens, start, num_inputs;
};

// The outputs of a panel for N tokens of a part. `partial` [num_tokens][kWides * kWide] takes the sums from one block of
// inputs to the next.
template <int N, int kWides, class W>
void multiply_tokens(const FloatMatmul& m, const LiveFloats& live, const Part& part, int64_t token,
                     const Panel<W>& panel, int64_t output, float* partial) {
  constexpr int kCount = kWides * kVectors;
  Floats sums[N][kCount];
  multiply_tile(live.at(part.first + token, part.start, part.num_inputs), panel.w, panel.distance, part.num_inputs, sums);
  float* so_far = partial + token * kWides * kWide;
  const bool is_last = part.start + part.num_inputs == m.in;
#pragma GCC unroll 16
  for (int n = 0; n < N; n++)
#pragma GCC unroll 16
    for (int v = 0; v < kCount; v++, so_far += kLanes) {
      if (part.start) sums[n][v] += load(so_far);
      if (!is_last) store(so_far, sums[n][v]);
    }
  if (is_last) finish(m, live.tokens.data() + part.first + token, output, sums);
}

// Calls tile(count as a constant): count is Most at most.
template <int Most, class Tile>
XLASERVE_INLINE void with_count(int64_t count, const Tile& tile) {
  if (count == Most) return tile(std::integral_constant<int, Most>{});
  if constexpr (Most > 1) with_count<Most - 1>(count, tile);
}

// The outputs of kWides wides, for all tokens, Most at a time.
template <int Most, int kWides, bool kInPlace, class W>
void multiply_outputs(const FloatMatmul& m, const LiveFloats& live, const W* w, int64_t output) {
  static thread_local Aligned partial;
  const int64_t tokens = live.tokens.size();
  const int64_t most = std::max<int64_t>(kCachedInputs / m.in / Most, 4) * Most;
  partial.resize(std::min(tokens, most) * kWides * kWide);
  for (Part part{}; part.first < tokens; part.first += most) {
    part.num_tokens = std::min(most, tokens - part.first);
    for (part.start = 0; part.start < m.in; part.start += kBlock) {
      part.num_inputs = std::min(kBlock, m.in - part.start);
      const auto panel = [&] {
        if constexpr (kInPlace) return panel_in_place(m, w, output, part.start);
        else return panel_of_floats<kWides>(m, w, output, part.start, part.num_inputs);
      }();
      int64_t token = 0;
      for (int64_t tiles = (part.num_tokens + Most - 1) / Most; tiles; tiles--) {  // of like sizes
        const int64_t count = (part.num_tokens - token + tiles - 1) / tiles;
        with_count<Most>(count, [&](auto n) {
          multiply_tokens<decltype(n)::value, kWides>(m, live, part, token, panel, output, partial.data());
        });
        token += count;
      }
    }
  }
}

template <int Most, int kWides, bool kInPlace, class W>
void multiply_strip(const FloatMatmul& m, const LiveFloats& live, const W* w, int64_t output, int64_t end) {
  for (; output + kWides * kWide <= end; output += kWides * kWide)
    multiply_outputs<Most, kWides, kInPlace>(m, live, w, output);
  if constexpr (kWides > 1) return multiply_strip<Most, kWides / 2, kInPlace>(m, live, w, output, end);
  if (output < end) multiply_outputs<Most, 1, kInPlace>(m, live, w, output);  // of the last wide there may be less
}

template <class W>
void multiply_item(const FloatMatmul& m, const LiveFloats& live, const W* w, int64_t output, int64_t end) {
  constexpr bool kIsInt8 = std::is_same_v<W, int8_t>;
  constexpr int kManyWides = kSums / kMany / kVectors;
  const int64_t tokens = live.tokens.size();
  if (tokens == 1) return multiply_strip<1, 8 / kVectors, kIsInt8>(m, live, w, output, end);
  if (tokens <= kFew) return multiply_strip<kFew, kSums / kFew / kVectors, kIsInt8>(m, live, w, output, end);
  if (tokens <= kMostInPlace) return multiply_strip<kMany, kManyWides, kIsInt8>(m, live, w, output, end);
  multiply_strip<kMany, kManyWides, false>(m, live, w, output, end);
}

}  // namespace

void multiply(const std::vector<FloatMatmul>& matmuls, const Parallel& parallel) {
  const void* x = matmuls[0].x;
  const LiveFloats live = matmuls[0].x_is_bfloat16 ? live_floats(matmuls, static_cast<const BFloat16*>(x))
                                                   : live_floats(matmuls, static_cast<const float*>(x));
  if (live.tokens.empty()) return;
  over_strips(matmuls, live.tokens.size(), parallel, [&](const FloatMatmul& m, int64_t output, int64_t end) {
    switch (m.w_stored) {
      case Weights::kFloat32: return multiply_item(m, live, static_cast<const float*>(m.w), output, end);
      case Weights::kBFloat16: return multiply_item(m, live, static_cast<const BFloat16*>(m.w), output, end);
      case Weights::kInt8: return multiply_item(m, live, static_cast<const int8_t*>(m.w), output, end);
    }
  });
}

}  // namespace xlaserve
