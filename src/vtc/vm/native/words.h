// Reading programs: fields of head words, accesses, kernels. The layout is isa.py's.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace vtc {

using Word = uint64_t;

inline int op_of(Word w) { return w & kOpMask; }
inline int type_of(Word w) { return w >> kTypeShift & kTypeMask; }
inline int type2_of(Word w) { return w >> kType2Shift & kType2Mask; }
inline int dst_of(Word w) { return w >> kDstShift & kDstMask; }
inline int a_of(Word w) { return w >> kAShift & kAMask; }
inline int b_of(Word w) { return w >> kBShift & kBMask; }
inline int c_of(Word w) { return w >> kCShift & kCMask; }
inline int kind_dst_of(Word w) { return w >> kKindDstShift & kKindDstMask; }
inline int kind_a_of(Word w) { return w >> kKindAShift & kKindAMask; }
inline int kind_b_of(Word w) { return w >> kKindBShift & kKindBMask; }
inline int kind_c_of(Word w) { return w >> kKindCShift & kKindCMask; }
inline int length_of(Word w) { return w >> kLengthShift & kLengthMask; }

inline double real(Word w) {
  double x;
  std::memcpy(&x, &w, 8);
  return x;
}

inline int64_t words_of(const Word* w) {
  int length = length_of(*w);
  return length ? length : static_cast<int64_t>(w[1]);
}

constexpr int kRowBit = 1;
constexpr int kColumnBit = 2;

struct AccessView {
  const Word* w;

  int buffer() const { return w[0] & 0xffff; }
  int terms() const { return w[0] >> 16 & 0xff; }
  int masks() const { return w[0] >> 24 & 0xff; }
  int strides() const { return w[0] >> 40 & 0xff; }
  int64_t offset() const { return static_cast<int64_t>(w[1]); }
  int64_t stride(int d) const { return static_cast<int64_t>(w[2 + d]); }
  const Word* term(int i) const { return w + 2 + strides() + 3 * i; }
  const Word* mask(int i) const { return term(terms()) + 3 * i; }
  int words() const { return 2 + strides() + 3 * (terms() + masks()); }
  bool plain() const { return (w[0] & 0xffff0000u) == 0; }
};

struct TermView {
  const Word* w;

  int reg() const { return w[0] & 0xff; }
  int type() const { return w[0] >> 8 & 0xff; }
  int kind() const { return w[0] >> 16 & 0xff; }
  bool checked() const { return w[0] >> 24 & 0xff; }
  int64_t stride() const { return static_cast<int64_t>(w[1]); }
  int64_t size() const { return static_cast<int64_t>(w[2]); }
};

// A CONVOLUTION, given its head word.
struct ConvolutionView {
  static constexpr int kHead = 6;
  const Word* w;

  int digits() const { return w[2] & 0xffff; }
  int windows() const { return w[2] >> 16 & 0xffff; }
  int parts() const { return w[2] >> 32 & 0xffff; }
  int64_t width() const { return static_cast<int64_t>(w[2] >> 48); }
  bool scaled() const { return w[3] & 1; }
  bool shifted() const { return w[3] & 2; }
  double low() const { return real(w[4]); }
  double high() const { return real(w[5]); }
  const Word* digit(int i) const { return w + kHead + 3 * i; }
  int dim(int i) const { return digit(i)[0] & 0xff; }
  int window_of(int i) const { return static_cast<int>(digit(i)[0] >> 8 & 0xff) - 1; }
  int64_t divisor(int i) const { return static_cast<int64_t>(digit(i)[1]); }
  int64_t size(int i) const { return static_cast<int64_t>(digit(i)[2]); }
  const Word* window(int i) const { return w + kHead + 3 * digits() + 5 * i; }
  int64_t taps(int i) const { return static_cast<int64_t>(window(i)[0]); }
  int64_t step(int i) const { return static_cast<int64_t>(window(i)[1]); }
  int64_t dilation(int i) const { return static_cast<int64_t>(window(i)[2]); }
  int64_t pad(int i) const { return static_cast<int64_t>(window(i)[3]); }
  int64_t extent(int i) const { return static_cast<int64_t>(window(i)[4]); }
  const Word* first_part() const { return window(windows()); }
};

// A part of a CONVOLUTION with `digits` digits and `windows` windows.
struct PartView {
  const Word* w;
  int digits, windows;

  int64_t k() const { return static_cast<int64_t>(w[0]); }
  int buffer() const { return static_cast<int>(w[1]); }
  int64_t offset() const { return static_cast<int64_t>(w[2]); }
  int64_t digit_stride(int i) const { return static_cast<int64_t>(w[3 + i]); }
  int64_t window_stride(int i) const { return static_cast<int64_t>(w[3 + digits + i]); }
  int64_t k_stride() const { return static_cast<int64_t>(w[3 + digits + windows]); }
  AccessView right() const { return {w + 4 + digits + windows}; }
  PartView next() const { return {right().w + right().words(), digits, windows}; }
};

struct KernelView {
  const Word* w;

  int dims() const { return type_of(*w); }
  int row() const { return dst_of(*w); }
  int column() const { return a_of(*w); }
  int registers() const { return b_of(*w); }
  int64_t number() const { return static_cast<int64_t>(w[1]); }
  int64_t words() const { return static_cast<int64_t>(w[2]); }
  const Word* body() const { return w + w[3]; }
  int64_t rows() const { return static_cast<int64_t>(w[4]); }
  int64_t columns() const { return static_cast<int64_t>(w[5]); }
  int64_t size(int d) const { return static_cast<int64_t>(w[6 + 2 * d]); }
  int64_t span(int d) const { return static_cast<int64_t>(w[7 + 2 * d]); }
  Word reg(int i) const { return w[6 + 2 * dims() + i]; }
  const Word* prologue() const { return w + 6 + 2 * dims() + registers(); }
  int64_t tasks(int d) const {
    int64_t n = (size(d) + span(d) - 1) / span(d);
    return n > 1 ? n : 1;
  }
};

struct ProgramView {
  const Word* w;

  int64_t words() const { return static_cast<int64_t>(w[1]); }
  int64_t arena_bytes() const { return static_cast<int64_t>(w[2]); }
  int64_t register_bytes() const { return static_cast<int64_t>(w[3]); }
  int buffers() const { return w[4] & 0xffff; }
  int params() const { return w[4] >> 16 & 0xffff; }
  int kernels() const { return w[4] >> 32 & 0xffff; }
  bool parallel() const { return w[4] >> 48 & 1; }
  int type(int b) const { return w[kHeadWords + kBufferWords * b] & 0xff; }
  int kind(int b) const { return w[kHeadWords + kBufferWords * b] >> 8 & 0xff; }
  bool callers(int b) const { return kind(b) == BUFFER_CALLERS; }
  bool hosted(int b) const { return kind(b) == BUFFER_HOSTED; }
  int host(int b) const { return w[kHeadWords + kBufferWords * b] >> 16 & 0xffff; }
  int64_t extent(int b) const { return static_cast<int64_t>(w[kHeadWords + kBufferWords * b + 1]); }
  int64_t offset(int b) const { return static_cast<int64_t>(w[kHeadWords + kBufferWords * b + 2]); }
  const Word* steps() const { return w + kHeadWords + kBufferWords * buffers(); }
};

}  // namespace vtc
