// The parts of an instruction set's table, each filled by a source file of its own.
#pragma once

#include "simd.h"
#include "table.h"

namespace vtc::VTC_ISA {

void fill_pointwise(Table& t);
void fill_chain(Table& t);
void fill_convert(Table& t);
void fill_lines(Table& t);
void fill_fold(Table& t);
void fill_gemm(Table& t);
void fill_gemv(Table& t);
void fill_bf16(Table& t);
void fill_conv(Table& t);

}  // namespace vtc::VTC_ISA
