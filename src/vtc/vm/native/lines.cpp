// Several tiles folded into one, line by line, where they lie: the windows of a pooling.

#include "lanes.h"

namespace vtc::VTC_ISA {
namespace {

// F rounds, and treats NaN and zeros, as the operator does alone.
template <class F>
void fold_lines(float* d, int64_t ldd, const Line* lines, int count, int64_t m, int64_t n) {
  constexpr int w = lanes<float>;
  for (int64_t i = 0; i < m; ++i, d += ldd) {
    auto at = [&](int l, int64_t j) { return lines[l].base + i * lines[l].ld + j; };
    int64_t j = 0;
    for (; j + 2 * w <= n; j += 2 * w) {
      f32v x = load<f32v>(at(0, j)), y = load<f32v>(at(0, j) + w);
      for (int l = 1; l < count; ++l) {
        const float* p = at(l, j);
        x = F::f(x, load<f32v>(p));
        y = F::f(y, load<f32v>(p + w));
      }
      store(d + j, x);
      store(d + j + w, y);
    }
    if (j + w <= n) {
      f32v x = load<f32v>(at(0, j));
      for (int l = 1; l < count; ++l) x = F::f(x, load<f32v>(at(l, j)));
      store(d + j, x);
      j += w;
    }
    if (int64_t rest = n - j) {
      f32v x = load_tail<f32v>(at(0, j), rest);
      for (int l = 1; l < count; ++l) x = F::f(x, load_tail<f32v>(at(l, j), rest));
      store_tail(d + j, x, rest);
    }
  }
}

struct Add {
  static f32v f(f32v a, f32v b) { return a + b; }
};
struct Minimum {
  static f32v f(f32v a, f32v b) { return vmin(a, b); }
};
struct Maximum {
  static f32v f(f32v a, f32v b) { return vmax(a, b); }
};

}  // namespace

void fill_lines(Table& t) {
  t.add_lines = fold_lines<Add>;
  t.min_lines = fold_lines<Minimum>;
  t.max_lines = fold_lines<Maximum>;
}

}  // namespace vtc::VTC_ISA
