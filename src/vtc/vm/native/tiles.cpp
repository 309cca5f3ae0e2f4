// Scalar operators and the values that need no memory, over tiles.

#include <algorithm>
#include <cstring>
#include <utility>

#include "state.h"

namespace vtc {
namespace {

template <class T>
void fill_n(char* d, T value, int64_t n) {
  std::fill_n(reinterpret_cast<T*>(d), n, value);
}

void fill_number(char* d, int type, double x, int64_t n) {
  switch (type) {
    case T_F64: return fill_n(d, x, n);
    case T_F32: return fill_n(d, static_cast<float>(x), n);
    case T_I64: return fill_n(d, static_cast<int64_t>(x), n);
    case T_I32: return fill_n(d, static_cast<int32_t>(static_cast<int64_t>(x)), n);
    default: return fill_n(d, static_cast<uint8_t>(x != 0), n);
  }
}

void fill_integer(char* d, int type, int64_t x, int64_t n) {
  switch (type) {
    case T_I64: return fill_n(d, x, n);
    case T_I32: return fill_n(d, static_cast<int32_t>(x), n);
    case T_BOOL: return fill_n(d, static_cast<uint8_t>(x != 0), n);
    default: return fill_number(d, type, static_cast<double>(x), n);
  }
}

}  // namespace

void constant(State& s, const Word* w) {
  int type = type_of(w[0]), dst = dst_of(w[0]);
  int64_t n = s.count(kind_dst_of(w[0]));
  if (type == T_F64 || type == T_F32) {
    double x;
    std::memcpy(&x, &w[1], 8);
    fill_number(s.reg[dst], type, x, n);
  } else {
    fill_integer(s.reg[dst], type, static_cast<int64_t>(w[1]), n);
  }
}

void param(State& s, const Word* w) {
  fill_number(s.reg[dst_of(w[0])], type_of(w[0]), s.run->params[w[1]], s.count(kind_dst_of(w[0])));
}

void iota(State& s, const Word* w) {
  int kind = kind_dst_of(w[0]), d = static_cast<int>(w[1]);
  int64_t* out = reinterpret_cast<int64_t*>(s.reg[dst_of(w[0])]);
  int64_t first = s.coordinate[d], r = s.rows(kind), c = s.columns(kind);
  int64_t down = d == s.row, across = d == s.column;
  for (int64_t i = 0; i < r; ++i)
    for (int64_t j = 0; j < c; ++j) *out++ = first + i * down + j * across;
}

void move(State& s, const Word* w) {
  int type = type_of(w[0]), kind = kind_dst_of(w[0]), kind_a = kind_a_of(w[0]);
  int size = kItemsize[type];
  const char* a = s.reg[a_of(w[0])];
  char* d = s.reg[dst_of(w[0])];
  int64_t r = s.rows(kind), c = s.columns(kind);
  int64_t ra = s.rows(kind_a), ca = s.columns(kind_a);
  for (int64_t i = 0; i < r; ++i, d += c * size) {
    const char* from = a + (ra == 1 ? 0 : i * ca) * size;
    if (ca == c) {
      std::memmove(d, from, c * size);
    } else if (size == 4) {
      fill_n(d, *reinterpret_cast<const uint32_t*>(from), c);
    } else if (size == 8) {
      fill_n(d, *reinterpret_cast<const uint64_t*>(from), c);
    } else {
      std::memset(d, *from, c);
    }
  }
}

void cast(State& s, const Word* w) {
  s.table->cast[type_of(w[0])][type2_of(w[0])](s.reg[dst_of(w[0])], s.reg[a_of(w[0])], nullptr,
                                               nullptr, s.count(kind_dst_of(w[0])), 0);
}

namespace {

struct Operand {
  const char* p;
  int64_t r, c;
  int size;

  Operand(const State& s, int reg, int kind, int bytes)
      : p(s.reg[reg]), r(s.rows(kind)), c(s.columns(kind)), size(bytes) {}
};

// Calls f(destination, operands, elements, splat) for the whole tile at once if no operand varies
// along one axis only, else a row at a time.
template <class F>
void broadcast(char* d, int64_t r, int64_t c, int size_d, const Operand (&in)[3], F f) {
  unsigned splat = 0;
  bool flat = true;
  for (int k = 0; k < 3; ++k) {
    if (in[k].r * in[k].c == 1)
      splat |= 1u << k;
    else
      flat &= in[k].r == r && in[k].c == c;
  }
  const char* at[3] = {in[0].p, in[1].p, in[2].p};
  if (flat) return f(d, at, r * c, r * c == 1 ? 0 : splat);
  for (int k = 0; k < 3; ++k)
    if (in[k].c == 1 && c > 1) splat |= 1u << k;
  for (int64_t i = 0; i < r; ++i) {
    for (int k = 0; k < 3; ++k) at[k] = in[k].p + (in[k].r == 1 ? 0 : i * in[k].c) * in[k].size;
    f(d + i * c * size_d, at, c, c == 1 ? 0 : splat);
  }
}

}  // namespace

const Word* map(State& s, const Word* w) {
  Word head = w[0];
  if (const Word* next = chain(s, w)) return next;
  int op = op_of(head), type = type_of(head), kind = kind_dst_of(head);
  Map f = s.table->map[op][type];
  bool compares = (op >= OP_EQ && op <= OP_GE) || op == OP_ISNAN || op == OP_ISINF;
  int size = kItemsize[type];
  // Operands that an operator does not have are register 0 of kind scalar: one element, unread.
  const Operand in[3] = {{s, a_of(head), kind_a_of(head), op == OP_SELECT ? 1 : size},
                         {s, b_of(head), kind_b_of(head), size},
                         {s, c_of(head), kind_c_of(head), size}};
  broadcast(s.reg[dst_of(head)], s.rows(kind), s.columns(kind), compares ? 1 : size, in,
            [&](char* d, const char* const* at, int64_t n, unsigned splat) {
              f(d, at[0], at[1], at[2], n, splat);
            });
  return w + 1;
}

}  // namespace vtc
