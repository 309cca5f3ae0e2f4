// Copies of matrices of 16-bit elements between rows of any length and rows that begin at multiples of 16
// bytes, as the library's fast products want them.
//
//   | kernel | |
//   |---|---|
//   | vtc_pad | each of up to three matrices into a larger one, with zeros around it |
//   | vtc_unpad | the first columns of a matrix into one without gaps |
#pragma once

#include <cstdint>

namespace vtc {

struct Padded {
  uint64_t from, to;
  int32_t rows, columns;  // that are copied
  int32_t pitch;          // elements from one row of `from` to the next
  int32_t to_rows, to_columns;  // of vtc_pad: what `to` has, columns a multiple of 8
  int32_t first_block;
};

constexpr int kMostPadded = 3;
constexpr int kPadThreads = 256;

struct Padding {
  Padded own[kMostPadded];
  int32_t count;
};

}  // namespace vtc
