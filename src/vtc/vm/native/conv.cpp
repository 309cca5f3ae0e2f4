// Inner loops of convolutions: blocks of rows read in segments, and lines of depthwise outputs.

#include "gemm.h"
#include "math.h"
#include "transpose.h"

namespace vtc::VTC_ISA {
namespace {

// `get` loads a vector of what there is a value a column of.
template <class F>
inline f32v finished(f32v x, const Finish& f, int64_t c, F get) {
  if (f.scale) x = x * get(f.scale + c);
  if (f.shift) x = x + get(f.shift + c);
  return clamp(x, f.low, f.high);
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

template <int Taps, int Step, int T, bool Tail>
inline int64_t points_from(const Stencil& s, int64_t o, int64_t c) {
  for (; o + T <= s.outputs; o += T) {
    int64_t at = s.first + o * Step;
    if (at >= 0 && at + (T - 1) * Step + Taps <= s.extent)
      points<Taps, Step, T, Tail, true>(s, o, c);
    else
      points<Taps, Step, T, Tail, false>(s, o, c);
  }
  return o;
}

template <int Taps, int Step, bool Tail>
void line_of(const Stencil& s, int64_t c) {
  int64_t o = points_from<Taps, Step, 7, Tail>(s, 0, c);
  o = points_from<Taps, Step, 4, Tail>(s, o, c);
  o = points_from<Taps, Step, 2, Tail>(s, o, c);
  points_from<Taps, Step, 1, Tail>(s, o, c);
}

template <int Taps, int Step>
void stencil_of(const Stencil& s) {
  int64_t c = 0;
  for (; c + kLanes <= s.channels; c += kLanes) line_of<Taps, Step, false>(s, c);
  if (c < s.channels) line_of<Taps, Step, true>(s, c);
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

void fill_conv(Table& t) { t.conv = {kRows, kPanel, pack, block, stencil}; }

}  // namespace vtc::VTC_ISA
