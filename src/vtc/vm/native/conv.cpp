// Inner loops of convolutions: blocks of rows read in segments, and lines of depthwise outputs.

#include "divisor.h"
#include "functions.h"
#include "gemm.h"
#include "transpose.h"

namespace vtc::VTC_ISA {
namespace {

constexpr int64_t kWeightsAhead = 1024;  // floats of a panel that are fetched ahead

// Calls f with the activation of vectors. Its constants are in registers before the first.
template <class F>
[[gnu::always_inline]] inline void with_activation(const Finish& finish, F f) {
  switch (finish.activation) {
    case ACTIVATION_NONE: return f([](f32v x) { return x; });
    case ACTIVATION_SILU: return f([](f32v x) { return x * Sigmoid::f(x); });
    case ACTIVATION_HARDSWISH: {
      f32v move = splat(finish.move);
      auto product = [&](f32v x) { return x * clamp(x + move, finish.least, finish.most); };
      if (finish.inverse.there()) {
        ShortDivisor by(finish.by, finish.inverse);
        return f([&](f32v x) { return by(product(x)); });
      }
      f32v by = splat(finish.by);
      return f([&](f32v x) { return product(x) / by; });
    }
  }
}

// C[i, j] = activation(C[i, j]) + other[i, j] in vectors; other counts as 0 where there is none.
void complete(float* c, int64_t ldc, int64_t rows, int64_t n, const Finish& finish,
              const float* other) {
  if (finish.activation == ACTIVATION_NONE && !other) return;
  if (ldc == n && (!other || finish.ldo == n)) n *= rows, rows = 1;
  with_activation(finish, [&](auto f) {
    for (int64_t i = 0; i < rows; ++i, c += ldc, other += other ? finish.ldo : 0) {
      int64_t j = 0;
      for (; j + kLanes <= n; j += kLanes) {
        f32v x = f(load<f32v>(c + j));
        store(c + j, other ? x + load<f32v>(other + j) : x);
      }
      if (j == n) continue;
      f32v x = f(load_tail<f32v>(c + j, n - j));
      store_tail(c + j, other ? x + load_tail<f32v>(other + j, n - j) : x, n - j);
    }
  });
}

// Writes sums of R rows and V vectors of n columns from `column` on, finished with this activation.
template <int R, int V, class F>
[[gnu::always_inline]] inline void put(const f32v (&sum)[R][V], float* c, int64_t ldc, int64_t n,
                                       int64_t column, const Finish& finish, const float* other,
                                       F activation) {
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    int64_t left = n - v * kLanes;
    if (left <= 0) break;
    bool whole = left >= kLanes;
    auto get = [&](const float* p) { return whole ? load<f32v>(p) : load_tail<f32v>(p, left); };
    f32v x[R];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) x[i] = sum[i][v];
    if (finish.scale) {
      f32v scale = get(finish.scale + column + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) x[i] = x[i] * scale;
    }
    if (finish.shift) {
      f32v shift = get(finish.shift + column + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) x[i] = x[i] + shift;
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) x[i] = activation(clamp(x[i], finish.low, finish.high));
    if (other) {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) x[i] = x[i] + get(other + i * finish.ldo + v * kLanes);
    }
    float* to = c + v * kLanes;
    if (whole) {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) store(to + i * ldc, x[i]);
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) store_tail(to + i * ldc, x[i], left);
    }
  }
}

// From so many vectors on it pays to finish them where they are, in registers.
constexpr int kManyVectors = 12;

// Writes sums of R rows and V vectors of n columns from `column` on; `other` is where the first of
// them is added, or null.
template <int R, int V, bool kInRegisters>
[[gnu::always_inline]] inline void put_finished(const f32v (&sum)[R][V], float* c, int64_t ldc,
                                                int64_t n, int64_t column, const Finish& finish,
                                                const float* other) {
  if constexpr (kInRegisters) {
    with_activation(finish, [&](auto f) __attribute__((always_inline)) {
      put<R, V>(sum, c, ldc, n, column, finish, other, f);
    });
  } else {
    put<R, V>(sum, c, ldc, n, column, finish, nullptr, [](f32v x) { return x; });
    if (finish.activation != ACTIVATION_NONE || other)
      complete(c, ldc, R, std::min<int64_t>(n, V * kLanes), finish, other);
  }
}

template <int R, int V>
inline void micro(float* c, int64_t ldc, const Segment* segments, int64_t count, int64_t panel,
                  int64_t n, int64_t column, const Finish& finish) {
  f32v sum[R][V];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < V; ++v) sum[i][v] = f32v{};
  for (int64_t s = 0; s < count; ++s) {
    const float* a = segments[s].a;
    const float* b = segments[s].b + panel;
    int64_t lda = segments[s].lda, k = segments[s].k, step = segments[s].step;
    // Four rows share a pointer: an address is a register and a multiple of another.
    constexpr int kGroups = (R + 3) / 4;
    const float* group[kGroups];
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) group[g] = a + 4 * g * lda;
    for (int64_t p = 0; p < k; ++p, b += step) {
      f32v y[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) y[v] = load<f32v>(b + v * kLanes);
      // Weights are rarely in the second cache when a kernel begins.
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) __builtin_prefetch(b + kWeightsAhead + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        f32v x = splat(group[i / 4][p + i % 4 * lda]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[i][v] = fma(x, y[v], sum[i][v]);
      }
    }
  }
  const float* other = finish.other ? finish.other + column : nullptr;
  put_finished<R, V, R * V >= kManyVectors>(sum, c, ldc, n, column, finish, other);
}

template <int R>
void micro_rows(int rows, float* c, int64_t ldc, const Segment* segments, int64_t count,
                int64_t panel, int64_t n, int64_t column, const Finish& finish) {
  if constexpr (R > 0) {
    if (rows != R)
      return micro_rows<R - 1>(rows, c, ldc, segments, count, panel, n, column, finish);
    if (n > kLanes) return micro<R, 2>(c, ldc, segments, count, panel, n, column, finish);
    return micro<R, 1>(c, ldc, segments, count, panel, n, column, finish);
  }
}

void block(float* c, int64_t ldc, const Segment* segments, int64_t count, int rows, int64_t apart,
           int64_t n, const Finish& finish) {
  for (int64_t j = 0; j < n; j += kPanel)
    micro_rows<kRows>(rows, c + j, ldc, segments, count, j / kPanel * apart, n - j, j, finish);
}

template <int Type>
void pack_panel(float* packed, const char* b, int64_t column, const int64_t* offset, int64_t k,
                int64_t n) {
  constexpr int size = Type == T_F32 ? 4 : 2;
  for (int64_t j = 0; j < kPanel; j += kLanes) {
    int64_t p = 0;
    while (p < k) {
      bool square = p + kLanes <= k && offset[p + kLanes - 1] - offset[p] == kLanes - 1;
      for (int i = 1; square && i + 1 < kLanes; ++i) square = offset[p + i] == offset[p] + i;
      if (square && j < n) {
        f32v v[kLanes];
        for (int i = 0; i < kLanes; ++i)
          v[i] = j + i < n ? load_floats<Type>(b + ((j + i) * column + offset[p]) * size) : f32v{};
        transpose(v);
        for (int i = 0; i < kLanes; ++i) store(packed + (p + i) * kPanel + j, v[i]);
        p += kLanes;
        continue;
      }
      for (int i = 0; i < kLanes; ++i)
        packed[p * kPanel + j + i] =
            j + i < n ? load_floats_tail<Type>(b + ((j + i) * column + offset[p]) * size, 1)[0] : 0;
      ++p;
    }
  }
}

void pack(float* packed, const char* b, int type, int64_t column, const int64_t* offset, int64_t k,
          int64_t n) {
  with_type(type, [&](auto constant) {
    constexpr int kType = decltype(constant)::value;
    constexpr int size = kType == T_F32 ? 4 : 2;
    for (int64_t j = 0; j < n; j += kPanel)
      pack_panel<kType>(packed + j * k, b + j * column * size, column, offset, k,
                        n - j < kPanel ? n - j : kPanel);
  });
}

constexpr int kMostOutputs = 7;  // of a line at once

// Writes T outputs from o on of n channels from c on.
template <int T, bool kInRegisters>
[[gnu::always_inline]] inline void put_outputs(const f32v (&sum)[T][1], const Stencil& s, int64_t o,
                                               int64_t c, int64_t n) {
  const float* other = s.finish.other ? s.finish.other + o * s.finish.ldo + c : nullptr;
  put_finished<T, 1, kInRegisters>(sum, s.d + o * s.ldd + c, s.ldd, n, c, s.finish, other);
}

// T outputs of one vector of channels; every input is loaded once. Inside: all inputs are there.
template <int Taps, int Step, int T, bool Tail, bool Inside>
inline void points(const Stencil& s, int64_t o, int64_t c) {
  int64_t left = s.channels - c;
  auto get = [&](const float* p) {
    return Tail ? load_tail<f32v>(p, left) : load<f32v>(p);
  };
  f32v sum[T][1];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) sum[t][0] = f32v{};
  int64_t at = s.first + o * Step;
  for (int line = 0; line < s.count; ++line) {
    const float* x = s.lines[line] + c + at * s.ldx;
    f32v w[Taps];
#pragma GCC unroll 8
    for (int t = 0; t < Taps; ++t) w[t] = get(s.weights[line] + t * s.ldw + c);
#pragma GCC unroll 32
    for (int i = 0; i < (T - 1) * Step + Taps; ++i) {
      if (!Inside && static_cast<uint64_t>(at + i) >= static_cast<uint64_t>(s.extent)) continue;
      f32v v = get(x + i * s.ldx);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        int tap = i - t * Step;
        if (tap >= 0 && tap < Taps) sum[t][0] = fma(v, w[tap], sum[t][0]);
      }
    }
  }
  put_outputs<T, T == kMostOutputs && !Tail>(sum, s, o, c, Tail ? left : kLanes);
}

// T outputs from o on of all channels, which are contiguous: of a line at a time the processor
// fetches ahead.
template <int Taps, int Step, int T>
void outputs_of(const Stencil& s, int64_t o) {
  auto all = [&](auto inside) {
    constexpr bool kInside = decltype(inside)::value;
    int64_t c = 0;
    for (; c + kLanes <= s.channels; c += kLanes) points<Taps, Step, T, false, kInside>(s, o, c);
    if (c < s.channels) points<Taps, Step, T, true, kInside>(s, o, c);
  };
  int64_t at = s.first + o * Step;
  if (at >= 0 && at + (T - 1) * Step + Taps <= s.extent)
    all(std::true_type{});
  else
    all(std::false_type{});
}

// A line in blocks of even sizes.
template <int Taps, int Step>
void stencil_of(const Stencil& s) {
  int64_t count = (s.outputs + kMostOutputs - 1) / kMostOutputs, o = 0;
  for (int64_t b = 1; b <= count; ++b) {
    int64_t end = s.outputs * b / count;
    with_rows<kMostOutputs>(end - o, [&](auto rows) {
      outputs_of<Taps, Step, decltype(rows)::value>(s, o);
    });
    o = end;
  }
}

// Any window.
void stencil_any(const Stencil& s) {
  for (int64_t c = 0; c < s.channels; c += kLanes) {
    int64_t left = s.channels - c;
    auto get = [&](const float* p) {
      return left < kLanes ? load_tail<f32v>(p, left) : load<f32v>(p);
    };
    for (int64_t o = 0; o < s.outputs; ++o) {
      f32v sum[1][1] = {};
      for (int line = 0; line < s.count; ++line)
        for (int t = 0; t < s.taps; ++t) {
          int64_t at = s.first + o * s.step + t * s.dilation;
          if (at < 0 || at >= s.extent) continue;
          sum[0][0] = fma(get(s.lines[line] + at * s.ldx + c),
                          get(s.weights[line] + t * s.ldw + c), sum[0][0]);
        }
      put_outputs<1, false>(sum, s, o, c, left);
    }
  }
}

void stencil(const Stencil& s) {
  if (s.dilation == 1) {
    if (s.taps == 3 && s.step == 1) return stencil_of<3, 1>(s);
    if (s.taps == 3 && s.step == 2) return stencil_of<3, 2>(s);
    if (s.taps == 5 && s.step == 1) return stencil_of<5, 1>(s);
    if (s.taps == 5 && s.step == 2) return stencil_of<5, 2>(s);
  }
  stencil_any(s);
}

}  // namespace

void fill_conv(Table& t) { t.conv = {kRows, kPanel, pack, block, stencil, complete}; }

}  // namespace vtc::VTC_ISA
