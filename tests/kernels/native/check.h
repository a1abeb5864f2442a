// What the checks of the native kernels share: threads, random numbers, arrays that end where their memory ends.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "parallel.h"

namespace check {

inline std::mt19937 rng(0);
inline int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); }
inline float normal() { return std::normal_distribution<float>()(rng); }

inline xlaserve::Parallel threads(int count) {
  return [count](int64_t items, int64_t, const std::function<void(int64_t)>& body) {
    std::atomic<int64_t> next{0};
    auto work = [&] {
      for (int64_t i; (i = next++) < items;) body(i);
    };
    std::vector<std::thread> others;
    for (int i = 1; i < count; i++) others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
  };
}

inline int failures = 0;
inline void expect_near(const char* what, double found, double expected, double tolerance) {
  if (std::abs(found - expected) <= tolerance) return;
  if (failures++ < 10) std::fprintf(stderr, "%s: %g, expected %g\n", what, found, expected);
}

inline float widened(uint16_t bfloat16) {
  uint32_t bits = uint32_t(bfloat16) << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline uint16_t narrowed(float x) {  // towards zero
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits >> 16;
}

}  // namespace check
