// Tasks of whole tiles that are alike, `kTiles` of them at a time: nothing but addresses changes from
// task to task, and instructions are those on registers, loads, stores and folds.
//
// Values that the body computes lie in shared memory once a task of the two; those of the prologue
// are the same for all.
#pragma once

#include "folds.cuh"
#include "registers.cuh"

namespace vtc {

// Which task a block is at, and the stage that its copies are in. `steps`: tasks since the one that
// cursors are of, of `even` that are alike.
struct Progress {
  int task, stage;
  int steps = 0, even = 0;
};

template <int kTiles>
struct Even {
  static constexpr int kParts = kTiles * kGroups;
  static constexpr int kHeld = kParts * kRun;
  using Registers = ValuesOf<kHeld>;

  Tile t;
  uint32_t spot[kGroups];  // of each group: its row (high half), its first column
  int own_from;            // location from which on a value is a task's own
  int own_bytes;           // from there to that of the next task
  int turn = 0;            // of the scratch

  // The byte of a value at `location` of the task `u` of those at hand.
  __device__ __forceinline__ unsigned char* value(int location, int u) const {
    int at = location & 0x3fff;
    return t.shared + at * 16 + (kTiles > 1 && u && at >= own_from ? own_bytes : 0);
  }
  __device__ __forceinline__ float* narrow(int location, int u) const {
    return reinterpret_cast<float*>(value(location, u)) + t.thread * kGroups;
  }

  // The address of each part of the tiles at hand, `steps` tasks from the one that the cursor is of.
  template <int kSize>
  __device__ __forceinline__ char* address(const Place& p, int steps, int u, int g) const {
    int inside = static_cast<int>(spot[g] >> 16) * p.pitch() +
                 static_cast<int>(spot[g] & 0xffff) * kSize;
    return p.address + static_cast<int64_t>(steps + u) * p.step + inside;
  }

  __device__ __forceinline__ void load(Instruction own, Registers& v) const {
    Place p = cursor_of_first(t, own.a()).place;
    with_vector_type(own.type2(), [&](auto constant) {
      constexpr int kType = decltype(constant)::value;
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        const char* from = address<itemsize(kType)>(p, t.steps, n / kGroups, n % kGroups);
        Vector parts[2];
#pragma unroll
        for (int k = 0; k < vectors_of(kType); ++k) parts[k] = load_vector(from + 16 * k);
        unpack<kType>(parts, v.x + n * kRun);
      }
    });
  }

  __device__ __forceinline__ void store(Instruction own, const Registers& v) const {
    Place p = cursor_of_first(t, own.a()).place;
    with_vector_type(own.type2(), [&](auto constant) {
      constexpr int kType = decltype(constant)::value;
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        char* to = address<itemsize(kType)>(p, t.steps, n / kGroups, n % kGroups);
        Vector parts[2];
        pack<kType>(v.x + n * kRun, parts);
#pragma unroll
        for (int k = 0; k < vectors_of(kType); ++k) store_vector(to + 16 * k, parts[k]);
      }
    });
  }

  // from: the staged tile of the first task; `next`: bytes to that of the second.
  __device__ __forceinline__ void load_staged(Instruction own, const unsigned char* from, int next,
                                              Registers& v) const {
    with_vector_type(own.type2(), [&](auto constant) {
      constexpr int kType = decltype(constant)::value;
      constexpr int kEach = vectors_of(kType);
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        const unsigned char* tile = from + n / kGroups * next;
        Vector parts[2];
#pragma unroll
        for (int k = 0; k < kEach; ++k)
          parts[k] = *reinterpret_cast<const Vector*>(tile + staged_at(t, n % kGroups, kEach, k));
        unpack<kType>(parts, v.x + n * kRun);
      }
    });
  }

  __device__ __forceinline__ void keep(int location, const Registers& v) const {
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      const float* x = v.x + n * kRun;
      float4* to = reinterpret_cast<float4*>(value(location, n / kGroups)) +
                   2 * (n % kGroups) * kThreads + t.thread;
      to[0] = make_float4(x[0], x[1], x[2], x[3]);
      to[kThreads] = make_float4(x[4], x[5], x[6], x[7]);
    }
  }

  // Calls f with each part of a value in shared memory, or of a scalar: its number, its elements.
  template <class F>
  __device__ __forceinline__ void each_part_of(int location, Word number, F f) const {
    if (in_memory(location)) {
#pragma unroll
      for (int u = 0; u < kTiles; ++u) {
        const float4* from = reinterpret_cast<const float4*>(value(location, u)) + t.thread;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          float4 low = from[2 * g * kThreads], high = from[(2 * g + 1) * kThreads];
          float x[kRun] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
          f(u * kGroups + g, x);
        }
      }
      return;
    }
    float y[kParts];
    scalar(location, number, y);
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      float x[kRun];
#pragma unroll
      for (int e = 0; e < kRun; ++e) x[e] = y[n];
      f(n, x);
    }
  }

  __device__ __forceinline__ void fetch(int location, Word number, Registers& v) const {
    each_part_of(location, number, [&](int n, const float* x) {
#pragma unroll
      for (int e = 0; e < kRun; ++e) v.x[n * kRun + e] = x[e];
    });
  }

  template <class F>
  __device__ __forceinline__ void each_of_three(int location, Word number, Registers& a,
                                                const Registers& b, F f) const {
    each_part_of(location, number, [&](int n, const float* c) {
#pragma unroll
      for (int e = 0; e < kRun; ++e) {
        float& x = a.x[n * kRun + e];
        x = f(x, b.x[n * kRun + e], c[e]);
      }
    });
  }

  // A scalar, an element a part; those of task u.
  __device__ __forceinline__ void scalar(int location, Word number, float (&x)[kParts]) const {
#pragma unroll
    for (int u = 0; u < kTiles; ++u) scalar_of(location, number, u, x + u * kGroups);
  }
  __device__ __forceinline__ void scalar_of(int location, Word number, int u, float* x) const {
    if (location == kImmediate)
      x[0] = x[1] = argument(number);
    else
      get(location, u, x);
  }
  __device__ __forceinline__ void get(int location, int u, float* x) const {
    static_assert(kGroups == 2);
    float2 both = *reinterpret_cast<const float2*>(narrow(location, u));
    x[0] = both.x, x[1] = both.y;
  }
  __device__ __forceinline__ void put(int location, int u, const float* x) const {
    *reinterpret_cast<float2*>(narrow(location, u)) = make_float2(x[0], x[1]);
  }

  // dst = op(a, b): narrow f32.
  __device__ __forceinline__ void narrow_scalar(Instruction own, Word number) const {
    int op = own.type() | own.type2() << 4;
#pragma unroll 1
    for (int u = 0; u < kTiles; ++u) {
      float x[kGroups], y[kGroups];
      scalar_of(own.a(), number, u, x);
      if (own.b() != kNowhere) scalar_of(own.b(), number, u, y);
      switch (op) {
#define VTC_CASE(OP, RESULT)                                              \
  case OP: each_group(x, y, [](float x, float) { return RESULT; }); break;
        VTC_UNARY(VTC_CASE)
#undef VTC_CASE
#define VTC_CASE(OP, RESULT)                                                \
  case OP: each_group(x, y, [](float x, float y) { return RESULT; }); break;
        VTC_BINARY(VTC_CASE)
#undef VTC_CASE
        default: __builtin_unreachable();
      }
      put(own.dst(), u, x);
    }
  }
  template <class F>
  static __device__ __forceinline__ void each_group(float (&x)[kGroups], const float (&y)[kGroups],
                                                    F f) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) x[g] = f(x[g], y[g]);
  }

  // dst (narrow) = the fold of A over columns (mode 2) or the tile (mode 3), each task's own, times
  // `scale`.
  template <class F, bool kSquares>
  __device__ __forceinline__ void reduce(Instruction own, float scale, const Registers& a, F f) {
    float part[kParts];
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      float x[kRun];
#pragma unroll
      for (int e = 0; e < kRun; ++e) {
        float y = a.x[n * kRun + e];
        x[e] = kSquares ? y * y : y;
      }
#pragma unroll
      for (int half = kRun / 2; half; half /= 2)
#pragma unroll
        for (int e = 0; e < half; ++e) x[e] = f(x[e], x[e + half]);
      part[n] = x[0];
    }
    int slots = t.slots();
    if (own.type2() == 3 || slots >= kGroups * kThreads) {
      float total[kTiles];
#pragma unroll
      for (int u = 0; u < kTiles; ++u) {
        total[u] = part[u * kGroups];
#pragma unroll
        for (int g = 1; g < kGroups; ++g) total[u] = f(total[u], part[u * kGroups + g]);
      }
      fold_all<kTiles>(total, 32, f);
      float* kept = next_scratch();
      if (t.thread % 32 == 0)
#pragma unroll
        for (int u = 0; u < kTiles; ++u) kept[u * kWarps + t.thread / 32] = total[u];
      __syncthreads();
#pragma unroll
      for (int u = 0; u < kTiles; ++u) {
        float all = fold_kept<kWarps>(kept + u * kWarps, f), both[kGroups];
#pragma unroll
        for (int g = 0; g < kGroups; ++g) both[g] = all * scale;
        put(own.dst(), u, both);
      }
      return;
    }
    fold_all<kParts>(part, slots < 32 ? slots : 32, f);
    if (slots > 32) {
      float* kept = next_scratch();
      if (t.thread % 32 == 0)
#pragma unroll
        for (int n = 0; n < kParts; ++n) kept[n * kWarps + t.thread / 32] = part[n];
      __syncthreads();
      int count = slots / 32;
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        const float* first = kept + n / kGroups * kGroups * kWarps +
                             static_cast<int>(spot[n % kGroups] >> 16) * count;
        float total = first[0];
        for (int k = 1; k < count; ++k) total = f(total, first[k]);
        part[n] = total;
      }
    }
#pragma unroll
    for (int n = 0; n < kParts; ++n) part[n] *= scale;
#pragma unroll
    for (int u = 0; u < kTiles; ++u) put(own.dst(), u, part + u * kGroups);
  }

  // Two buffers in turn, so that one barrier a fold is enough.
  __device__ __forceinline__ float* next_scratch() {
    turn ^= 1;
    return reinterpret_cast<float*>(t.shared + t.scratch()) + turn * kSlots;
  }

  template <int kCount, class F>
  static __device__ __forceinline__ void fold_all(float (&x)[kCount], int width, F f) {
    if (width == 32) {
#pragma unroll
      for (int lane = 16; lane; lane /= 2)
#pragma unroll
        for (int n = 0; n < kCount; ++n)
          x[n] = f(x[n], __shfl_xor_sync(0xffffffffu, x[n], lane));
      return;
    }
    for (int lane = width / 2; lane; lane /= 2)
#pragma unroll
      for (int n = 0; n < kCount; ++n) x[n] = f(x[n], __shfl_xor_sync(0xffffffffu, x[n], lane));
  }

  template <int kCount, class F>
  static __device__ __forceinline__ float fold_kept(const float* kept, F f) {
    float total = kept[0];
#pragma unroll
    for (int n = 1; n < kCount; ++n) total = f(total, kept[n]);
    return total;
  }

  __device__ __forceinline__ void fold(Instruction own, Word argument_word, const Registers& a) {
    float scale = __uint_as_float(static_cast<uint32_t>(argument_word >> 32));
    switch (static_cast<int>(argument_word & 0xff)) {
      case FOLD_SUM: return reduce<Sum, false>(own, scale, a, Sum());
      case FOLD_PROD: return reduce<Product, false>(own, scale, a, Product());
      case FOLD_MAX: return reduce<Most, false>(own, scale, a, Most());
      case FOLD_MIN: return reduce<Least, false>(own, scale, a, Least());
      default: return reduce<Sum, true>(own, scale, a, Sum());
    }
  }

  // Starts the copies of task `n` of those that are alike.
  template <int kSize>
  __device__ __forceinline__ void copy_tile(const Place& p, int steps, unsigned char* to) const {
    constexpr int kEach = kSize * kRun / 16;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const char* from = address<kSize>(p, steps, 0, g);
#pragma unroll
      for (int k = 0; k < kEach; ++k) copy_async(to + staged_at(t, g, kEach, k), from + 16 * k);
    }
  }
};

// What stays the same from task to task of `run_even`.
struct Steady {
  int even, grid, stages, body, first_stage, stage_bytes, first_copy, end_copy;

  __device__ __forceinline__ Steady(const Tile& t, int even_tasks)
      : even(even_tasks),
        grid(t.blocks()),
        stages(t.stages()),
        body(static_cast<int>(t.words[t.head + 3] >> 32) / 2),
        first_stage(static_cast<int>(t.words[t.head + 4] & 0xffffffff)),
        stage_bytes(static_cast<int>(t.words[t.head + 5] >> 32)),
        first_copy(t.accesses()),
        end_copy(t.accesses() + t.copies()) {}
};

// Starts the copies that are to be ahead of the tasks at hand, and waits for those of these.
template <int kTiles>
__device__ __forceinline__ void turn_stages(const Even<kTiles>& own, const Steady& s, int stage) {
  if (!s.stages) return;
  // Those of the first stages - 1 tasks were started before.
  int back = s.stages - kTiles, first = own.t.steps + back;
  int into = stage >= kTiles ? stage - kTiles : stage + back;
  for (int u = 0; u < kTiles; ++u) {
    int n = first + u;
    if (n < s.stages - 1 || n >= s.even) continue;
    for (int c = s.first_copy; c < s.end_copy; ++c) {
      const Cursor& cursor = cursor_of_first(own.t, c);
      unsigned char* to = own.t.shared + s.first_stage + (into + u) * s.stage_bytes +
                          static_cast<int>(cursor.stage);
      if (cursor.size == 2)
        own.template copy_tile<2>(cursor.place, n, to);
      else
        own.template copy_tile<4>(cursor.place, n, to);
    }
  }
  commit_copies();
  wait_copies(s.stages / kTiles - 1);
}

// Runs the tasks that are alike, as far as there are `kTiles` of them. A function of its own, so that
// its registers are: what the general case needs does not burden it.
template <int kTiles>
VTC_OUT_OF_LINE __device__ Progress run_even(int count, Progress now) {
  Even<kTiles> own;
  typename Even<kTiles>::Registers a, b;
  Tile& t = own.t;
  start(t, shared_memory(), count);
  t.steps = now.steps;
  own.own_from = t.own_from();
  own.own_bytes = t.own_bytes();
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
    own.spot[g] = static_cast<uint32_t>(t.i(g)) << 16 | static_cast<uint32_t>(t.j(g));
  Steady s(t, now.even);
  int stage = now.stage;
  __syncthreads();  // the scratch is used from its start again, here and behind
  turn_stages(own, s, stage);
  const Pair* code = reinterpret_cast<const Pair*>(t.words.p);
  const Pair* next = code + s.body;
  forget(a);
  forget(b);
  Pair following = *next++;
  for (;;) {
    Instruction now_at{following.head};
    Word number = following.argument;
    following = *next++;
    switch (now_at.op()) {
      case D_NARROW: own.narrow_scalar(now_at, number); break;
      case D_STORE: own.store(now_at, a); break;
      case D_KEEP_A: own.keep(now_at.dst(), a); break;
      case D_KEEP_B: own.keep(now_at.dst(), b); break;
      case D_REDUCE: own.fold(now_at, number, a); break;
      case D_LOAD_A: own.load(now_at, a); break;
      case D_LOAD_B: own.load(now_at, b); break;
      case D_STAGED_A:
        own.load_staged(now_at,
                        t.shared + s.first_stage + stage * s.stage_bytes + static_cast<int>(number),
                        s.stage_bytes, a);
        break;
      case D_STAGED_B:
        own.load_staged(now_at,
                        t.shared + s.first_stage + stage * s.stage_bytes + static_cast<int>(number),
                        s.stage_bytes, b);
        break;
      case D_FETCH_A: own.fetch(now_at.a(), number, a); break;
      case D_FETCH_B: own.fetch(now_at.a(), number, b); break;
      case D_B_TO_A: move(a, b); break;
      case D_A_TO_B: move(b, a); break;
      case D_SELECT:
        own.each_of_three(now_at.a(), number, a, b, [](float x, float y, float z) {
          return __float_as_uint(x) ? y : z;
        });
        break;
      case D_CHOOSE_A:
        own.each_of_three(now_at.a(), number, a, b, [](float x, float y, float z) {
          return __float_as_uint(z) ? x : y;
        });
        break;
      case D_CHOOSE_B:
        own.each_of_three(now_at.a(), number, a, b, [](float x, float y, float z) {
          return __float_as_uint(z) ? y : x;
        });
        break;
      case D_FMA:
        own.each_of_three(now_at.a(), number, a, b,
                          [](float x, float y, float z) { return fmaf(x, y, z); });
        break;
      case D_BF16: round_bf16(a); break;
      case D_F16: round_f16(a); break;
#define VTC_CASE(OP, RESULT) \
  case OP: each(a, [](float x) { return RESULT; }); break;
        VTC_UNARY(VTC_CASE)
#undef VTC_CASE
#define VTC_CASE(OP, RESULT)                                               \
  case OP: each(a, b, [](float x, float y) { return RESULT; }); break;     \
  case OP + kScalarForm: {                                                 \
    float y_of[Even<kTiles>::kParts];                                      \
    own.scalar(now_at.a(), number, y_of);                                  \
    each_by_part(a, y_of, [](float x, float y) { return RESULT; });        \
    break;                                                                 \
  }
        VTC_BINARY(VTC_CASE)
#undef VTC_CASE
      case D_DONE:
        t.steps += kTiles;
        stage = stage + kTiles < s.stages ? stage + kTiles : 0;
        if (t.steps + kTiles > s.even) {
          now.task += (t.steps - now.steps) * s.grid;
          now.stage = stage;
          now.steps = t.steps;
          __syncthreads();
          return now;
        }
        turn_stages(own, s, stage);
        next = code + s.body;
        following = *next++;
        break;
      default: __builtin_unreachable();
    }
  }
}

}  // namespace vtc
