// Two arithmetic operators in one pass over f32 runs: the value between them stays in a register.
// Each rounds as it does alone.

#include "lanes.h"

namespace vtc::VTC_ISA {
namespace {

struct Add {
  static f32v f(f32v a, f32v b) { return a + b; }
};
struct Sub {
  static f32v f(f32v a, f32v b) { return a - b; }
};
struct Mul {
  static f32v f(f32v a, f32v b) { return a * b; }
};
struct Min {
  static f32v f(f32v a, f32v b) { return vmin(a, b); }
};
struct Max {
  static f32v f(f32v a, f32v b) { return vmax(a, b); }
};

template <class F, class G, bool Swap, bool SB, bool SC>
void run(float* d, const float* a, const float* b, const float* c, int64_t n) {
  constexpr int w = lanes<float>;
  f32v one_b = splat(*b), one_c = splat(*c);
  auto apply = [](f32v x, f32v y, f32v z) {
    f32v between = F::f(x, y);
    return Swap ? G::f(z, between) : G::f(between, z);
  };
  int64_t i = 0;
  for (; i + w <= n; i += w)
    store(d + i, apply(load<f32v>(a + i), SB ? one_b : load<f32v>(b + i),
                       SC ? one_c : load<f32v>(c + i)));
  if (i < n) {
    int64_t rest = n - i;
    store_tail(d + i,
               apply(load_tail<f32v>(a + i, rest), SB ? one_b : load_tail<f32v>(b + i, rest),
                     SC ? one_c : load_tail<f32v>(c + i, rest)),
               rest);
  }
}

template <class F, class G, bool Swap>
void pair(float* d, const float* a, const float* b, const float* c, int64_t n, unsigned splat) {
  switch (splat >> 1) {
    case 0: return run<F, G, Swap, false, false>(d, a, b, c, n);
    case 1: return run<F, G, Swap, true, false>(d, a, b, c, n);
    case 2: return run<F, G, Swap, false, true>(d, a, b, c, n);
    default: return run<F, G, Swap, true, true>(d, a, b, c, n);
  }
}

template <class F, class G>
void fill_both(Pair* row) {
  row[0] = pair<F, G, false>;
  row[1] = pair<F, G, true>;
}

template <class F>
void fill_first(Pair (*row)[2]) {
  fill_both<F, Add>(row[0]);
  fill_both<F, Sub>(row[1]);
  fill_both<F, Mul>(row[2]);
  fill_both<F, Min>(row[3]);
  fill_both<F, Max>(row[4]);
}

}  // namespace

void fill_pairs(Table& t) {
  fill_first<Add>(t.pair[0]);
  fill_first<Sub>(t.pair[1]);
  fill_first<Mul>(t.pair[2]);
  fill_first<Min>(t.pair[3]);
  fill_first<Max>(t.pair[4]);
}

}  // namespace vtc::VTC_ISA
