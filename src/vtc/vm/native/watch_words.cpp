// Whether words of memory have changed since they were looked at.

#include "watch_words.h"

#include <algorithm>
#include <cstddef>

namespace vtc {
namespace {

constexpr size_t kAhead = 16;  // words that are fetched ahead

}  // namespace

WordWatch::WordWatch(const std::vector<uintptr_t>& places) {
  for (uintptr_t place : places) {
    const uint64_t* at = reinterpret_cast<const uint64_t*>(place);
    states_.push_back({at, *at});
  }
}

bool WordWatch::unchanged() const {
  for (size_t i = 0; i < std::min(kAhead, states_.size()); ++i)
    __builtin_prefetch(states_[i].place);
  for (size_t i = 0; i < states_.size(); ++i) {
    if (i + kAhead < states_.size()) __builtin_prefetch(states_[i + kAhead].place);
    if (*states_[i].place != states_[i].word) return false;
  }
  return true;
}

}  // namespace vtc
