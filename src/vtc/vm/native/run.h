// Running an encoded program.
#pragma once

#include <cstdint>

#include "words.h"

namespace vtc {

// Runs the program over the caller's buffers (0 for those of the arena). Returns 0, or the fault of
// a runtime index: kernel + 1 (32 bits), buffer (24), term (8).
// With `times` the first thread adds to times[kernel] the nanoseconds that it spent on each kernel,
// waiting for others included.
uint64_t run_program(const Word* words, const uintptr_t* pointers, const double* params,
                     int64_t* times = nullptr);

}  // namespace vtc
