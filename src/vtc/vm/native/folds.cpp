// Reductions and scans over tiles, and their accumulators.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "state.h"

namespace vtc {
namespace {

template <class T>
void fill_identity(char* d, int fold, int64_t n) {
  using L = std::numeric_limits<T>;
  T x = 0;
  bool least = fold == FOLD_MAX || fold == FOLD_ARGMAX;
  bool most = fold == FOLD_MIN || fold == FOLD_ARGMIN;
  if (fold == FOLD_PROD || fold == FOLD_ALL) x = 1;
  if (least) x = L::has_infinity ? -L::infinity() : L::lowest();
  if (most) x = L::has_infinity ? L::infinity() : L::max();
  std::fill_n(reinterpret_cast<T*>(d), n, x);
}

void identity(char* d, int fold, int type, int64_t n) {
  switch (type) {
    case T_F64: return fill_identity<double>(d, fold, n);
    case T_F32: return fill_identity<float>(d, fold, n);
    case T_I64: return fill_identity<int64_t>(d, fold, n);
    case T_I32: return fill_identity<int32_t>(d, fold, n);
    default: return fill_identity<uint8_t>(d, fold, n);
  }
}

FoldShape shape_of(int kind_a, int kind_dst) {
  switch (kind_a & ~kind_dst) {
    case kRowBit: return kDown;
    case kColumnBit: return kAcross;
    case kRowBit | kColumnBit: return kWhole;
    default: return kEach;
  }
}

Places places_of(const State& s, const Word* strides) {
  Places at{0, 0, 0};
  for (int d = 0; d < s.kernel.dims(); ++d) {
    int64_t stride = static_cast<int64_t>(strides[d]);
    at.first += s.coordinate[d] * stride;
    if (d == s.row) at.row = stride;
    if (d == s.column) at.column = stride;
  }
  return at;
}

void fold_into(State& s, int fold, int type, int kind_dst, int kind_a, char* acc, int64_t* place,
               const char* a, const Word* strides) {
  FoldShape shape = shape_of(kind_a, kind_dst);
  int64_t r = s.rows(kind_a), c = s.columns(kind_a);
  if (r * c == 0) return;
  if (has_places(fold))
    s.table->arg[fold == FOLD_ARGMIN][type][shape](acc, place, a, r, c, places_of(s, strides));
  else
    s.table->fold[fold][type][shape](acc, a, r, c);
}

// The result of an accumulator in its value's type.
void settle(State& s, int fold, int type, char* d, const char* acc, const int64_t* place,
            int64_t n) {
  if (has_places(fold)) {
    int64_t* out = reinterpret_cast<int64_t*>(d);
    for (int64_t i = 0; i < n; ++i) out[i] = std::max<int64_t>(place[i], 0);
    return;
  }
  s.table->cast[accumulator_type(fold, type)][type](d, acc, nullptr, nullptr, n, 0);
}

}  // namespace

void reduce(State& s, const Word* w) {
  int type = type_of(w[0]), fold = static_cast<int>(w[1]), kind = kind_dst_of(w[0]);
  int64_t n = s.count(kind);
  char* acc = s.spare.get(n * 16);
  int64_t* place = reinterpret_cast<int64_t*>(acc + n * 8);
  identity(acc, fold, accumulator_type(fold, type), n);
  if (has_places(fold)) std::fill_n(place, n, -1);
  fold_into(s, fold, type, kind, kind_a_of(w[0]), acc, place, s.reg[a_of(w[0])], w + 2);
  settle(s, fold, type, s.reg[dst_of(w[0])], acc, place, n);
}

void init(State& s, const Word* w) {
  int fold = static_cast<int>(w[1]);
  int64_t n = s.count(kind_dst_of(w[0]));
  identity(s.reg[dst_of(w[0])], fold, type2_of(w[0]), n);
  if (has_places(fold)) std::fill_n(reinterpret_cast<int64_t*>(s.reg[b_of(w[0])]), n, -1);
}

void accumulate(State& s, const Word* w) {
  fold_into(s, static_cast<int>(w[1]), type_of(w[0]), kind_dst_of(w[0]), kind_a_of(w[0]),
            s.reg[dst_of(w[0])], reinterpret_cast<int64_t*>(s.reg[b_of(w[0])]), s.reg[a_of(w[0])],
            w + 2);
}

void finish(State& s, const Word* w) {
  settle(s, static_cast<int>(w[1]), type_of(w[0]), s.reg[dst_of(w[0])], s.reg[a_of(w[0])],
         reinterpret_cast<int64_t*>(s.reg[b_of(w[0])]), s.count(kind_dst_of(w[0])));
}

void scan(State& s, const Word* w) {
  int d = static_cast<int>(w[2]), kind = kind_dst_of(w[0]);
  int axis = d == s.column ? 1 : d == s.row ? 0 : 2;
  s.table->scan[w[1]][type_of(w[0])](s.reg[dst_of(w[0])], s.reg[b_of(w[0])], s.reg[a_of(w[0])],
                                     s.rows(kind), s.columns(kind), axis);
}

void spill(State& s, const Word* w) {
  int64_t n = s.count(kind_a_of(w[0]));
  int64_t bytes = n * kItemsize[type2_of(w[0])];
  char* to = s.run->arena + w[2] + s.task * w[3];
  std::memmove(to, s.reg[a_of(w[0])], bytes);
  if (has_places(static_cast<int64_t>(w[1])))
    std::memmove(to + (bytes + 7) / 8 * 8, s.reg[b_of(w[0])], n * 8);
}

void merge(State& s, const Word* w) {
  int fold = static_cast<int>(w[1]), type = type_of(w[0]), type2 = type2_of(w[0]);
  int64_t n = s.count(kind_dst_of(w[0])), tasks = static_cast<int64_t>(w[4]);
  int64_t bytes = n * kItemsize[type2];
  char* acc = s.reg[dst_of(w[0])];
  int64_t* place = reinterpret_cast<int64_t*>(s.reg[b_of(w[0])]);
  identity(acc, fold, type2, n);
  if (has_places(fold)) std::fill_n(place, n, -1);
  const char* from = s.run->arena + w[2] + s.task / static_cast<int64_t>(w[5]) * tasks * w[3];
  for (int64_t t = 0; t < tasks; ++t, from += w[3]) {
    if (!has_places(fold)) {
      s.table->merge[fold][type](acc, from, 1, n);
      continue;
    }
    const int64_t* places = reinterpret_cast<const int64_t*>(from + (bytes + 7) / 8 * 8);
    int size = kItemsize[type2];
    for (int64_t i = 0; i < n; ++i)
      if (places[i] >= 0)
        s.table->arg[fold == FOLD_ARGMIN][type][kWhole](acc + i * size, place + i, from + i * size,
                                                        1, 1, {places[i], 0, 0});
  }
}

}  // namespace vtc
