// An item of work is a strip of outputs. A panel of the weights of kPanel outputs stays in the first cache, as floats, while
// tokens are multiplied with it, a few at a time, so that the sums of a tile stay in registers. Vectors run along the
// inputs, of which there may be so many that they are taken block by block.
#include "matmul.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "simd.h"

namespace xlaserve {
namespace {

constexpr int kPanel = 3;                   // outputs
constexpr int64_t kUnit = 24;               // outputs: strips are made of whole panels, whatever their size
constexpr int64_t kWorkOfAnItem = 1 << 17;  // products, about; of fewer, a thread takes longer to fetch the next
constexpr int64_t kInputs = 1024;           // of a block: a panel is 12 KB
constexpr int64_t kCachedInputs = 48 << 10;  // of the tokens that go along a strip: 192 KB of the second cache

// Calls strip(first output, end) for all outputs.
template <class Strip>
void over_strips(const Matmul& m, int64_t tokens, const Parallel& parallel, const Strip& strip) {
  const int64_t units = (m.out + kUnit - 1) / kUnit;
  const int64_t least = std::max<int64_t>(kWorkOfAnItem / (tokens * m.in * kUnit), 1);
  const int64_t size = std::min(least, (units + 7) / 8) * kUnit;  // for as many threads as there may be
  const int64_t items = (m.out + size - 1) / size;
  parallel(items, (items + 1) / 2, [&](int64_t item) { strip(item * size, std::min(m.out, (item + 1) * size)); });
}

// What becomes of the sums of M outputs.
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

// Calls tile(token, N as a constant) for all tokens, N <= Most at a time; of the last ones rather 3 and 2 than 4 and 1.
template <int Most, class Tile>
XLASERVE_INLINE void over_tokens(int64_t tokens, const Tile& tile) {
  int64_t token = 0;
  for (; token + Most <= tokens && (Most < 3 || token + Most + 1 != tokens); token += Most)
    tile(token, std::integral_constant<int, Most>{});
  if constexpr (Most > 1)
    over_tokens<Most - 1>(tokens - token, [&](int64_t rest, auto count) { tile(token + rest, count); });
}

// What the lanes of M sums of each of N tokens add up to, with room to read a token's as a whole vector.
template <int N, int M>
struct Totals {
  float values[round_up(N * M) + kLanes];

  XLASERVE_INLINE Floats of(int n) const { return load(values + n * M); }
};

template <int N, int M>
XLASERVE_INLINE Totals<N, M> total(const Floats (&sums)[N][M]) {
  Totals<N, M> totals;
#pragma GCC unroll 4
  for (int i = 0; i < N * M; i += kLanes) {
    Floats some[kLanes] = {};
    for (int k = 0; k < std::min(kLanes, N * M - i); k++) some[k] = sums[(i + k) / M][(i + k) % M];
    store(totals.values + i, sum_each(some));
  }
  return totals;
}

// The tokens whose inputs are not all zero. Those of padding are, and so cost nothing: their product is the bias.
template <class IsZero>
std::vector<int64_t> live_tokens(const Matmul& m, const IsZero& is_zero) {
  std::vector<int64_t> live;
  for (int64_t token = 0; token < m.tokens; token++) {
    if (!is_zero(token)) {
      live.push_back(token);
      continue;
    }
    int64_t output = 0;
    for (; output + kLanes <= m.out; output += kLanes) Finish<kLanes>(m, nullptr, output).put(token, Floats{});
    for (; output < m.out; output++) Finish<1>(m, nullptr, output).put(token, Floats{});
  }
  return live;
}

// ---- float32, bfloat16, and int8 with a scale per output

// sums[n][m] = x[n] * w[m] of `in` inputs, by lanes; prefetch: of the weights behind these M.
template <class W, int N, int M, bool kPrefetch>
XLASERVE_INLINE void float_tile(const float* x, const W* w, int64_t stride, int64_t in, Floats (&sums)[N][M]) {
  auto add = [&](auto load_x, auto load_w) __attribute__((always_inline)) {
    Floats xs[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) xs[n] = load_x(n);
#pragma GCC unroll 8
    for (int o = 0; o < M; o++) {
      const Floats weights = load_w(o);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sums[n][o] += xs[n] * weights;
    }
  };
  auto add_at = [&](int64_t i) __attribute__((always_inline)) {
    add([&](int n) { return load(x + n * in + i); }, [&](int o) { return widen(w + o * stride + i); });
  };
  constexpr int64_t kLine = 64 / sizeof(W);
  int64_t i = 0;
  if constexpr (kPrefetch)
    for (; i + kLine <= in; i += kLine) {
#pragma GCC unroll 8
      for (int o = 0; o < M; o++) __builtin_prefetch(w + (o + M) * stride + i);
#pragma GCC unroll 16
      for (int64_t k = 0; k < kLine; k += kLanes) add_at(i + k);
    }
  for (; i + kLanes <= in; i += kLanes) add_at(i);
  if (i < in) {
    const int rest = in - i;
    add([&](int n) { return widen_some(x + n * in + i, rest); },
        [&](int o) { return widen_some(w + o * stride + i, rest); });
  }
}

constexpr int kFloatTokens = 4;  // of a tile: 12 sums
constexpr int kFewTokens = 3;    // up to these weights are used as they are stored, else widened first

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
  int64_t block;  // inputs, whole lines of the cache; of the last there may be less
  Aligned x;      // [in / block][tokens][block]

  const float* at(int64_t token, int64_t start, int64_t num_inputs) const {
    return x.data() + start * tokens.size() + token * num_inputs;
  }
};

// The M outputs from `output` on of a few tokens; `w` holds their weights, one output after another.
template <class W, int N, int M>
XLASERVE_INLINE void put_few(const FloatMatmul& m, const LiveFloats& live, const W* w, int64_t token, int64_t output) {
  Floats so_far[N] = {};
  for (int64_t start = 0; start < m.in; start += live.block) {
    const int64_t inputs = std::min(live.block, m.in - start);
    Floats sums[N][M] = {};
    float_tile<W, N, M, true>(live.at(token, start, inputs), w + start, m.in, inputs, sums);
    const auto totals = total(sums);
    for (int n = 0; n < N; n++) so_far[n] += totals.of(n);
  }
  const Finish<M> finish(m, m.w_scales, output);
  for (int n = 0; n < N; n++) finish.put(live.tokens[token + n], so_far[n]);
}

// Outputs `output` to `end` of a few tokens, M at a time.
template <class W, int M>
void put_outputs(const FloatMatmul& m, const LiveFloats& live, const W* w, int64_t output, int64_t end) {
  over_tokens<kFewTokens>(live.tokens.size(), [&](int64_t token, auto count) {
    constexpr int N = decltype(count)::value;
    const W* weights = w;
    int64_t o = output;
    for (; o + M <= end; o += M, weights += M * m.in) put_few<W, N, M>(m, live, weights, token, o);
    for (; o < end; o++, weights += m.in) put_few<W, N, 1>(m, live, weights, token, o);
  });
}

struct Part {  // of the tokens and inputs
  int64_t first, num_tokens, start, num_inputs;
};

// The M outputs from `output` on of a part; `panel` holds the weights of its inputs, one output after another.
// `partial` [num_tokens][kLanes] takes the sums from one part of the inputs to the next.
template <int M>
void put_part(const FloatMatmul& m, const LiveFloats& live, const Part& part, const float* panel, int64_t output,
              float* partial) {
  const Finish<M> finish(m, m.w_scales, output);
  const bool is_first = part.start == 0, is_last = part.start + part.num_inputs == m.in;
  over_tokens<kFloatTokens>(part.num_tokens, [&](int64_t token, auto count) {
    constexpr int N = decltype(count)::value;
    Floats sums[N][M] = {};
    const float* x = live.at(part.first + token, part.start, part.num_inputs);
    float_tile<float, N, M, false>(x, panel, part.num_inputs, part.num_inputs, sums);
    const auto totals = total(sums);
    for (int n = 0; n < N; n++) {
      float* so_far = partial + (token + n) * kLanes;
      const Floats sum = totals.of(n) + (is_first ? Floats{} : load(so_far));
      if (is_last)
        finish.put(live.tokens[part.first + token + n], sum);
      else
        store(so_far, sum);
    }
  });
}

// Fetches what comes behind, too.
template <class T>
void widen_all(const T* from, float* to, int64_t size) {
  constexpr int64_t kLine = 64 / sizeof(T);
  int64_t i = 0;
  for (; i + kLine <= size; i += kLine) {
    __builtin_prefetch(from + size + i);
#pragma GCC unroll 16
    for (int64_t k = 0; k < kLine; k += kLanes) store(to + i + k, widen(from + i + k));
  }
  for (; i + kLanes <= size; i += kLanes) store(to + i, widen(from + i));
  if (i < size) narrow_some(to + i, widen_some(from + i, size - i), size - i);
}

template <class T>
LiveFloats live_floats(const FloatMatmul& m, const T* x) {
  auto is_zero = [&](int64_t token) {
    return std::all_of(x + token * m.in, x + (token + 1) * m.in, [](T value) { return xlaserve::is_zero(value); });
  };
  const int64_t num_blocks = (m.in + kInputs - 1) / kInputs;
  LiveFloats live{live_tokens(m, is_zero), (m.in / num_blocks + 64) / 64 * 64, {}};
  const int64_t tokens = live.tokens.size();
  live.x.resize(tokens * m.in);
  for (int64_t start = 0; start < m.in; start += live.block) {
    const int64_t size = std::min(live.block, m.in - start);
    for (int64_t i = 0; i < tokens; i++)
      widen_all(x + live.tokens[i] * m.in + start, live.x.data() + start * tokens + i * size, size);
  }
  return live;
}

template <class W>
void multiply_strip(const FloatMatmul& m, const LiveFloats& live, const W* w, int64_t output, int64_t end) {
  const int64_t tokens = live.tokens.size(), inputs = std::min(live.block, m.in);
  const int64_t most = std::max<int64_t>(kCachedInputs / inputs / kFloatTokens, 4) * kFloatTokens;
  static thread_local Aligned panel, partial;
  panel.resize(kPanel * inputs);
  partial.resize((end - output + kPanel - 1) / kPanel * std::min(tokens, most) * kLanes);
  for (Part part{}; part.first < tokens; part.first += most) {
    part.num_tokens = std::min(most, tokens - part.first);
    for (part.start = 0; part.start < m.in; part.start += inputs) {
      part.num_inputs = std::min(inputs, m.in - part.start);
      float* sums = partial.data();
      for (int64_t o = output; o < end; o += kPanel, sums += part.num_tokens * kLanes) {
        const int count = std::min<int64_t>(kPanel, end - o);
        for (int i = 0; i < count; i++)
          widen_all(w + (o + i) * m.in + part.start, panel.data() + i * part.num_inputs, part.num_inputs);
        if (count == kPanel) put_part<kPanel>(m, live, part, panel.data(), o, sums);
        if (count == 1) put_part<1>(m, live, part, panel.data(), o, sums);
        if (count == 2) put_part<2>(m, live, part, panel.data(), o, sums);
      }
    }
  }
}

template <class W>
void multiply_floats(const FloatMatmul& m, const LiveFloats& live, const W* w, const Parallel& parallel) {
  const int64_t tokens = live.tokens.size();
  if (tokens == 0) return;
  over_strips(m, tokens, parallel, [&](int64_t output, int64_t end) {
    const W* weights = w + output * m.in;
    if (tokens == 1) return put_outputs<W, std::min(8, kLanes)>(m, live, weights, output, end);
    if (tokens <= kFewTokens) return put_outputs<W, 4>(m, live, weights, output, end);
    multiply_strip(m, live, w, output, end);
  });
}

// ---- int8

typedef int8_t Bytes __attribute__((vector_size(4 * XLASERVE_LANES)));
constexpr int kBytes = 4 * kLanes;

// sums[i] += the products of the four bytes at 4i. The sign goes from w to x, as instructions want one without.
XLASERVE_INLINE Ints add_products(Ints sums, Bytes x, Bytes w) {
#if defined(__AVX512VNNI__) && XLASERVE_LANES == 16
  const __m512i signed_x = _mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask((__m512i)w), __m512i{}, (__m512i)x);
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, _mm512_abs_epi8((__m512i)w), signed_x);
#elif defined(__AVX2__) && XLASERVE_LANES == 8
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), _mm256_sign_epi8((__m256i)x, (__m256i)w));
  return sums + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  for (int i = 0; i < kBytes; i++) sums[i / 4] += int(x[i]) * w[i];
  return sums;
#endif
}

XLASERVE_INLINE Bytes some_bytes(const int8_t* p, int64_t count) {
  if (count >= kBytes) return load_as<Bytes>(p);
  int8_t some[kBytes] = {};
  memcpy(some, p, count);
  return load_as<Bytes>(some);
}

// The scales that the lanes of a sum are to be multiplied with: of one group, or of the groups in one vector.
XLASERVE_INLINE Floats lane_scales(const Int8Matmul& m, const float* scales, int64_t groups_left) {
  Floats x = splat(scales[0]);
  if (m.group < kBytes)
    for (int lane = 1; lane < kLanes; lane++) x[lane] = scales[std::min(4 * lane / m.group, groups_left - 1)];
  return x;
}

template <int N, int M>
XLASERVE_INLINE void int8_tile(const Int8Matmul& m, const int64_t* tokens, int64_t output) {
  const int64_t groups = m.in / m.group, step = std::max<int64_t>(m.group, kBytes);
  const int64_t groups_of_step = step / m.group;
  const int8_t* w = m.w + output * m.in;
  Floats sums[N][M] = {};
  for (int64_t start = 0, group = 0; start < m.in; start += step, group += groups_of_step) {
    Ints exact[M][N] = {};
    const int64_t end = std::min(start + step, m.in);
    for (int64_t i = start; i < end; i += kBytes) {
      Bytes xs[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) xs[n] = some_bytes(m.x + tokens[n] * m.in + i, end - i);
#pragma GCC unroll 8
      for (int o = 0; o < M; o++) {
        const Bytes weights = some_bytes(w + o * m.in + i, end - i);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) exact[o][n] = add_products(exact[o][n], xs[n], weights);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      const Floats lanes = lane_scales(m, m.x_scales + tokens[n] * groups + group, groups - group);
#pragma GCC unroll 8
      for (int o = 0; o < M; o++) sums[n][o] += __builtin_convertvector(exact[o][n], Floats) * lanes;
    }
  }
  const Finish<M> finish(m, m.w_scales, output);
  const auto totals = total(sums);
  for (int n = 0; n < N; n++) finish.put(tokens[n], totals.of(n));
}

}  // namespace

void multiply(const FloatMatmul& m, const Parallel& parallel) {
  const LiveFloats live = m.x_is_bfloat16 ? live_floats(m, static_cast<const BFloat16*>(m.x))
                                          : live_floats(m, static_cast<const float*>(m.x));
  switch (m.w_stored) {
    case Weights::kFloat32: return multiply_floats(m, live, static_cast<const float*>(m.w), parallel);
    case Weights::kBFloat16: return multiply_floats(m, live, static_cast<const BFloat16*>(m.w), parallel);
    case Weights::kInt8: return multiply_floats(m, live, static_cast<const int8_t*>(m.w), parallel);
  }
}

void multiply(const Int8Matmul& m, const Parallel& parallel) {
  const auto live = live_tokens(m, [&](int64_t token) {
    return std::all_of(m.x + token * m.in, m.x + (token + 1) * m.in, [](int8_t value) { return value == 0; });
  });
  if (live.empty()) return;
  over_strips(m, live.size(), parallel, [&](int64_t output, int64_t end) {
    over_tokens<2>(live.size(), [&](int64_t token, auto n) {
      constexpr int N = decltype(n)::value;
      constexpr int M = N == 1 ? 4 : 2;
      int64_t o = output;
      for (; o + M <= end; o += M) int8_tile<N, M>(m, live.data() + token, o);
      for (; o < end; o++) int8_tile<N, 1>(m, live.data() + token, o);
    });
  });
}

}  // namespace xlaserve
