// Norms and softmax of rows without gaps, as their launches have them: of ROWS_NORM and ROWS_SOFTMAX
// (rows.h) those whose operands have elements of one type, a row right behind the one before.
//
// They are short, so that a row costs a few hundred instructions and a launch's argument two lines of the
// cache: a team of threads has a row, a row is computed once it is there, and nothing else is looked up.
// Elements of a thread lie `lanes` apart, wherever rows begin, or, of rows that are aligned, in groups of 8.
#pragma once

#include <cstdint>

namespace vtc {

struct Dense {
  uint64_t x, y, scale, shift, out, sum;  // addresses of the first elements; 0: there is none
  int32_t rows, columns;
  int32_t threads;   // of a block
  int32_t lanes;     // that have a row: all, or a power of two up to 32
  int32_t centered;  // ROWS_NORM
  int32_t rounded;   // to elements of the type, before `scale`
  float number, share;
};

// X(name, type of the elements, elements of a thread, whether they are in groups)
#define VTC_DENSE_OF(X, NAME, TYPE) \
  X(NAME##_4, TYPE, 4, false)       \
  X(NAME##_8, TYPE, 8, false)       \
  X(NAME##_groups, TYPE, 16, true)
#define VTC_DENSE(X)            \
  VTC_DENSE_OF(X, bf16, T_BF16) \
  VTC_DENSE_OF(X, f16, T_F16)   \
  VTC_DENSE_OF(X, f32, T_F32)

enum DenseForm : int { DENSE_FOUR, DENSE_EIGHT, DENSE_GROUPS };
constexpr int kDenseElements[] = {4, 8, 16};

}  // namespace vtc
