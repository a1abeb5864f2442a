// An item of work is a strip of outputs. A panel of kPanel of its weights stays in the first cache while all tokens are
// multiplied with it, a few at a time, so that the sums of a tile stay in registers. Vectors run along the inputs.
#include "matmul.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "simd.h"

namespace xlaserve {
namespace {

constexpr int kPanel = 4;                  // outputs
constexpr int64_t kWorkOfAnItem = 1 << 15;  // products, about; of fewer, a thread takes longer to fetch the next

// Calls panel(first output, how many) for all outputs.
template <class Panel>
void over_panels(const Matmul& m, const Parallel& parallel, const Panel& panel) {
  const int64_t panels = (m.out + kPanel - 1) / kPanel;
  const int64_t strip = std::max<int64_t>(1, kWorkOfAnItem / (m.tokens * m.in * kPanel));
  const int64_t items = (panels + strip - 1) / strip;
  parallel(items, (items + 1) / 2, [&](int64_t item) {
    const int64_t end = std::min(m.out, (item + 1) * strip * kPanel);
    for (int64_t o = item * strip * kPanel; o < end; o += kPanel) panel(o, int(std::min<int64_t>(kPanel, end - o)));
  });
}

XLASERVE_INLINE void put(const Matmul& m, int64_t token, int64_t output, float y) {
  if (m.bias) y += m.bias[output];
  if (m.y_is_bfloat16)
    narrow_some(static_cast<BFloat16*>(m.y) + token * m.out + output, splat(y), 1);
  else
    static_cast<float*>(m.y)[token * m.out + output] = y;
}

// Calls tile(token, N as a constant) for all tokens, N <= Most at a time.
template <int Most, class Tile>
XLASERVE_INLINE void over_tokens(int64_t tokens, const Tile& tile) {
  int64_t token = 0;
  for (; token + Most <= tokens; token += Most) tile(token, std::integral_constant<int, Most>{});
  if constexpr (Most > 1)
    over_tokens<Most - 1>(tokens - token, [&](int64_t rest, auto count) { tile(token + rest, count); });
}

// ---- float32 and bfloat16

template <class W, int N, int M>
XLASERVE_INLINE void float_tile(const FloatMatmul& m, const float* x, int64_t x_stride, const W* w, int64_t w_stride,
                                int64_t token, int64_t output) {
  Floats sums[M][N] = {};
  const int64_t whole = m.in / kLanes * kLanes;
  auto add = [&](auto load_x, auto load_w) __attribute__((always_inline)) {
    Floats xs[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) xs[n] = load_x(n);
#pragma GCC unroll 8
    for (int o = 0; o < M; o++) {
      const Floats weights = load_w(o);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sums[o][n] += xs[n] * weights;
    }
  };
  for (int64_t i = 0; i < whole; i += kLanes)
    add([&](int n) { return load(x + n * x_stride + i); },
        [&](int o) {
          __builtin_prefetch(w + (o + M) * w_stride + i);  // of the next panel: rows are too short to be foreseen
          return widen(w + o * w_stride + i);
        });
  if (whole < m.in) {
    const int rest = m.in - whole;
    add([&](int n) { return widen_some(x + n * x_stride + whole, rest); },
        [&](int o) { return widen_some(w + o * w_stride + whole, rest); });
  }
  for (int o = 0; o < M; o++)
    for (int n = 0; n < N; n++) put(m, token + n, output + o, sum(sums[o][n]));
}

constexpr int kFloatTokens = 3;  // of a tile: 12 sums

template <class W>
void float_panel(const FloatMatmul& m, const float* x, const W* w, int64_t stride, int64_t output, int count) {
  over_tokens<kFloatTokens>(m.tokens, [&](int64_t token, auto n) {
    constexpr int N = decltype(n)::value;
    const float* first = x + token * m.in;
    if (count == kPanel) return float_tile<W, N, kPanel>(m, first, m.in, w, stride, token, output);
    for (int o = 0; o < count; o++) float_tile<W, N, 1>(m, first, m.in, w + o * stride, stride, token, output + o);
  });
}

template <class T>
void widen_all(const T* from, float* to, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(to + i, widen(from + i));
  if (i < size) narrow_some(to + i, widen_some(from + i, size - i), size - i);
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
XLASERVE_INLINE void int8_tile(const Int8Matmul& m, int64_t token, int64_t output) {
  const int64_t groups = m.in / m.group, step = std::max<int64_t>(m.group, kBytes);
  const int64_t groups_of_step = step / m.group;
  const float* scales = m.x_scales + token * groups;
  const int8_t *x = m.x + token * m.in, *w = m.w + output * m.in;
  Floats sums[M][N] = {};
  for (int64_t start = 0, group = 0; start < m.in; start += step, group += groups_of_step) {
    Ints exact[M][N] = {};
    const int64_t end = std::min(start + step, m.in);
    for (int64_t i = start; i < end; i += kBytes) {
      Bytes xs[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) xs[n] = some_bytes(x + n * m.in + i, end - i);
#pragma GCC unroll 8
      for (int o = 0; o < M; o++) {
        const Bytes weights = some_bytes(w + o * m.in + i, end - i);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) exact[o][n] = add_products(exact[o][n], xs[n], weights);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      const Floats lanes = lane_scales(m, scales + n * groups + group, groups - group);
#pragma GCC unroll 8
      for (int o = 0; o < M; o++) sums[o][n] += __builtin_convertvector(exact[o][n], Floats) * lanes;
    }
  }
  for (int o = 0; o < M; o++)
    for (int n = 0; n < N; n++) put(m, token + n, output + o, sum(sums[o][n]) * m.w_scales[output + o]);
}

}  // namespace

void multiply(const FloatMatmul& m, const Parallel& parallel) {
  std::unique_ptr<float[]> widened;
  const float* x = static_cast<const float*>(m.x);
  if (m.x_is_bfloat16) {
    widened.reset(new float[m.tokens * m.in]);
    widen_all(static_cast<const BFloat16*>(m.x), widened.get(), m.tokens * m.in);
    x = widened.get();
  }
  over_panels(m, parallel, [&](int64_t output, int count) {
    if (!m.w_is_bfloat16) return float_panel(m, x, static_cast<const float*>(m.w) + output * m.in, m.in, output, count);
    const BFloat16* w = static_cast<const BFloat16*>(m.w) + output * m.in;
    if (m.tokens <= kFloatTokens) return float_panel(m, x, w, m.in, output, count);
    static thread_local std::vector<float> panel;
    panel.resize(count * m.in);
    widen_all(w, panel.data(), count * m.in);
    float_panel(m, x, panel.data(), m.in, output, count);
  });
}

void multiply(const Int8Matmul& m, const Parallel& parallel) {
  over_panels(m, parallel, [&](int64_t output, int count) {
    over_tokens<2>(m.tokens, [&](int64_t token, auto n) {
      constexpr int N = decltype(n)::value;
      int o = 0;
      for (; o + 2 <= count; o += 2) int8_tile<N, 2>(m, token, output + o);
      if (o < count) int8_tile<N, 1>(m, token, output + o);
    });
  });
}

}  // namespace xlaserve
