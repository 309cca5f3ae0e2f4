// Which instruction set runs here.

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "table.h"

namespace vtc {

namespace baseline {
const Table& instance();
}
#if defined(__x86_64__)
namespace avx2 {
const Table& instance();
}
namespace avx512 {
const Table& instance();
}
#endif

const Table* table_named(const char* name) {
#if defined(__x86_64__)
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (std::strcmp(name, "avx512") == 0) return avx512 ? &avx512::instance() : nullptr;
  if (std::strcmp(name, "avx2") == 0) return avx2 ? &avx2::instance() : nullptr;
#endif
  return std::strcmp(name, "baseline") == 0 ? &baseline::instance() : nullptr;
}

const Table& table() {
  static const Table& chosen = [&]() -> const Table& {
    const char* asked = std::getenv("VTC_ISA");
    for (const char* name : {asked ? asked : "avx512", "avx512", "avx2"})
      if (const Table* found = table_named(name)) return *found;
    return baseline::instance();
  }();
  return chosen;
}

}  // namespace vtc
