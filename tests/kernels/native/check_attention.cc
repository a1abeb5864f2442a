// Attention against plain loops, over random ragged batches, with every array in memory of just its size.
#include <cstring>
#include "attention.h"
#include "check.h"

using namespace xlaserve;
using namespace check;

namespace {

void check_batch() {
  const int rows = between(1, 5), kv_heads = between(1, 3), group = between(1, 9), block_size = between(1, 20);
  const int heads = kv_heads * group, size = between(1, 4) == 1 ? between(1, 256) : 8 * between(1, 10);
  const int width = between(1, 4) == 1 ? 1200 / block_size + 1 : between(1, 12), num_blocks = rows * width + 1;
  const bool quantised = between(0, 2) == 0, half = !quantised && between(0, 1), sinks = between(0, 1);
  std::vector<int32_t> starts{0}, lens, tables(rows * width);
  for (int row = 0; row < rows; row++) {
    const int context = between(0, width * block_size), queries = between(0, 2) ? std::min(1, context) : between(0, std::min(context, 60));
    starts.push_back(starts.back() + queries);
    lens.push_back(queries ? context : 0);
  }
  for (auto& id : tables) id = between(1, num_blocks - 1);
  const int tokens = starts.back() + between(0, 3);
  std::vector<float> q(tokens * heads * size), out(q.size(), NAN), sink(heads), scales(num_blocks * 2 * kv_heads * block_size);
  std::vector<float> real(scales.size() * size);
  std::vector<uint8_t> pages(real.size() * (quantised ? 1 : half ? 2 : 4));
  for (auto& x : q) x = normal();
  for (auto& x : sink) x = 3 * normal();
  for (auto& x : scales) x = 0.01f + 0.01f * std::abs(normal());
  for (size_t i = 0; i < real.size(); i++) {
    real[i] = normal();
    if (quantised) {
      const int8_t value = between(-127, 127);
      memcpy(&pages[i], &value, 1);
      real[i] = value * scales[i / size];
    } else if (half) {
      const uint16_t bits = narrowed(real[i]);
      memcpy(&pages[2 * i], &bits, 2);
      real[i] = widened(bits);
    } else {
      memcpy(&pages[4 * i], &real[i], 4);
    }
  }
  Attention a{};
  a.q = q.data(), a.out = out.data(), a.pages = pages.data(), a.scales = quantised ? scales.data() : nullptr;
  a.stored = quantised ? Stored::kInt8 : half ? Stored::kBFloat16 : Stored::kFloat32;
  a.block_tables = tables.data(), a.query_start_loc = starts.data(), a.seq_lens = lens.data();
  a.sinks = sinks ? sink.data() : nullptr;
  a.num_tokens = tokens, a.num_heads = heads, a.head_dim = size, a.num_blocks = num_blocks, a.num_kv_heads = kv_heads;
  a.block_size = block_size, a.num_rows = rows, a.table_width = width;
  a.scale = 1 / std::sqrt(float(size)), a.soft_cap = between(0, 1) ? 5.0f : 0.0f;
  a.sliding_window = between(0, 1) ? between(1, 40) : 0;
  attend(a, threads(between(1, 4)));

  auto at = [&](int row, int position, int which, int head) {
    const int64_t slot = ((int64_t(tables[row * width + position / block_size]) * 2 + which) * kv_heads + head) * block_size;
    return &real[(slot + position % block_size) * size];
  };
  for (int row = 0; row < rows; row++)
    for (int t = starts[row]; t < starts[row + 1]; t++)
      for (int n = 0; n < heads; n++) {
        const int position = lens[row] - (starts[row + 1] - t);
        double most = sinks ? sink[n] : -INFINITY, total = 0;
        std::vector<double> scores, sums(size);
        const int first = a.sliding_window ? std::max<int>(0, position - a.sliding_window + 1) : 0;
        for (int p = first; p <= position; p++) {
          double score = 0;
          for (int h = 0; h < size; h++) score += double(q[(t * heads + n) * size + h]) * at(row, p, 0, n / group)[h];
          score *= a.scale;
          if (a.soft_cap) score = a.soft_cap * std::tanh(score / a.soft_cap);
          scores.push_back(score), most = std::max(most, score);
        }
        if (sinks) total = std::exp(sink[n] - most);
        for (int p = first; p <= position; p++) {
          const double weight = std::exp(scores[p - first] - most);
          total += weight;
          for (int h = 0; h < size; h++) sums[h] += weight * at(row, p, 1, n / group)[h];
        }
        for (int h = 0; h < size; h++) expect_near("attention", out[(t * heads + n) * size + h], sums[h] / total, 3e-5);
      }
  for (size_t i = size_t(starts.back()) * heads * size; i < out.size(); i++) expect_near("no row's", out[i], 0, 0);
}

// Integers that make no sense must not lead outside the arrays.
void check_nonsense() {
  std::vector<float> pages(3 * 2 * 4 * 8, 1.0f), q(5 * 2 * 8, 1.0f), out(q.size());
  std::vector<int32_t> tables(4), starts(3), lens(2);
  for (auto* array : {&tables, &starts, &lens})
    for (auto& x : *array) x = between(0, 2) ? between(-9, 9) : between(INT32_MIN, INT32_MAX);
  Attention a{};
  a.q = q.data(), a.out = out.data(), a.pages = pages.data(), a.block_tables = tables.data();
  a.query_start_loc = starts.data(), a.seq_lens = lens.data();
  a.num_tokens = 5, a.num_heads = 2, a.head_dim = 8, a.num_blocks = 3, a.num_kv_heads = 1, a.block_size = 4;
  a.num_rows = 2, a.table_width = 2, a.scale = 1;
  attend(a, threads(2));
}

}  // namespace

int main() {
  for (int i = 0; i < 40; i++) check_batch();
  for (int i = 0; i < 300; i++) check_nonsense();
  return failures != 0;
}
