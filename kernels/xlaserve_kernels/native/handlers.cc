// What XLA calls: arguments taken from its buffers, and work shared out to its thread pool.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "attention.h"
#include "matmul.h"
#include "norm.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace xlaserve {
namespace {

// The caller works too, and awaits only items that some thread has begun: so it never waits for a thread that XLA
// keeps busy with something else.
Parallel on_pool(ffi::ThreadPool pool) {
  return [pool](int64_t items, int64_t tasks, const std::function<void(int64_t)>& body) mutable {
    struct State {
      std::atomic<int64_t> next{0}, done{0};
    };
    auto state = std::make_shared<State>();  // a task that starts late finds no item left, and the caller gone
    auto work = [state, items, &body] {
      for (int64_t i; (i = state->next.fetch_add(1)) < items;) {
        body(i);
        state->done.fetch_add(1);
      }
    };
    tasks = std::min({tasks, items, pool.num_threads()});
    for (int64_t task = 1; task < tasks; task++) pool.Schedule(std::function<void()>(work));
    work();
    for (int spins = 0; state->done.load() < items; spins++)
      if (spins > 1000) std::this_thread::yield();
  };
}

bool stored_as(ffi::DataType type, Stored* stored) {
  switch (type) {
    case ffi::DataType::F32: *stored = Stored::kFloat32; return true;
    case ffi::DataType::U16:  // the bits
    case ffi::DataType::BF16: *stored = Stored::kBFloat16; return true;
    case ffi::DataType::F16: *stored = Stored::kFloat16; return true;
    case ffi::DataType::S8: *stored = Stored::kInt8; return true;
    case ffi::DataType::U8: *stored = Stored::kFloat8; return true;
    default: return false;
  }
}

template <class T>
const T* or_null(const ffi::AnyBuffer& buffer) {
  return buffer.element_count() ? static_cast<const T*>(buffer.untyped_data()) : nullptr;
}

ffi::Error attention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer pages, ffi::AnyBuffer scales,
                     ffi::AnyBuffer tables, ffi::AnyBuffer starts, ffi::AnyBuffer lens, ffi::AnyBuffer sinks,
                     ffi::Result<ffi::AnyBuffer> out, float scale, float soft_cap, int64_t sliding_window) {
  Attention a{};
  if (!stored_as(pages.element_type(), &a.stored)) return ffi::Error::InvalidArgument("pages: no dtype of a KV pool");
  a.q = q.untyped_data();
  a.out = out->untyped_data();
  a.q_is_bfloat16 = q.element_type() == ffi::DataType::BF16;
  a.pages = pages.untyped_data();
  a.scales = or_null<float>(scales);
  a.block_tables = or_null<int32_t>(tables);
  a.query_start_loc = or_null<int32_t>(starts);
  a.seq_lens = or_null<int32_t>(lens);
  a.sinks = or_null<float>(sinks);
  a.num_tokens = q.dimensions()[0], a.num_heads = q.dimensions()[1], a.head_dim = q.dimensions()[2];
  a.num_blocks = pages.dimensions()[0], a.num_kv_heads = pages.dimensions()[2], a.block_size = pages.dimensions()[3];
  a.num_rows = tables.dimensions()[0], a.table_width = tables.dimensions()[1];
  a.scale = scale, a.soft_cap = soft_cap, a.sliding_window = sliding_window;
  attend(a, on_pool(pool));
  return ffi::Error::Success();
}

bool is_bfloat16(const ffi::AnyBuffer& buffer) { return buffer.element_type() == ffi::DataType::BF16; }

// Products of the same x. `weights`: of each its weight, its scales or nothing, its bias or nothing.
template <class M, class SetWeight>
ffi::ErrorOr<std::vector<M>> matmuls_of(const ffi::AnyBuffer& x, ffi::RemainingArgs weights, ffi::RemainingRets results,
                                        const SetWeight& set_weight) {
  if (weights.size() != 3 * results.size())
    return ffi::Unexpected(ffi::Error::InvalidArgument("weights: three buffers for each result"));
  std::vector<M> matmuls(results.size());
  for (size_t i = 0; i < matmuls.size(); i++) {
    M& m = matmuls[i];
    ffi::AnyBuffer y = *results.get<ffi::AnyBuffer>(i).value();
    m.tokens = x.dimensions()[0], m.in = x.dimensions()[1], m.out = y.dimensions()[1];
    m.y = y.untyped_data(), m.y_is_bfloat16 = is_bfloat16(y);
    m.w_scales = or_null<float>(weights.get<ffi::AnyBuffer>(3 * i + 1).value());
    m.bias = or_null<float>(weights.get<ffi::AnyBuffer>(3 * i + 2).value());
    set_weight(&m, weights.get<ffi::AnyBuffer>(3 * i).value());
  }
  return matmuls;
}

ffi::Error int8_matmul(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer x_scales, ffi::RemainingArgs weights,
                       ffi::RemainingRets results) {
  const auto matmuls = matmuls_of<Int8Matmul>(x, weights, results, [&](Int8Matmul* m, const ffi::AnyBuffer& w) {
    m->x = or_null<int8_t>(x), m->x_scales = or_null<float>(x_scales), m->w = or_null<int8_t>(w);
    m->group = m->in / x_scales.dimensions()[1];
  });
  if (!matmuls.has_value()) return matmuls.error();
  multiply(matmuls.value(), on_pool(pool));
  return ffi::Error::Success();
}

ffi::Error matmul(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::RemainingArgs weights, ffi::RemainingRets results) {
  const auto matmuls = matmuls_of<FloatMatmul>(x, weights, results, [&](FloatMatmul* m, const ffi::AnyBuffer& w) {
    m->x = x.untyped_data(), m->x_is_bfloat16 = is_bfloat16(x), m->w = w.untyped_data();
    m->w_stored = w.element_type() == ffi::DataType::S8 ? Weights::kInt8
                  : is_bfloat16(w)                      ? Weights::kBFloat16
                                                        : Weights::kFloat32;
  });
  if (!matmuls.has_value()) return matmuls.error();
  multiply(matmuls.value(), on_pool(pool));
  return ffi::Error::Success();
}

ffi::Error rms_norm(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::Result<ffi::AnyBuffer> y,
                    float eps, bool unit_offset) {
  RmsNorm n{};
  n.size = weight.element_count(), n.rows = x.element_count() / n.size;
  n.x = x.untyped_data(), n.weight = weight.untyped_data(), n.y = y->untyped_data();
  n.is_bfloat16 = is_bfloat16(x), n.eps = eps, n.unit_offset = unit_offset;
  normalize(n, on_pool(pool));
  return ffi::Error::Success();
}

}  // namespace
}  // namespace xlaserve

using ffi::AnyBuffer;
#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(xlaserve_attention, xlaserve::attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<AnyBuffer>()   // q
                                  .Arg<AnyBuffer>()   // pages
                                  .Arg<AnyBuffer>()   // scales, or empty
                                  .Arg<AnyBuffer>()   // block_tables
                                  .Arg<AnyBuffer>()   // query_start_loc
                                  .Arg<AnyBuffer>()   // seq_lens
                                  .Arg<AnyBuffer>()   // sinks, or empty
                                  .Ret<AnyBuffer>()   // out
                                  .Attr<float>("scale")
                                  .Attr<float>("soft_cap")
                                  .Attr<int64_t>("sliding_window"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(xlaserve_int8_matmul, xlaserve::int8_matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<AnyBuffer>()  // x
                                  .Arg<AnyBuffer>()  // its scales
                                  .RemainingArgs()   // of each product its weight, scales, and bias or empty
                                  .RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(xlaserve_matmul, xlaserve::matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<AnyBuffer>()  // x
                                  .RemainingArgs()   // of each product its weight, scales or empty, bias or empty
                                  .RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(xlaserve_rms_norm, xlaserve::rms_norm,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<AnyBuffer>()  // x
                                  .Arg<AnyBuffer>()  // weight
                                  .Ret<AnyBuffer>()
                                  .Attr<float>("eps")
                                  .Attr<bool>("unit_offset"));

#pragma GCC visibility pop
