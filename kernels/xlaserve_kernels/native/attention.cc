// Flash-decoding on the CPU. A *query block* is up to kMaxQueries / g consecutive queries of one row with the g query
// heads that share a kv head; its keys are cut into *pieces*, and a piece of one kv head is an item of work, so that
// one long row keeps all threads busy. The cut depends on the row alone: neither the batch nor the number of threads
// changes a result.
//
// An item walks over chunks of kChunk keys: it widens them and their values to float32 in a buffer that stays in the
// first cache, whatever the pool holds; scores, online softmax and weighted sum are then the same for all dtypes.
#include "attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "simd.h"

namespace xlaserve {
namespace {

constexpr int kChunk = 32;          // keys
constexpr int kMaxQueries = 32;     // query vectors of an item
constexpr int64_t kPieceKeys = 512;  // times the queries of the block
constexpr float kMasked = -1e30f;

struct Item {
  int64_t token, row, position;  // of the block's first query
  int queries;
  int64_t first_key, end_key;
  int piece, num_pieces;
  int64_t block;  // index of the query block
};

struct Block {
  int64_t partials;  // where the first float of its partial results lies, with several pieces
};

// One thread's buffers, in floats. Vectors are padded with zeros to `width`, a multiple of kLanes.
struct Buffers {
  Buffers(int vectors, int width)
      : floats(size_t(2 * vectors + 2 * kChunk) * width + size_t(vectors) * (kChunk + 2) + kLanes),
        queries(floats.data()),
        sums(queries + vectors * width),
        keys(sums + vectors * width),
        values(keys + kChunk * width),
        weights(values + kChunk * width),
        maximum(weights + vectors * kChunk),
        total(maximum + vectors) {}
  std::vector<float> floats;
  float *queries, *sums, *keys, *values, *weights, *maximum, *total;
};

template <class T>
void widen_vector(const T* from, float* to, int size, int width, float scale) {
  int h = 0;
  for (; h + kLanes <= size; h += kLanes) store(to + h, widen(from + h) * scale);
  if (h < size) store(to + h, widen_some(from + h, size - h) * scale);
  for (h = round_up(size); h < width; h += kLanes) store(to + h, Floats{});
}

template <class T>
void widen_all(const T* from, float* to, int64_t size) {
#pragma GCC unroll 4
  for (int64_t h = 0; h < size; h += kLanes) store(to + h, widen(from + h));
}

// Keys (or values, if which is 1) of positions [start, start + kChunk) of a row into `to`; zeros outside [first, end).
template <class T>
void widen_chunk(const Attention& a, const int32_t* table, int which, int head, int64_t start, int64_t first,
                 int64_t end, float* to, int width) {
  const int64_t from = std::max(start, first), until = std::min(start + kChunk, end);
  if (from > start) std::fill(to, to + (from - start) * width, 0.0f);
  if (until < start + kChunk) std::fill(to + (until - start) * width, to + kChunk * width, 0.0f);
  for (int64_t position = from; position < until;) {
    const int64_t offset = position % a.block_size;
    const int64_t count = std::min(a.block_size - offset, until - position);
    const int64_t id = std::clamp<int64_t>(table[position / a.block_size], 0, a.num_blocks - 1);
    const int64_t slot = ((id * 2 + which) * a.num_kv_heads + head) * a.block_size + offset;
    const T* page = static_cast<const T*>(a.pages) + slot * a.head_dim;
    float* row = to + (position - start) * width;
    if (!a.scales && width == a.head_dim)
      widen_all(page, row, count * width);
    else
      for (int64_t j = 0; j < count; j++)
        widen_vector(page + j * a.head_dim, row + j * width, a.head_dim, width, a.scales ? a.scales[slot + j] : 1.0f);
    position += count;
  }
}

// Asks for what the chunk at `start` will read, which lies in pages anywhere in memory.
void prefetch_chunk(const Attention& a, const int32_t* table, int head, int64_t start, int64_t end, int item_size) {
  constexpr int64_t kLine = 64;
  const int64_t until = std::min(start + kChunk, end);
  for (int64_t position = start; position < until;) {
    const int64_t offset = position % a.block_size;
    const int64_t count = std::min(a.block_size - offset, until - position);
    const int64_t id = std::clamp<int64_t>(table[position / a.block_size], 0, a.num_blocks - 1);
    for (int which = 0; which < 2; which++) {
      const int64_t slot = ((id * 2 + which) * a.num_kv_heads + head) * a.block_size + offset;
      const char* page = static_cast<const char*>(a.pages) + slot * a.head_dim * item_size;
      for (int64_t byte = 0; byte < count * a.head_dim * item_size; byte += kLine) __builtin_prefetch(page + byte);
    }
    position += count;
  }
}

// The products of q with kLanes vectors of keys.
XLASERVE_INLINE Floats dots(const float* q, const float* keys, int width) {
  Floats products[kLanes] = {};
  for (int h = 0; h < width; h += kLanes) {
    const Floats x = load(q + h);
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; j++) products[j] += x * load(keys + j * width + h);
  }
  return sum_each(products);
}

// sums[i] += weights[i] . values, for N query vectors and B * kLanes places of each.
template <int N, int B>
XLASERVE_INLINE void add_strip(float* sums, const float* weights, const float* values, int width) {
  Floats acc[N][B];
#pragma GCC unroll 8
  for (int i = 0; i < N; i++)
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) acc[i][b] = load(sums + i * width + b * kLanes);
  for (int c = 0; c < kChunk; c++)
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) {
      const Floats value = load(values + c * width + b * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < N; i++) acc[i][b] += weights[i * kChunk + c] * value;
    }
#pragma GCC unroll 8
  for (int i = 0; i < N; i++)
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) store(sums + i * width + b * kLanes, acc[i][b]);
}

// About twelve sums stay in registers.
template <int N, int B>
void add_weighted(float* sums, const float* weights, const float* values, int width) {
  int h = 0;
  for (; h + B * kLanes <= width; h += B * kLanes) add_strip<N, B>(sums + h, weights, values + h, width);
  for (; h < width; h += kLanes) add_strip<N, 1>(sums + h, weights, values + h, width);
}

// Overwrites all but [first, end).
XLASERVE_INLINE void hide(float* weights, int first, int end, float by) {
  for (int c = 0; c < first; c++) weights[c] = by;
  for (int c = end; c < kChunk; c++) weights[c] = by;
}

// What one query makes of a chunk: scores, then weights, in place; those outside [first, end) are zeros.
void weigh(const Attention& a, float* weights, int first, int end, float* maximum, float* total, float* sums,
           int width) {
  for (int c = 0; c < kChunk; c += kLanes) {
    Floats x = load(weights + c);
    if (a.soft_cap != 0) x = a.soft_cap - 2 * a.soft_cap / (exp(x * (2 / a.soft_cap)) + 1.0f);  // a tanh
    store(weights + c, x);
  }
  hide(weights, first, end, kMasked);
  Floats most = load(weights);
  for (int c = kLanes; c < kChunk; c += kLanes) most = largest(load(weights + c), most);
  const float now = std::max(*maximum, max(most));
  if (now > *maximum) {
    const float shrink = exp(splat(*maximum - now))[0];
    *maximum = now;
    *total *= shrink;
    for (int h = 0; h < width; h += kLanes) store(sums + h, load(sums + h) * shrink);
  }
  for (int c = 0; c < kChunk; c += kLanes) store(weights + c, exp(load(weights + c) - now));
  hide(weights, first, end, 0.0f);
  Floats added = load(weights);
  for (int c = kLanes; c < kChunk; c += kLanes) added += load(weights + c);
  *total += sum(added);
}

template <class Q>
class Task {
 public:
  Task(const Attention& a) : a_(a), group_(a.num_heads / a.num_kv_heads), width_(round_up(a.head_dim)) {
    queries_ = std::max<int64_t>(1, kMaxQueries / group_);
    cut();
  }

  void run(const Parallel& parallel) {
    partials_ = std::unique_ptr<float[]>(new float[num_partials_ * a_.num_kv_heads]);
    pieces_left_ = std::make_unique<std::atomic<int>[]>(blocks_.size() * a_.num_kv_heads);
    for (const Item& item : items_)
      for (int64_t head = 0; head < a_.num_kv_heads; head++) pieces_left_[item.block * a_.num_kv_heads + head] = item.num_pieces;
    Q* out = static_cast<Q*>(a_.out);
    const int64_t size = a_.num_heads * a_.head_dim;
    std::fill(out + last_token_ * size, out + a_.num_tokens * size, Q{});
    const int64_t count = items_.size() * a_.num_kv_heads;
    const int64_t tasks = std::min<int64_t>(count, 1 + work_ / kWorkOfATask);
    parallel(count, tasks, [this](int64_t i) {
      attend_item(items_[i / a_.num_kv_heads], i % a_.num_kv_heads);
    });
  }

 private:
  static constexpr int64_t kWorkOfATask = 1 << 16;  // multiplications: below, a thread takes longer to wake

  void cut() {
    int64_t start = 0;
    for (int64_t row = 0; row < a_.num_rows; row++) {
      const int64_t end = std::clamp<int64_t>(a_.query_start_loc[row + 1], start, a_.num_tokens);
      const int64_t context = std::clamp<int64_t>(a_.seq_lens[row], end - start, a_.table_width * a_.block_size);
      if (context >= end - start)
        for (int64_t token = start; token < end; token += queries_)
          cut_block(row, token, std::min(queries_, end - token), context - (end - token));
      start = end;
    }
    last_token_ = start;
  }

  void cut_block(int64_t row, int64_t token, int queries, int64_t position) {
    const int64_t oldest = a_.sliding_window ? std::max<int64_t>(0, position - a_.sliding_window + 1) : 0;
    const int64_t end = position + queries, length = kPieceKeys * queries;
    const int pieces = (end - oldest + length - 1) / length;
    const int64_t block = blocks_.size();
    blocks_.push_back({num_partials_});
    for (int piece = 0; piece < pieces; piece++) {
      const int64_t first = oldest + piece * length;
      items_.push_back({token, row, position, queries, first, std::min(first + length, end), piece, pieces, block});
    }
    if (pieces > 1) num_partials_ += pieces * partial_size(queries);
    work_ += (end - oldest) * queries * a_.num_heads * a_.head_dim * 2;
  }

  // Of one piece and kv head: the sums, maxima and totals.
  int64_t partial_size(int queries) const { return int64_t(queries) * group_ * (width_ + 2); }

  float* partial(const Item& item, int64_t head, int piece) const {
    const int64_t size = partial_size(item.queries);
    return partials_.get() + blocks_[item.block].partials * a_.num_kv_heads + (head * item.num_pieces + piece) * size;
  }

  void attend_item(const Item& item, int64_t head) {
    static thread_local std::unique_ptr<Buffers> buffers;
    static thread_local int64_t vectors_made, width_made;
    const int64_t most = std::max<int64_t>(queries_ * group_, 1);
    if (!buffers || vectors_made != most || width_made != width_) {
      buffers = std::make_unique<Buffers>(most, width_);
      vectors_made = most, width_made = width_;
    }
    Buffers& b = *buffers;
    const int vectors = item.queries * group_;
    load_queries(item, head, b, vectors);
    for (int64_t start = item.first_key; start < item.end_key; start += kChunk) attend_chunk(item, head, start, b, vectors);
    if (item.num_pieces == 1) return finish(item, head, b.sums, b.total, vectors);
    float* to = partial(item, head, item.piece);
    std::copy(b.sums, b.sums + vectors * width_, to);
    std::copy(b.maximum, b.maximum + vectors, to + vectors * width_);
    std::copy(b.total, b.total + vectors, to + vectors * (width_ + 1));
    if (--pieces_left_[item.block * a_.num_kv_heads + head] == 0) join(item, head, b, vectors);
  }

  void load_queries(const Item& item, int64_t head, Buffers& b, int vectors) const {
    for (int i = 0; i < vectors; i++) {
      const int64_t n = head * group_ + i % group_;
      const Q* q = static_cast<const Q*>(a_.q) + ((item.token + i / group_) * a_.num_heads + n) * a_.head_dim;
      widen_vector(q, b.queries + i * width_, a_.head_dim, width_, a_.scale);
      const bool sink = a_.sinks && item.piece == 0;  // a key without a value
      b.maximum[i] = sink ? a_.sinks[n] : kMasked;
      b.total[i] = sink ? 1.0f : 0.0f;
    }
    std::fill(b.sums, b.sums + vectors * width_, 0.0f);
  }

  void attend_chunk(const Item& item, int64_t head, int64_t start, Buffers& b, int vectors) const {
    const int32_t* table = a_.block_tables + item.row * a_.table_width;
    widen_pair(table, head, start, item.first_key, item.end_key, b);
    const int used = round_up(std::min<int64_t>(kChunk, item.end_key - start));
    for (int i = 0; i < vectors; i++) {
      float* weights = b.weights + i * kChunk;
      const int64_t position = item.position + i / group_;
      const int64_t oldest = a_.sliding_window ? position - a_.sliding_window + 1 : 0;
      const int first = std::clamp<int64_t>(oldest - start, 0, kChunk);
      const int end = std::clamp<int64_t>(std::min(position + 1, item.end_key) - start, 0, kChunk);
      if (first >= end) {
        hide(weights, kChunk, kChunk, 0.0f);
        continue;
      }
      for (int c = 0; c < used; c += kLanes)
        store(weights + c, dots(b.queries + i * width_, b.keys + c * width_, width_));
      hide(weights, 0, used, 0.0f);
      weigh(a_, weights, first, end, b.maximum + i, b.total + i, b.sums + i * width_, width_);
    }
    int i = 0;
    for (; i + 4 <= vectors; i += 4) add_weighted<4, 2>(b.sums + i * width_, b.weights + i * kChunk, b.values, width_);
    float *sums = b.sums + i * width_, *weights = b.weights + i * kChunk;
    if (vectors - i == 3) add_weighted<3, 4>(sums, weights, b.values, width_);
    if (vectors - i == 2) add_weighted<2, 4>(sums, weights, b.values, width_);
    if (vectors - i == 1) add_weighted<1, 8>(sums, weights, b.values, width_);
  }

  void widen_pair(const int32_t* table, int head, int64_t start, int64_t first, int64_t end, Buffers& b) const {
    auto both = [&](auto stored) {
      using T = decltype(stored);
      prefetch_chunk(a_, table, head, start + kChunk, end, sizeof(T));
      widen_chunk<T>(a_, table, 0, head, start, first, end, b.keys, width_);
      widen_chunk<T>(a_, table, 1, head, start, first, end, b.values, width_);
    };
    switch (a_.stored) {
      case Stored::kFloat32: return both(float{});
      case Stored::kBFloat16: return both(BFloat16{});
      case Stored::kFloat16: return both(Float16{});
      case Stored::kInt8: return both(int8_t{});
      case Stored::kFloat8: return both(Float8{});
    }
  }

  // In the order of the pieces, whichever was the last to be finished.
  void join(const Item& item, int64_t head, Buffers& b, int vectors) const {
    for (int i = 0; i < vectors; i++) {
      float most = kMasked, total = 0;
      for (int piece = 0; piece < item.num_pieces; piece++)
        most = std::max(most, partial(item, head, piece)[vectors * width_ + i]);
      float* sums = b.sums + i * width_;
      std::fill(sums, sums + width_, 0.0f);
      for (int piece = 0; piece < item.num_pieces; piece++) {
        const float* from = partial(item, head, piece);
        const float shrink = exp(splat(from[vectors * width_ + i] - most))[0];
        total += from[vectors * (width_ + 1) + i] * shrink;
        for (int h = 0; h < width_; h += kLanes) store(sums + h, load(sums + h) + load(from + i * width_ + h) * shrink);
      }
      b.total[i] = total;
    }
    finish(item, head, b.sums, b.total, vectors);
  }

  void finish(const Item& item, int64_t head, const float* sums, const float* total, int vectors) const {
    for (int i = 0; i < vectors; i++) {
      const int64_t n = head * group_ + i % group_;
      Q* out = static_cast<Q*>(a_.out) + ((item.token + i / group_) * a_.num_heads + n) * a_.head_dim;
      const float inverse = 1.0f / total[i];
      int h = 0;
      for (; h + kLanes <= a_.head_dim; h += kLanes) narrow(out + h, load(sums + i * width_ + h) * inverse);
      if (h < a_.head_dim) narrow_some(out + h, load(sums + i * width_ + h) * inverse, a_.head_dim - h);
    }
  }

  const Attention& a_;
  const int64_t group_;
  const int width_;  // head_dim, padded
  int64_t queries_;  // of a query block, at most
  std::vector<Item> items_;
  std::vector<Block> blocks_;
  int64_t num_partials_ = 0, last_token_ = 0, work_ = 0;
  std::unique_ptr<float[]> partials_;
  std::unique_ptr<std::atomic<int>[]> pieces_left_;  // per query block and kv head
};

}  // namespace

void attend(const Attention& a, const Parallel& parallel) {
  if (a.q_is_bfloat16)
    Task<BFloat16>(a).run(parallel);
  else
    Task<float>(a).run(parallel);
}

}  // namespace xlaserve
