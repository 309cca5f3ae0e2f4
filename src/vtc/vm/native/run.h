// Running an encoded program.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "words.h"

namespace vtc {

using Words = std::shared_ptr<const std::vector<Word>>;

// Runs the program over the caller's buffers (0 for those of the arena), on at most `threads`
// threads: this one and helpers. Returns 0, or the fault of a runtime index: kernel + 1 (32 bits),
// buffer (24), term (8). With `times` the first thread adds to times[kernel] the nanoseconds that
// it spent on each kernel, waiting for others included. Throws std::bad_alloc.
uint64_t run_program(const Words& words, const uintptr_t* pointers, const double* params,
                     int threads, int64_t* times = nullptr);

// The most bytes of arenas and registers that running programs had at once since the last call.
int64_t take_workspace_peak();

}  // namespace vtc
