// RMSNorm against plain loops, of random sizes, with every array in memory of just its size.
#include <cstring>

#include "check.h"
#include "norm.h"

using namespace xlaserve;
using namespace check;

namespace {

void check_norm() {
  const int64_t rows = between(0, 40), size = between(0, 9) ? between(1, 100) : between(100, 20000);
  const bool is_bfloat16 = between(0, 1), unit_offset = between(0, 1);
  std::vector<float> x(rows * size), weight(size), y(is_bfloat16 ? 0 : x.size());
  std::vector<uint16_t> x_bits, weight_bits, y_bits(is_bfloat16 ? x.size() : 0);
  for (auto* array : {&x, &weight})
    for (auto& value : *array) value = widened(narrowed(normal()));
  for (float value : x) x_bits.push_back(narrowed(value));
  for (float value : weight) weight_bits.push_back(narrowed(value));
  x_bits.shrink_to_fit(), weight_bits.shrink_to_fit();
  RmsNorm n{};
  n.rows = rows, n.size = size, n.is_bfloat16 = is_bfloat16, n.eps = 1e-5f, n.unit_offset = unit_offset;
  n.x = is_bfloat16 ? static_cast<void*>(x_bits.data()) : x.data();
  n.weight = is_bfloat16 ? static_cast<void*>(weight_bits.data()) : weight.data();
  n.y = is_bfloat16 ? static_cast<void*>(y_bits.data()) : y.data();
  normalize(n, threads(between(1, 3)));
  for (int64_t row = 0; row < rows; row++) {
    double squares = 0;
    for (int64_t i = 0; i < size; i++) squares += double(x[row * size + i]) * x[row * size + i];
    for (int64_t i = 0; i < size; i++) {
      const double factor = unit_offset ? 1 + double(weight[i]) : weight[i];
      const double expected = x[row * size + i] / std::sqrt(squares / size + n.eps) * factor;
      const double found = is_bfloat16 ? widened(y_bits[row * size + i]) : y[row * size + i];
      expect_near("norm", found, expected, (is_bfloat16 ? 1e-2 : 1e-5) * (1e-3 + std::abs(expected)));
    }
  }
}

}  // namespace

int main() {
  for (int i = 0; i < 300; i++) check_norm();
  return failures != 0;
}
