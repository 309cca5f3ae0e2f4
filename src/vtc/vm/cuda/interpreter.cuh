// The DVM's interpreter: one kernel of a program a launch, in the form of layout.h.
//
// A block of threads takes tasks in turn. While it computes one, the loads of the next ones are on
// their way into shared memory, where each thread finds what it has itself asked for.

#pragma once

#include "folds.cuh"

namespace vtc {

// W and the files: `location` is uniform, and each case is moves between registers.
struct Files {
  Values r0, r1;
};

// Group kGroup of the value at a location.
template <int kGroup>
__device__ __forceinline__ void fetch_group(const Tile& t, int location, int type, Word number,
                                            const Values& w, const Files& files, float* x) {
  constexpr int kFirst = kGroup * kRun;
  switch (location) {
    case kInW:
#pragma unroll
      for (int e = 0; e < kRun; ++e) x[e] = w.x[kFirst + e];
      return;
    case kInFile:
#pragma unroll
      for (int e = 0; e < kRun; ++e) x[e] = files.r0.x[kFirst + e];
      return;
    case kInFile + 1:
#pragma unroll
      for (int e = 0; e < kRun; ++e) x[e] = files.r1.x[kFirst + e];
      return;
    default: break;
  }
  if (location == kImmediate || location & kNarrow) {
    float y = location == kImmediate
                  ? (type == T_F32 ? immediate<float>(number)
                                   : __uint_as_float(static_cast<uint32_t>(number)))
                  : *narrow_at<float>(t, location, kGroup);
#pragma unroll
    for (int e = 0; e < kRun; ++e) x[e] = y;
    return;
  }
  // A group that the kernel does not have is read as the first one, and counts for nothing.
  int first = kGroup < t.groups ? 2 * kGroup * kThreads : 0;
  const float4* from =
      reinterpret_cast<const float4*>(t.shared + (location & 0x3fff) * 16) + first + t.thread;
  float4 low = from[0], high = from[kThreads];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

__device__ __forceinline__ void keep(const Tile& t, int location, const Values& w, Files& files) {
  switch (location) {
    case kInFile: files.r0 = w; return;
    case kInFile + 1: files.r1 = w; return;
    default: {
      float4* to = reinterpret_cast<float4*>(t.shared + (location & 0x3fff) * 16);
#pragma unroll
      for (int n = 0; n < kElements / 4; ++n) {
        if (n * 4 >= t.groups * kRun) break;
        to[n * kThreads + t.thread] =
            make_float4(w.x[4 * n], w.x[4 * n + 1], w.x[4 * n + 2], w.x[4 * n + 3]);
      }
    }
  }
}

template <class F>
__device__ __forceinline__ void each(Values& w, F f) {
#pragma unroll
  for (int e = 0; e < kElements; ++e) w.x[e] = f(w.x[e]);
}

__device__ __forceinline__ float truth(bool b) { return __uint_as_float(b ? 1u : 0u); }

__device__ __forceinline__ void fast_unary(int op, Values& w) {
  switch (op) {
    case OP_NEG: return each(w, [](float a) { return -a; });
    case OP_ABS: return each(w, [](float a) { return fabsf(a); });
    case OP_FLOOR: return each(w, [](float a) { return floorf(a); });
    case OP_EXP: return each(w, [](float a) { return expf(a); });
    case OP_EXP2: return each(w, [](float a) { return exp2f(a); });
    case OP_LOG: return each(w, [](float a) { return logf(a); });
    case OP_SQRT: return each(w, [](float a) { return sqrtf(a); });
    case OP_RSQRT: return each(w, [](float a) { return rsqrtf(a); });
    case OP_TANH: return each(w, [](float a) { return tanhf(a); });
    case OP_ERF: return each(w, [](float a) { return erff(a); });
    case OP_SIGMOID: return each(w, [](float a) { return sigmoid(a); });
    case OP_RECIPROCAL: return each(w, [](float a) { return 1.0f / a; });
    case OP_ISNAN: return each(w, [](float a) { return truth(a != a); });
    case OP_NOT:
      return each(w, [](float a) { return __uint_as_float(__float_as_uint(a) ^ 1u); });
    default: return;
  }
}

// An instruction whose second operand, and third one, are read a group at a time.
struct Several {
  const Tile& t;
  Instruction own;
  Word second, third;  // immediates
  Values& w;
  const Files& files;

  template <int kGroup, class F>
  __device__ __forceinline__ void group(F f) const {
    float b[kRun];
    fetch_group<kGroup>(t, own.b(), own.type(), second, w, files, b);
#pragma unroll
    for (int e = 0; e < kRun; ++e) {
      float& x = w.x[kGroup * kRun + e];
      x = f(x, b[e]);
    }
  }
  template <class F>
  __device__ __forceinline__ void pairs(F f) const {
    group<0>(f);
    group<1>(f);
  }

  // FMA, and SELECT, whose mask is W.
  template <int kGroup>
  __device__ __forceinline__ void ternary() const {
    float b[kRun], c[kRun];
    fetch_group<kGroup>(t, own.b(), own.type(), second, w, files, b);
    fetch_group<kGroup>(t, own.dst(), own.type(), third, w, files, c);
    bool selects = (own.op() & ~kFast) == OP_SELECT;
#pragma unroll
    for (int e = 0; e < kRun; ++e) {
      float& x = w.x[kGroup * kRun + e];
      x = selects ? (__float_as_uint(x) ? b[e] : c[e]) : fmaf(x, b[e], c[e]);
    }
  }
};

// W = op(W, b); where `swapped`, op(b, W).
__device__ __forceinline__ void fast_binary(const Several& s, int op, bool swapped) {
  if (swapped) {
    switch (op) {
      case OP_SUB: return s.pairs([](float x, float y) { return y - x; });
      case OP_DIV: return s.pairs([](float x, float y) { return y / x; });
      case OP_LT: return s.pairs([](float x, float y) { return truth(y < x); });
      case OP_LE: return s.pairs([](float x, float y) { return truth(y <= x); });
      case OP_GT: return s.pairs([](float x, float y) { return truth(y > x); });
      case OP_GE: return s.pairs([](float x, float y) { return truth(y >= x); });
      default: break;
    }
  }
  switch (op) {
    case OP_ADD: return s.pairs([](float x, float y) { return x + y; });
    case OP_SUB: return s.pairs([](float x, float y) { return x - y; });
    case OP_MUL: return s.pairs([](float x, float y) { return x * y; });
    case OP_DIV: return s.pairs([](float x, float y) { return x / y; });
    case OP_MINIMUM: return s.pairs([](float x, float y) { return smaller(x, y); });
    case OP_MAXIMUM: return s.pairs([](float x, float y) { return larger(x, y); });
    case OP_EQ: return s.pairs([](float x, float y) { return truth(x == y); });
    case OP_NE: return s.pairs([](float x, float y) { return truth(x != y); });
    case OP_LT: return s.pairs([](float x, float y) { return truth(x < y); });
    case OP_LE: return s.pairs([](float x, float y) { return truth(x <= y); });
    case OP_GT: return s.pairs([](float x, float y) { return truth(x > y); });
    case OP_GE: return s.pairs([](float x, float y) { return truth(x >= y); });
    case OP_AND:
      return s.pairs([](float x, float y) {
        return __uint_as_float(__float_as_uint(x) & __float_as_uint(y));
      });
    case OP_OR:
      return s.pairs([](float x, float y) {
        return __uint_as_float(__float_as_uint(x) | __float_as_uint(y));
      });
    default:
      s.ternary<0>();
      s.ternary<1>();
  }
}

__device__ __forceinline__ void fast_cast(int type, Values& w) {
  switch (type) {
    case T_BF16:
#pragma unroll
      for (int e = 0; e < kElements; e += 2) {
        uint32_t both = pack_bf16(w.x[e], w.x[e + 1]);
        w.x[e] = from_bf16(both);
        w.x[e + 1] = __uint_as_float(both & 0xffff0000u);
      }
      return;
    case T_F16:
#pragma unroll
      for (int e = 0; e < kElements; e += 2) {
        uint32_t both = pack_f16(w.x[e], w.x[e + 1]);
        w.x[e] = from_f16(both & 0xffff);
        w.x[e + 1] = from_f16(both >> 16);
      }
      return;
    default: return;  // of f32 to f32
  }
}

__device__ __forceinline__ void start(Tile& t, unsigned char* shared, int count) {
  const Word* words = reinterpret_cast<const Word*>(shared);
  t.words = Words{words};
  t.shared = shared + block_bytes(count);
  t.thread = threadIdx.x;
  t.head = static_cast<int>(words[2] >> 16 & 0xffff);
  Word head = words[t.head], shape = words[t.head + 1];
  t.groups = head >> 40 & 0xff;
  t.distance = shape >> 16 & 0xffff;
  int slots = shape & 0xffff;
  t.turn = 0;
  t.r = t.c = -1;
  int s = t.thread, q = s % slots;
  t.row0 = s / slots;
  t.column0 = t.distance == 1 ? q * kRun : q;
  s += kThreads, q = s % slots;
  t.row1 = s / slots;
  t.column1 = t.distance == 1 ? q * kRun : q;
}

// Loads that are copied ahead into stages, which tasks use in turn.
struct Pipeline {
  const Tile& t;

  __device__ __forceinline__ int stages() const { return t.words[t.head] >> 32 & 0xff; }
  // The byte of a stage in shared memory.
  __device__ __forceinline__ int at(int stage) const {
    int first = static_cast<int>(t.words[t.head + 4] & 0xffffffff);
    return first + stage * static_cast<int>(t.words[t.dimension(t.dims())] >> 32);
  }
  // Starts the copies for a task, if there is such a one.
  __device__ __forceinline__ void copy(int task, int tasks, int stage) const {
    if (task < tasks) copy_ahead(t, task, at(stage), t.words[t.head] >> 24 & 0xff);
    commit_copies();
  }
};

// Runs the block of `count` words at the start of shared memory.
__device__ __forceinline__ void interpret(unsigned char* shared, int count) {
  Tile t;
  start(t, shared, count);
  const Word* words = t.words.p;
  Pipeline pipeline{t};
  int tasks = static_cast<int>(t.words[t.head + 2]);

  int task = blockIdx.x;
  if (task >= tasks) return;
  for (int n = 0; n + 1 < pipeline.stages(); ++n) pipeline.copy(task + n * gridDim.x, tasks, n);
  bool prepared = false;
  t.set_task(0);
  Values w;
  Files files;
  int stage = 0, pc = static_cast<int>(t.words[t.head + 3] & 0xffffffff);
  for (;;) {
    Instruction own{t.words[pc++]};
    switch (own.op()) {
      case OP_DONE: {
        int stages = pipeline.stages();
        if (prepared) {
          task += gridDim.x;
          stage = stage + 1 < stages ? stage + 1 : 0;
          if (task >= tasks) return;
        }
        prepared = true;
        if (stages)
          pipeline.copy(task + (stages - 1) * gridDim.x, tasks, stage ? stage - 1 : stages - 1);
        t.set_task(task);
        if (stages) wait_copies(stages - 1);
        pc = static_cast<int>(t.words[t.head + 3] >> 32);
        break;
      }
      case OP_LOOP: {
        int d = own.dst();
        int64_t* at = t.coordinate(0);
        int64_t whole = t.extent(d, at[d]);
        if (whole <= 0) {
          pc += static_cast<int>(t.words[pc + 1]);
          break;
        }
        int64_t step = t.words.number(pc);
        t.set_extent(d, step < whole ? step : whole);
        t.set_live();
        pc += 2;
        break;
      }
      case OP_ENDLOOP: {
        int loop = pc - static_cast<int>(t.words[pc]);
        int d = Instruction{t.words[loop - 1]}.dst();
        int64_t* at = t.coordinate(0);
        int64_t step = t.words.number(loop), span = t.span(d), now = at[d];
        int64_t start = now / span * span, whole = t.extent(d, start);
        int64_t left = start + whole - (now + step);
        __syncwarp();
        if (left > 0) {
          at[d] = now + step;
          t.set_extent(d, step < left ? step : left);
          pc = loop + 2;
        } else {
          at[d] = start;
          t.set_extent(d, whole);
          pc += 1;
        }
        __syncwarp();
        t.set_live();
        break;
      }
      case D_FETCH: {
        Word number = t.words[pc];
        if (own.a() == kImmediate) ++pc;
        fetch_group<0>(t, own.a(), own.type(), number, w, files, w.x);
        fetch_group<1>(t, own.a(), own.type(), number, w, files, w.x + kRun);
        break;
      }
      case D_KEEP: keep(t, own.dst(), w, files); break;
      case OP_LOAD | kFast: {
        fast_load(t, own, pc, pipeline.at(stage), w);
        break;
      }
      case OP_STORE | kFast: fast_store(t, own, pc, w); break;
      case OP_CAST | kFast: fast_cast(own.type2(), w); break;
      case OP_REDUCE | kFast: fast_reduce(t, own, pc, w); break;
      case OP_ACCUM | kFast: fast_accumulate(t, own, pc, w); break;
      case OP_LOAD: slow_load(t, own, pc); break;
      case OP_STORE: slow_store(t, own, pc); break;
      case OP_CAST: slow_cast(t, own, pc); break;
      case OP_MOVE: slow_move(t, own, pc); break;
      case OP_PARAM: {
        int buffers = static_cast<int>(words[2] & 0xffff);
        double x = as_double(t.words[kBlockWords + 2 * buffers + static_cast<int>(t.words[pc++])]);
        with_type(own.type(), [&](auto zero) {
          using T = decltype(zero);
          for (int g = 0; g < t.groups; ++g) put<T>(t, own.dst(), g * kRun, static_cast<T>(x));
        });
        break;
      }
      case OP_IOTA: iota(t, own, pc); break;
      case OP_ACCUM: slow_accumulate(t, own, pc); break;
      case OP_FINISH: finish(t, own, pc); break;
      case OP_SPILL: spill(t, own, pc, task); break;
      case OP_MERGE: merge(t, own, pc, task); break;
      default:
        if (own.op() & kFast) {
          int op = own.op() & ~kFast;
          if (own.b() == kNowhere) {
            fast_unary(op, w);
            break;
          }
          Word second = t.words[pc];
          if (own.b() == kImmediate) ++pc;
          Word third = t.words[pc];
          if (own.dst() == kImmediate) ++pc;
          fast_binary(Several{t, own, second, third, w, files}, op, own.type2());
        } else {
          slow_scalar(t, own, pc);
        }
    }
  }
}

}  // namespace vtc
