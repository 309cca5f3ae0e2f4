// Inner loops of convolutions: blocks of rows read in segments, and lines of depthwise outputs.

#include "divisor.h"
#include "functions.h"
#include "gemm.h"
#include "transpose.h"

namespace vtc::VTC_ISA {
namespace {

constexpr int64_t kWeightsAhead = 1024;  // floats of a panel that are fetched ahead

// `get` loads a vector of what there is a value a column of.
template <class F>
inline f32v finished(f32v x, const Finish& f, int64_t c, F get) {
  if (f.scale) x = x * get(f.scale + c);
  if (f.shift) x = x + get(f.shift + c);
  return clamp(x, f.low, f.high);
}

// C[i, j] = f(C[i, j], other[i, j]) in vectors; other counts as 0 where there is none.
template <class F>
inline void each_vector(float* c, int64_t ldc, int64_t rows, int64_t n, const Finish& finish, F f) {
  const float* other = finish.other;
  if (ldc == n && (!other || finish.ldo == n)) n *= rows, rows = 1;
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
}

// What is left to do with sums that are in place, while they are in the first cache.
void complete(float* c, int64_t ldc, int64_t rows, int64_t n, const Finish& finish) {
  switch (finish.activation) {
    case ACTIVATION_SILU:
      return each_vector(c, ldc, rows, n, finish, [](f32v x) { return x * Sigmoid::f(x); });
    case ACTIVATION_HARDSWISH: {
      Divisor by(finish.by);
      f32v move = splat(finish.move);
      return each_vector(c, ldc, rows, n, finish, [&](f32v x) {
        return by(x * clamp(x + move, finish.least, finish.most));
      });
    }
    case ACTIVATION_NONE:
      if (finish.other) each_vector(c, ldc, rows, n, finish, [](f32v x) { return x; });
  }
}

inline bool is_complete(const Finish& f) { return f.activation == ACTIVATION_NONE && !f.other; }

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
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    int64_t left = n - v * kLanes;
    if (left <= 0) break;
    bool whole = left >= kLanes;
    auto get = [&](const float* p) { return whole ? load<f32v>(p) : load_tail<f32v>(p, left); };
    f32v scale = finish.scale ? get(finish.scale + column + v * kLanes) : splat(1.0f);
    f32v shift = finish.shift ? get(finish.shift + column + v * kLanes) : f32v{};
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      f32v x = sum[i][v];
      if (finish.scale) x = x * scale;
      if (finish.shift) x = x + shift;
      x = clamp(x, finish.low, finish.high);
      float* to = c + i * ldc + v * kLanes;
      if (whole)
        store(to, x);
      else
        store_tail(to, x, left);
    }
  }
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
  if (!is_complete(finish)) complete(c, ldc, rows, n, finish);
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

// T outputs of one vector of channels; every input is loaded once. Inside: all inputs are there.
template <int Taps, int Step, int T, bool Tail, bool Inside>
inline void points(const Stencil& s, int64_t o, int64_t c) {
  int64_t left = s.channels - c;
  auto get = [&](const float* p) {
    return Tail ? load_tail<f32v>(p, left) : load<f32v>(p);
  };
  f32v sum[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) sum[t] = f32v{};
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
        if (tap >= 0 && tap < Taps) sum[t] = fma(v, w[tap], sum[t]);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    float* to = s.d + (o + t) * s.ldd + c;
    f32v x = finished(sum[t], s.finish, c, get);
    if (Tail)
      store_tail(to, x, left);
    else
      store(to, x);
  }
}

void complete_outputs(const Stencil& s, int64_t o, int64_t count) {
  if (is_complete(s.finish)) return;
  Finish finish = s.finish;
  if (finish.other) finish.other += o * finish.ldo;
  complete(s.d + o * s.ldd, s.ldd, count, s.channels, finish);
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
  complete_outputs(s, o, T);
}

// A line in blocks of even sizes, up to `kMost` outputs.
template <int Taps, int Step>
void stencil_of(const Stencil& s) {
  constexpr int64_t kMost = 7;
  int64_t count = (s.outputs + kMost - 1) / kMost, o = 0;
  for (int64_t b = 1; b <= count; ++b) {
    int64_t end = s.outputs * b / count;
    with_rows<kMost>(end - o, [&](auto rows) {
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
      f32v sum{};
      for (int line = 0; line < s.count; ++line)
        for (int t = 0; t < s.taps; ++t) {
          int64_t at = s.first + o * s.step + t * s.dilation;
          if (at < 0 || at >= s.extent) continue;
          sum = fma(get(s.lines[line] + at * s.ldx + c), get(s.weights[line] + t * s.ldw + c), sum);
        }
      float* to = s.d + o * s.ldd + c;
      sum = finished(sum, s.finish, c, get);
      if (left < kLanes)
        store_tail(to, sum, left);
      else
        store(to, sum);
    }
  }
  complete_outputs(s, 0, s.outputs);
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
