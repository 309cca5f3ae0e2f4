// Chains of f32 operators, each of which takes the result of the one before: a block of vectors goes
// through all of them in registers, and only what somebody reads afterwards is stored. Every
// operator rounds as it does alone.

#include "divisor.h"
#include "functions.h"
#include "lanes.h"

namespace vtc::VTC_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kBlock = 8;
#else
constexpr int kBlock = 4;
#endif

// N vectors at element i of a run, or the last `rest` elements of it (N is 1).
template <int N, bool Tail>
struct Block {
  f32v x[N];
  int64_t i, rest;

  template <class F, int... K>
  void each_of(F f, std::integer_sequence<int, K...>) {
    ((x[K] = f(x[K], K)), ...);
  }
  template <class F>
  void each(F f) {
    each_of(f, std::make_integer_sequence<int, N>{});
  }

  f32v get(const float* p, int k) const {
    if constexpr (Tail)
      return load_tail<f32v>(p + i, rest);
    else
      return vtc::VTC_ISA::load<f32v>(p + i + k * lanes<float>);
  }
  void load(const float* p) {
    each([&](f32v, int k) { return get(p, k); });
  }
  void store(float* p) {
    each([&](f32v v, int k) {
      if constexpr (Tail)
        store_tail(p + i, v, rest);
      else
        vtc::VTC_ISA::store(p + i + k * lanes<float>, v);
      return v;
    });
  }

  // f(x, operand) with a run or one element as the operand.
  template <class F>
  void with(const ChainStep& s, F f) {
    const float* p = s.operand;
    if (s.splat) {
      f32v one = splat(*p);
      each([&](f32v v, int) { return f(v, one); });
    } else {
      each([&](f32v v, int k) { return f(v, get(p, k)); });
    }
  }
  // f(x, bound) with one bound that is not NaN, else g(x, operand).
  template <class F, class G>
  void bounded(const ChainStep& s, F f, G g) {
    if (!s.splat || *s.operand != *s.operand) return with(s, g);
    float bound = *s.operand;
    each([&](f32v v, int) { return f(v, bound); });
  }
  template <class F>
  void alone(F f) {
    each([&](f32v v, int) { return f(v); });
  }
  // x where the mask is set (or is not), the operand elsewhere.
  template <bool Set>
  void select(const ChainStep& s) {
    const float* p = s.operand;
    f32v one = splat(*p);
    each([&](f32v v, int k) {
      f32v other = s.splat ? one : get(p, k);
      const uint8_t* m = s.mask + i + k * lanes<float>;
      auto bits = Tail ? load_mask_tail(m, rest) : load_mask(m);
      return Set ? blend(bits, v, other) : blend(bits, other, v);
    });
  }

  void apply(const ChainStep& s) {
    switch (s.code) {
      case CHAIN_ADD: return with(s, [](f32v a, f32v b) { return a + b; });
      case CHAIN_SUB: return with(s, [](f32v a, f32v b) { return a - b; });
      case CHAIN_SUB_FROM: return with(s, [](f32v a, f32v b) { return b - a; });
      case CHAIN_MUL: return with(s, [](f32v a, f32v b) { return a * b; });
      case CHAIN_DIV: {
        if (!s.splat) return with(s, [](f32v a, f32v b) { return a / b; });
        Divisor by(*s.operand);
        return alone([&](f32v a) { return by(a); });
      }
      case CHAIN_DIV_INTO: return with(s, [](f32v a, f32v b) { return b / a; });
      case CHAIN_MIN:
        return bounded(s, [](f32v a, float b) { return at_most(b, a); },
                       [](f32v a, f32v b) { return vmin(a, b); });
      case CHAIN_MIN_OF: return with(s, [](f32v a, f32v b) { return vmin(b, a); });
      case CHAIN_MAX:
        return bounded(s, [](f32v a, float b) { return at_least(b, a); },
                       [](f32v a, f32v b) { return vmax(a, b); });
      case CHAIN_MAX_OF: return with(s, [](f32v a, f32v b) { return vmax(b, a); });
      case CHAIN_SELECT: return select<true>(s);
      case CHAIN_SELECT_NOT: return select<false>(s);
      case CHAIN_TWICE: return alone([](f32v a) { return a + a; });
      case CHAIN_SQUARE: return alone([](f32v a) { return a * a; });
      case CHAIN_NEG: return alone([](f32v a) { return -a; });
      case CHAIN_ABS: return alone([](f32v a) { return vabs(a); });
      case CHAIN_SQRT: return alone([](f32v a) { return vsqrt(a); });
      case CHAIN_RSQRT: return alone([](f32v a) { return 1 / vsqrt(a); });
      case CHAIN_RECIPROCAL: return alone([](f32v a) { return 1 / a; });
      case CHAIN_EXP: return alone([](f32v a) { return Exp::f(a); });
      case CHAIN_TANH: return alone([](f32v a) { return Tanh::f(a); });
      case CHAIN_ERF: return alone([](f32v a) { return Erf::f(a); });
      case CHAIN_SIGMOID: return alone([](f32v a) { return Sigmoid::f(a); });
      case CHAIN_NONE: return;
    }
  }

  // The sum of the vectors, in pairs.
  f32v total() const {
    f32v half[N / 2];
    for (int k = 0; k < N / 2; ++k) half[k] = x[2 * k] + x[2 * k + 1];
    if constexpr (N == 8) return (half[0] + half[1]) + (half[2] + half[3]);
    return half[0] + half[1];
  }

  void run(const ChainStep* steps, int count, const float* a) {
    load(a);
    for (const ChainStep* s = steps; s != steps + count; ++s) {
      apply(*s);
      if (s->store) store(s->store);
    }
  }
};

// The sum of the last values of a run, in lanes over at most 1024 elements and in f64 from there.
__attribute__((flatten)) double chain_sum(const ChainStep* steps, int count, const float* a,
                                          int64_t n) {
  constexpr int w = lanes<float>;
  constexpr int64_t kPart = 1024;
  auto lanes_of = [](f32v v) { return fold_vector(v, [](auto x, auto y) { return x + y; }); };
  double sum = 0;
  Block<kBlock, false> block;
  Block<1, false> one;
  int64_t i = 0;
  while (i + w <= n) {
    int64_t end = n - i < kPart ? n : i + kPart;
    f32v part{};
    for (; i + kBlock * w <= end; i += kBlock * w) {
      block.i = i;
      block.run(steps, count, a);
      part += block.total();
    }
    for (; i + w <= end; i += w) {
      one.i = i;
      one.run(steps, count, a);
      part += one.x[0];
    }
    sum += static_cast<double>(lanes_of(part));
    if (end == n) break;
  }
  if (i == n) return sum;
  Block<1, true> tail;
  tail.i = i;
  tail.rest = n - i;
  tail.run(steps, count, a);
  float rest = 0;
  for (int64_t k = 0; k < n - i; ++k) rest += tail.x[0][k];
  return sum + static_cast<double>(rest);
}

// Flattened, so that a block is registers and not memory.
__attribute__((flatten)) void chain(const ChainStep* steps, int count, const float* a, int64_t n) {
  constexpr int w = lanes<float>;
  int64_t i = 0;
  Block<kBlock, false> block;
  for (; i + kBlock * w <= n; i += kBlock * w) {
    block.i = i;
    block.run(steps, count, a);
  }
  Block<1, false> one;
  for (; i + w <= n; i += w) {
    one.i = i;
    one.run(steps, count, a);
  }
  if (i == n) return;
  Block<1, true> tail;
  tail.i = i;
  tail.rest = n - i;
  tail.run(steps, count, a);
}

}  // namespace

void fill_chain(Table& t) {
  t.chain = chain;
  t.chain_sum = chain_sum;
}

}  // namespace vtc::VTC_ISA
