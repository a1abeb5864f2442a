// Products against plain loops, of random sizes, with every array in memory of just its size.
#include <algorithm>
#include <cstring>

#include "check.h"
#include "matmul.h"

using namespace xlaserve;
using namespace check;

namespace {

Matmul drawn(std::vector<float>& y, std::vector<uint16_t>& half, std::vector<float>& bias, int64_t in) {
  Matmul m{};
  m.tokens = between(0, 9) ? between(1, 9) : between(10, 90), m.in = in, m.out = between(0, 4) ? between(1, 60) : between(60, 300), m.y_is_bfloat16 = between(0, 1);
  if (m.y_is_bfloat16) half.resize(m.tokens * m.out);
  else y.resize(m.tokens * m.out);
  m.y = m.y_is_bfloat16 ? static_cast<void*>(half.data()) : y.data();
  if (between(0, 1)) {
    bias.resize(m.out);
    for (auto& x : bias) x = normal();
    m.bias = bias.data();
  }
  return m;
}

double found(const Matmul& m, int64_t index) {
  if (m.y_is_bfloat16) return widened(static_cast<uint16_t*>(m.y)[index]);
  return static_cast<float*>(m.y)[index];
}

void expect_product(const Matmul& m, int64_t token, int64_t output, double expected) {
  if (m.bias) expected += m.bias[output];
  const double tolerance = (m.y_is_bfloat16 ? 1e-2 : 1e-5) * (std::sqrt(m.in) + std::abs(expected));
  expect_near("product", found(m, token * m.out + output), expected, tolerance);
}

// Zeros in place of some tokens' inputs.
template <class T>
void pad(const Matmul& m, std::vector<T>& x) {
  for (int64_t t = 0; t < m.tokens; t++)
    if (between(0, 3) == 0) std::fill(x.begin() + t * m.in, x.begin() + (t + 1) * m.in, T(0));
}

void check_floats() {
  std::vector<float> y, bias;
  std::vector<uint16_t> half;
  FloatMatmul m{};
  static_cast<Matmul&>(m) = drawn(y, half, bias, between(0, 9) ? between(1, 200) : between(1000, 2200));
  m.x_is_bfloat16 = between(0, 1), m.w_stored = Weights(between(0, 2));
  auto fill = [](bool narrow, std::vector<float>& real, std::vector<uint16_t>& bits) {
    if (!narrow) return static_cast<const void*>(real.data());
    for (auto& x : real) bits.push_back(narrowed(x)), x = widened(bits.back());
    bits.shrink_to_fit();
    return static_cast<const void*>(bits.data());
  };
  std::vector<float> x(m.tokens * m.in), w(m.out * m.in), scales(m.out, 1.0f);
  for (auto& value : x) value = normal();
  for (auto& value : w) value = normal();
  pad(m, x);
  std::vector<uint16_t> x_bits, w_bits;
  std::vector<int8_t> bytes;
  m.x = fill(m.x_is_bfloat16, x, x_bits), m.w = fill(m.w_stored == Weights::kBFloat16, w, w_bits);
  if (m.w_stored == Weights::kInt8) {
    bytes.resize((m.out + kWide - 1) / kWide * kWide * m.in);
    for (int64_t o = 0; o < m.out; o++)
      for (int64_t i = 0; i < m.in; i++)
        w[o * m.in + i] = bytes[(o / kWide * m.in + i) * kWide + o % kWide] = between(-128, 127);
    for (auto& scale : scales) scale = 0.01f * std::abs(normal());
    m.w = bytes.data(), m.w_scales = scales.data();
  }
  multiply(m, threads(between(1, 3)));
  for (int64_t t = 0; t < m.tokens; t++)
    for (int64_t o = 0; o < m.out; o++) {
      double expected = 0;
      for (int64_t i = 0; i < m.in; i++) expected += double(x[t * m.in + i]) * w[o * m.in + i];
      expect_product(m, t, o, expected * scales[o]);
    }
}

void check_int8() {
  const int groups[] = {32, 64, 128, 0};
  std::vector<float> y, bias;
  std::vector<uint16_t> half;
  Int8Matmul m{};
  m.group = groups[between(0, 3)];
  const int64_t in = m.group ? m.group * between(1, 6) : between(1, 300);
  static_cast<Matmul&>(m) = drawn(y, half, bias, in);
  if (!m.group) m.group = in;
  std::vector<int8_t> x(m.tokens * in), w(m.out * in);
  std::vector<float> x_scales(m.tokens * (in / m.group)), w_scales(m.out);
  const int least = between(0, 3) ? -127 : 127;  // sometimes all products are as large as can be
  for (auto& value : x) value = between(least, 127);
  pad(m, x);
  for (auto& value : w) value = least == 127 ? -128 : between(-128, 127);
  for (auto& scale : x_scales) scale = 0.01f * std::abs(normal());
  for (auto& scale : w_scales) scale = 0.01f * std::abs(normal());
  m.x = x.data(), m.w = w.data(), m.x_scales = x_scales.data(), m.w_scales = w_scales.data();
  multiply(m, threads(between(1, 3)));
  for (int64_t t = 0; t < m.tokens; t++)
    for (int64_t o = 0; o < m.out; o++) {
      double expected = 0;
      for (int64_t i = 0; i < in; i++)
        expected += x_scales[(t * in + i) / m.group] * (int(x[t * in + i]) * w[o * in + i]);
      expect_product(m, t, o, expected * w_scales[o]);
    }
}

}  // namespace

int main() {
  for (int i = 0; i < 400; i++) check_floats(), check_int8();
  return failures != 0;
}
