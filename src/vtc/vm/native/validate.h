// Refusing programs that would do harm, before they run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "words.h"

namespace vtc {

// What is wrong with a program, or nothing: then running it touches no memory outside its buffers'
// extents and its own registers and arena.
std::optional<std::string> validate(const std::vector<Word>& words);

struct Invalid {
  std::string what;
};

inline void require(bool held, const char* what) {
  if (!held) throw Invalid{what};
}

constexpr int64_t kMostElements = int64_t{1} << 44;

// Checks the prologue and the body of a kernel whose head has been checked; `end` is behind it.
void validate_code(const ProgramView& program, const KernelView& kernel);

}  // namespace vtc
