// How kernels use several threads, whoever lends them.
#pragma once

#include <cstdint>
#include <functional>

namespace xlaserve {

// Calls body(0) .. body(items - 1), in any order, by up to `tasks` threads, and returns when all are done.
using Parallel = std::function<void(int64_t items, int64_t tasks, const std::function<void(int64_t)>& body)>;

}  // namespace xlaserve
