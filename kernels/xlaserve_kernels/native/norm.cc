// A row stays in the first cache while it is read twice. XLA makes four loops of it, and each takes longer to begin than
// a row takes here.
#include "norm.h"

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace xlaserve {
namespace {

constexpr int64_t kElementsOfAnItem = 1 << 14;  // of fewer, a thread takes longer to fetch the next

// Calls part(i, count as kLanes or less) for all elements.
template <class Part>
XLASERVE_INLINE void over_row(int64_t size, const Part& part) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) part(i, kLanes);
  if (i < size) part(i, int(size - i));
}

XLASERVE_INLINE Floats rounded(Floats x, float) { return x; }
XLASERVE_INLINE Floats rounded(Floats x, BFloat16) {
  BFloat16 halves[kLanes];
  narrow(halves, x);
  return widen(halves);
}

template <class T>
XLASERVE_INLINE Floats read(const T* p, int count) {
  return count == kLanes ? widen(p) : widen_some(p, count);
}
template <class T>
XLASERVE_INLINE void write(T* p, Floats x, int count) {
  if (count == kLanes) return narrow(p, x);
  narrow_some(p, x, count);
}

template <class T>
void normalize_row(const RmsNorm& n, const T* x, T* y) {
  const T* weight = static_cast<const T*>(n.weight);
  Floats squares = {};
  over_row(n.size, [&](int64_t i, int count) {
    const Floats some = read(x + i, count);
    squares += some * some;
  });
  const Floats scale = splat(1 / std::sqrt(sum(squares) / n.size + n.eps));
  over_row(n.size, [&](int64_t i, int count) {
    const Floats normed = read(x + i, count) * scale, weights = read(weight + i, count);
    write(y + i, n.unit_offset ? normed * (1 + weights) : rounded(normed, T()) * weights, count);
  });
}

template <class T>
void normalize_rows(const RmsNorm& n, int64_t row, int64_t end) {
  for (; row < end; row++)
    normalize_row(n, static_cast<const T*>(n.x) + row * n.size, static_cast<T*>(n.y) + row * n.size);
}

}  // namespace

void normalize(const RmsNorm& n, const Parallel& parallel) {
  const int64_t rows = std::max<int64_t>(kElementsOfAnItem / n.size, 1), items = (n.rows + rows - 1) / rows;
  parallel(items, (items + 1) / 2, [&](int64_t item) {
    const int64_t first = item * rows, end = std::min(n.rows, first + rows);
    if (n.is_bfloat16) return normalize_rows<BFloat16>(n, first, end);
    normalize_rows<float>(n, first, end);
  });
}

}  // namespace xlaserve
