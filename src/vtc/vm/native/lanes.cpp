// The table of one instruction set.

#include "lanes.h"

#define VTC_TEXT(name) #name
#define VTC_NAME(name) VTC_TEXT(name)

namespace vtc::VTC_ISA {

const Table& instance() {
  static const Table made = [] {
    Table t{};
    t.name = VTC_NAME(VTC_ISA);
    fill_pointwise(t);
    fill_chain(t);
    fill_convert(t);
    fill_lines(t);
    fill_fold(t);
    fill_gemm(t);
    fill_gemv(t);
    fill_bf16(t);
    fill_conv(t);
    return t;
  }();
  return made;
}

}  // namespace vtc::VTC_ISA
