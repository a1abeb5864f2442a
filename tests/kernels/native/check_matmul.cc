// Products against plain loops, of random sizes, with every array in memory of just its size.
#include <algorithm>
#include <cstring>

#include "check.h"
#include "matmul.h"

using namespace xlaserve;
using namespace check;

namespace {

// What a product points to beside its activations.
struct Memory {
  std::vector<float> y, bias, real, w_scales;  // real: the weight
  std::vector<uint16_t> y_bits, w_bits;
  std::vector<int8_t> w_bytes;
};

int64_t some_tokens() { return between(0, 9) ? between(1, 9) : between(10, 90); }

// One of those that share their activations.
Matmul drawn(Memory& memory, int64_t tokens, int64_t in, bool y_is_bfloat16) {
  Matmul m{};
  m.tokens = tokens, m.in = in, m.out = between(0, 4) ? between(1, 60) : between(60, 300), m.y_is_bfloat16 = y_is_bfloat16;
  if (m.y_is_bfloat16) memory.y_bits.resize(m.tokens * m.out);
  else memory.y.resize(m.tokens * m.out);
  m.y = m.y_is_bfloat16 ? static_cast<void*>(memory.y_bits.data()) : memory.y.data();
  if (between(0, 1)) {
    memory.bias.resize(m.out);
    for (auto& x : memory.bias) x = normal();
    m.bias = memory.bias.data();
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
void pad(std::vector<T>& x, int64_t tokens, int64_t in) {
  for (int64_t t = 0; t < tokens; t++)
    if (between(0, 3) == 0) std::fill(x.begin() + t * in, x.begin() + (t + 1) * in, T(0));
}

const void* filled(bool narrow, std::vector<float>& real, std::vector<uint16_t>& bits) {
  if (!narrow) return real.data();
  for (auto& x : real) bits.push_back(narrowed(x)), x = widened(bits.back());
  bits.shrink_to_fit();
  return bits.data();
}

void set_weight(FloatMatmul& m, Memory& memory) {
  memory.real.resize(m.out * m.in), memory.w_scales.assign(m.out, 1.0f);
  for (auto& value : memory.real) value = normal();
  m.w_stored = Weights(between(0, 2));
  m.w = filled(m.w_stored == Weights::kBFloat16, memory.real, memory.w_bits);
  if (m.w_stored != Weights::kInt8) return;
  auto& bytes = memory.w_bytes;
  bytes.resize((m.out + kWide - 1) / kWide * kWide * m.in);
  for (int64_t o = 0; o < m.out; o++)
    for (int64_t i = 0; i < m.in; i++)
      memory.real[o * m.in + i] = bytes[(o / kWide * m.in + i) * kWide + o % kWide] = between(-128, 127);
  for (auto& scale : memory.w_scales) scale = 0.01f * std::abs(normal());
  m.w = bytes.data(), m.w_scales = memory.w_scales.data();
}

void check_floats() {
  const int64_t tokens = some_tokens(), in = between(0, 9) ? between(1, 200) : between(1000, 2200);
  const bool x_is_bfloat16 = between(0, 1), y_is_bfloat16 = between(0, 1);
  std::vector<Memory> memory(between(1, 3));
  std::vector<float> x(tokens * in);
  for (auto& value : x) value = normal();
  pad(x, tokens, in);
  std::vector<uint16_t> x_bits;
  const void* stored_x = filled(x_is_bfloat16, x, x_bits);
  std::vector<FloatMatmul> matmuls;
  for (auto& its : memory) {
    FloatMatmul m{};
    static_cast<Matmul&>(m) = drawn(its, tokens, in, y_is_bfloat16);
    m.x = stored_x, m.x_is_bfloat16 = x_is_bfloat16;
    set_weight(m, its);
    matmuls.push_back(m);
  }
  multiply(matmuls, threads(between(1, 3)));
  for (size_t n = 0; n < matmuls.size(); n++)
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t o = 0; o < matmuls[n].out; o++) {
        double expected = 0;
        for (int64_t i = 0; i < in; i++) expected += double(x[t * in + i]) * memory[n].real[o * in + i];
        expect_product(matmuls[n], t, o, expected * memory[n].w_scales[o]);
      }
}

void check_int8() {
  const int groups[] = {32, 64, 128, 0};
  int64_t group = groups[between(0, 3)];
  const int64_t tokens = some_tokens(), in = group ? group * between(1, 6) : between(1, 300);
  if (!group) group = in;
  const bool y_is_bfloat16 = between(0, 1);
  std::vector<Memory> memory(between(1, 3));
  std::vector<int8_t> x(tokens * in);
  std::vector<float> x_scales(tokens * (in / group));
  const int least = between(0, 3) ? -127 : 127;  // sometimes all products are as large as can be
  for (auto& value : x) value = between(least, 127);
  pad(x, tokens, in);
  for (auto& scale : x_scales) scale = 0.01f * std::abs(normal());
  std::vector<Int8Matmul> matmuls;
  for (auto& its : memory) {
    Int8Matmul m{};
    static_cast<Matmul&>(m) = drawn(its, tokens, in, y_is_bfloat16);
    its.w_bytes.resize(m.out * in), its.w_scales.resize(m.out);
    for (auto& value : its.w_bytes) value = least == 127 ? -128 : between(-128, 127);
    for (auto& scale : its.w_scales) scale = 0.01f * std::abs(normal());
    m.x = x.data(), m.x_scales = x_scales.data(), m.group = group;
    m.w = its.w_bytes.data(), m.w_scales = its.w_scales.data();
    matmuls.push_back(m);
  }
  multiply(matmuls, threads(between(1, 3)));
  for (size_t n = 0; n < matmuls.size(); n++)
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t o = 0; o < matmuls[n].out; o++) {
        double expected = 0;
        for (int64_t i = 0; i < in; i++)
          expected += x_scales[(t * in + i) / group] * (int(x[t * in + i]) * memory[n].w_bytes[o * in + i]);
        expect_product(matmuls[n], t, o, expected * memory[n].w_scales[o]);
      }
}

}  // namespace

int main() {
  for (int i = 0; i < 200; i++) check_floats(), check_int8();
  return failures != 0;
}
