// What follows a convolution and is done block by block, while its sums are in registers or in the
// first cache.
#pragma once

#include "state.h"

namespace vtc {

struct Epilogue {
  const Word* next;  // the instruction to go on with
  float* out;        // where the rows of the result go, `ld` elements apart
  int64_t ld;
  Finish finish;     // activation and addition
};

// Of the f32 CONVOLUTION whose head word is w.
Epilogue find_epilogue(State& s, const Word* w);

}  // namespace vtc
