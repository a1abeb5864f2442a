// Products of int8 summed exactly within a group. Vectors run along the inputs, since instructions add neighbours.
#include "matmul.h"
#include "products.h"
#include "simd.h"

namespace xlaserve {
namespace {

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

typedef int8_t Bytes __attribute__((vector_size(4 * XLASERVE_LANES)));
constexpr int kBytes = 4 * kLanes;

// sums[i] += the products of the four bytes at 4i. The sign goes from w to x, as instructions want one without.
XLASERVE_INLINE Ints add_products(Ints sums, Bytes x, Bytes w) {
#if defined(__AVX512VNNI__) && XLASERVE_LANES == 16
  const __m512i signed_x = _mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask((__m512i)w), __m512i{}, (__m512i)x);
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, _mm512_abs_epi8((__m512i)w), signed_x);
#elif defined(__AVX512BW__) && XLASERVE_LANES == 16
  const __m512i signed_x = _mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask((__m512i)w), __m512i{}, (__m512i)x);
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8((__m512i)w), signed_x);
  return sums + (Ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
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

void multiply(const std::vector<Int8Matmul>& matmuls, const Parallel& parallel) {
  const auto live = live_tokens(matmuls, [&first = matmuls[0]](int64_t token) {
    const int8_t* x = first.x + token * first.in;
    return std::all_of(x, x + first.in, [](int8_t value) { return value == 0; });
  });
  if (live.empty()) return;
  over_strips(matmuls, live.size(), parallel, [&](const Int8Matmul& m, int64_t output, int64_t end) {
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
