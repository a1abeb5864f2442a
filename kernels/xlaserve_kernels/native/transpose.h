// kLanes rows of stored numbers, as vectors that run across the rows.
#pragma once

#include "simd.h"

namespace xlaserve {

// Neighbours of two vectors, side by side, within 4 lanes: the former and the latter two, of single lanes and of pairs.
#if XLASERVE_LANES == 4
#define XLASERVE_ZIP_LOW 0, 4, 1, 5
#define XLASERVE_ZIP_HIGH 2, 6, 3, 7
#define XLASERVE_ZIP_LOW_PAIRS 0, 1, 4, 5
#define XLASERVE_ZIP_HIGH_PAIRS 2, 3, 6, 7
#elif XLASERVE_LANES == 8
#define XLASERVE_ZIP_LOW 0, 8, 1, 9, 4, 12, 5, 13
#define XLASERVE_ZIP_HIGH 2, 10, 3, 11, 6, 14, 7, 15
#define XLASERVE_ZIP_LOW_PAIRS 0, 1, 8, 9, 4, 5, 12, 13
#define XLASERVE_ZIP_HIGH_PAIRS 2, 3, 10, 11, 6, 7, 14, 15
#else
#define XLASERVE_ZIP_LOW 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define XLASERVE_ZIP_HIGH 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define XLASERVE_ZIP_LOW_PAIRS 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define XLASERVE_ZIP_HIGH_PAIRS 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#endif

// from[g] has 4 lanes of each of kGroups columns, for rows 4g to 4g + 3; to[i * kStep] becomes column i.
template <int kGroups, int kStep>
XLASERVE_INLINE void join_fours(const Words* from, Words* to) {
  if constexpr (kGroups == 1) {
    to[0] = from[0];
  } else {
#if XLASERVE_LANES > 4
    Words evens[kGroups / 2], odds[kGroups / 2];
#pragma GCC unroll 4
    for (int i = 0; i < kGroups / 2; i++) {
      evens[i] = XLASERVE_SHUFFLE(from[2 * i], from[2 * i + 1], XLASERVE_EVEN_FOURS);
      odds[i] = XLASERVE_SHUFFLE(from[2 * i], from[2 * i + 1], XLASERVE_ODD_FOURS);
    }
    join_fours<kGroups / 2, 2 * kStep>(evens, to);
    join_fours<kGroups / 2, 2 * kStep>(odds, to + kStep);
#endif
  }
}

// Lane j of v[i] becomes lane i of v[j].
XLASERVE_INLINE void transpose(Words (&v)[kLanes]) {
  constexpr int kGroups = kLanes / 4;
  Words fours[4][kGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; g++) {
    const Words* r = v + 4 * g;
    const Words low01 = XLASERVE_SHUFFLE(r[0], r[1], XLASERVE_ZIP_LOW);
    const Words high01 = XLASERVE_SHUFFLE(r[0], r[1], XLASERVE_ZIP_HIGH);
    const Words low23 = XLASERVE_SHUFFLE(r[2], r[3], XLASERVE_ZIP_LOW);
    const Words high23 = XLASERVE_SHUFFLE(r[2], r[3], XLASERVE_ZIP_HIGH);
    fours[0][g] = XLASERVE_SHUFFLE(low01, low23, XLASERVE_ZIP_LOW_PAIRS);
    fours[1][g] = XLASERVE_SHUFFLE(low01, low23, XLASERVE_ZIP_HIGH_PAIRS);
    fours[2][g] = XLASERVE_SHUFFLE(high01, high23, XLASERVE_ZIP_LOW_PAIRS);
    fours[3][g] = XLASERVE_SHUFFLE(high01, high23, XLASERVE_ZIP_HIGH_PAIRS);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) join_fours<kGroups, 4>(fours[i], v + i);
}

// The numbers of a word, the first in its lowest bits: number k of each lane.
template <int k>
XLASERVE_INLINE Floats number(Words words, const float*) { return (Floats)words; }
template <int k>
XLASERVE_INLINE Floats number(Words words, const BFloat16*) {
  return (Floats)(k ? words & 0xffff0000u : words << 16);
}

// The words v[r] of the rows, as floats: the numbers at i go to to + i * distance, `count` of them.
template <class T>
XLASERVE_INLINE void widen_words(Words (&v)[kLanes], int64_t count, float* to, int64_t distance) {
  constexpr int kOfWord = 4 / sizeof(T);
  const T* type = nullptr;
  transpose(v);
#pragma GCC unroll 16
  for (int c = 0; c < kLanes; c++, to += kOfWord * distance) {
    if (c * kOfWord < count) store(to, number<0>(v[c], type));
    if (kOfWord > 1 && c * kOfWord + 1 < count) store(to + distance, number<1>(v[c], type));
  }
}

// `count` numbers of each row, as floats: those at i go to to + i * distance. Fetches what comes behind, too.
template <class T>
XLASERVE_INLINE void widen_transposed(const T* const (&rows)[kLanes], int64_t count, float* to, int64_t distance) {
  constexpr int64_t kStep = kLanes * 4 / sizeof(T);
  Words v[kLanes];
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; r++) {
      v[r] = load_as<Words>(rows[r] + i);
      __builtin_prefetch(rows[r] + i + count);
    }
    widen_words<T>(v, kStep, to + i * distance, distance);
  }
  if (i == count) return;
  for (int r = 0; r < kLanes; r++) {
    v[r] = Words{};
    memcpy(&v[r], rows[r] + i, (count - i) * sizeof(T));
  }
  widen_words<T>(v, count - i, to + i * distance, distance);
}

}  // namespace xlaserve
