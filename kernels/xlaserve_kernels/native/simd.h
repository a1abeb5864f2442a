// Vectors of kLanes floats, as GCC's and Clang's vector extensions have them: one source for every instruction set.
// How wide they are follows from the flags that a file is compiled with; -DXLASERVE_LANES=16 tries another width.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(XLASERVE_LANES)
#elif defined(__AVX512F__)
#define XLASERVE_LANES 16
#elif defined(__AVX2__)
#define XLASERVE_LANES 8
#else
#define XLASERVE_LANES 4
#endif

namespace xlaserve {

constexpr int kLanes = XLASERVE_LANES;
typedef float Floats __attribute__((vector_size(4 * XLASERVE_LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * XLASERVE_LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * XLASERVE_LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * XLASERVE_LANES)));
typedef uint8_t Octets __attribute__((vector_size(XLASERVE_LANES)));

#define XLASERVE_INLINE inline __attribute__((always_inline))

constexpr int round_up(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

template <class V, class T>
XLASERVE_INLINE V load_as(const T* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

XLASERVE_INLINE Floats load(const float* p) { return load_as<Floats>(p); }
XLASERVE_INLINE void store(float* p, Floats v) { memcpy(p, &v, sizeof v); }
XLASERVE_INLINE Floats splat(float x) { return x - Floats{}; }
XLASERVE_INLINE Floats select(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }
XLASERVE_INLINE Floats largest(Floats a, Floats b) { return select(a > b, a, b); }

// Elements of the stored dtypes. kLanes of them as floats, or one.
struct BFloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };
struct Float8 { uint8_t bits; };  // E4M3FN: no infinity

XLASERVE_INLINE bool is_zero(float x) { return x == 0; }
XLASERVE_INLINE bool is_zero(BFloat16 x) { return uint16_t(x.bits << 1) == 0; }
XLASERVE_INLINE bool is_zero(int8_t x) { return x == 0; }

// Unsigned integers of fewer bits. GCC makes several instructions of the conversion where there is one.
XLASERVE_INLINE Words as_words(const uint16_t* p) {
#if defined(__AVX512F__) && XLASERVE_LANES == 16
  return (Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__) && XLASERVE_LANES == 8
  return (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
#else
  return __builtin_convertvector(load_as<Halves>(p), Words);
#endif
}
XLASERVE_INLINE Words as_words(const uint8_t* p) {
#if defined(__AVX512F__) && XLASERVE_LANES == 16
  return (Words)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__) && XLASERVE_LANES == 8
  return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  return __builtin_convertvector(load_as<Octets>(p), Words);
#endif
}

XLASERVE_INLINE Floats widen(const float* p) { return load(p); }
XLASERVE_INLINE Floats widen(const BFloat16* p) {
  return (Floats)(as_words((const uint16_t*)p) << 16);
}
XLASERVE_INLINE Floats widen(const int8_t* p) {
#if defined(__AVX512F__) && XLASERVE_LANES == 16
  const Ints values = (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__) && XLASERVE_LANES == 8
  const Ints values = (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  const Ints values = (Ints)(as_words((const uint8_t*)p) << 24) >> 24;
#endif
  return __builtin_convertvector(values, Floats);
}

// Bits of a float of fewer bits, its sign moved to the top and its exponent's lowest bit to float32's. Numbers below
// the normal ones are made by a subtraction of normal ones: threads of XLA flush others to zero.
template <int kBias>
XLASERVE_INLINE Floats rebias(Words sign, Words rest, Ints special) {
  Words bits = rest + (uint32_t(127 - kBias) << 23);
  Floats smallest = (Floats)(bits + (1u << 23)) - (Floats)(Words{} + (uint32_t(128 - kBias) << 23));
  bits = (rest >> 23) == 0 ? (Words)smallest : bits;
  return (Floats)((special ? rest | 0x7f800000u : bits) | sign);
}
XLASERVE_INLINE Floats widen(const Float16* p) {
  Words bits = as_words((const uint16_t*)p);
  return rebias<15>((bits & 0x8000u) << 16, (bits & 0x7fffu) << 13, (bits & 0x7c00u) == 0x7c00u);
}
XLASERVE_INLINE Floats widen(const Float8* p) {
  Words bits = as_words((const uint8_t*)p);
  return rebias<7>((bits & 0x80u) << 24, (bits & 0x7fu) << 20, (bits & 0x7fu) == 0x7fu);
}

// kLanes floats to bfloat16, halves to the even neighbour; NaN stays NaN.
XLASERVE_INLINE void narrow(BFloat16* p, Floats x) {
  Words bits = (Words)x;
  Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  rounded = x == x ? rounded : Words{} + 0x7fc0u;
  Halves halves = __builtin_convertvector(rounded, Halves);
  memcpy(p, &halves, sizeof halves);
}
XLASERVE_INLINE void narrow(float* p, Floats x) { store(p, x); }

// The first `count` elements only; the others read as zeros.
template <class T>
XLASERVE_INLINE Floats widen_some(const T* p, int count) {
  T some[kLanes] = {};
  memcpy(some, p, count * sizeof(T));
  return widen(some);
}
template <class T>
XLASERVE_INLINE void narrow_some(T* p, Floats x, int count) {
  T some[kLanes];
  narrow(some, x);
  memcpy(p, some, count * sizeof(T));
}

XLASERVE_INLINE float sum(Floats x) {
  float total = 0;
  for (int i = 0; i < kLanes; i++) total += x[i];
  return total;
}
XLASERVE_INLINE float max(Floats x) {
  float most = x[0];
  for (int i = 1; i < kLanes; i++) most = x[i] > most ? x[i] : most;
  return most;
}

// e^x to 2 units in the last place; NaN stays NaN, below -87 it is the least normal number.
XLASERVE_INLINE Floats exp(Floats x) {
  x = select(x < splat(-87.0f), splat(-87.0f), x);
  x = select(x > splat(88.0f), splat(88.0f), x);
  const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: to add it leaves the integer in the low bits
  Floats shifted = x * 1.44269504f + shift;
  Floats n = shifted - shift;
  Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  Words power = ((Words)shifted - (Words)shift + 127u) << 23;
  return p * (Floats)power;
}

// Pairs of neighbours within 4 lanes, and groups of 4 lanes, of two vectors.
#if XLASERVE_LANES == 4
#define XLASERVE_EVENS 0, 2, 4, 6
#define XLASERVE_ODDS 1, 3, 5, 7
#elif XLASERVE_LANES == 8
#define XLASERVE_EVENS 0, 2, 8, 10, 4, 6, 12, 14
#define XLASERVE_ODDS 1, 3, 9, 11, 5, 7, 13, 15
#define XLASERVE_EVEN_FOURS 0, 1, 2, 3, 8, 9, 10, 11
#define XLASERVE_ODD_FOURS 4, 5, 6, 7, 12, 13, 14, 15
#else
#define XLASERVE_EVENS 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30
#define XLASERVE_ODDS 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31
#define XLASERVE_EVEN_FOURS 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define XLASERVE_ODD_FOURS 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define XLASERVE_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define XLASERVE_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

// Lane i of the result is the sum of all lanes of v[i].
template <int N = kLanes>
XLASERVE_INLINE Floats sum_each(const Floats* v) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    Floats a = sum_each<N / 2>(v), b = sum_each<N / 2>(v + N / 2);
#if XLASERVE_LANES > 4
    if constexpr (N > 4) return XLASERVE_SHUFFLE(a, b, XLASERVE_EVEN_FOURS) + XLASERVE_SHUFFLE(a, b, XLASERVE_ODD_FOURS);
#endif
    return XLASERVE_SHUFFLE(a, b, XLASERVE_EVENS) + XLASERVE_SHUFFLE(a, b, XLASERVE_ODDS);
  }
}

}  // namespace xlaserve
