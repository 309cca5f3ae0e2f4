// Whether words of memory have changed since they were looked at.
#pragma once

#include <cstdint>
#include <vector>

namespace vtc {

// Words of memory that the caller keeps in place: the type of an object of Python's, the dictionary of
// its attributes, the tensor that it stands for.
class WordWatch {
 public:
  explicit WordWatch(const std::vector<uintptr_t>& places);

  // Does every word hold what it held?
  bool unchanged() const;

 private:
  struct State {
    const uint64_t* place;
    uint64_t word;
  };

  std::vector<State> states_;
};

}  // namespace vtc
