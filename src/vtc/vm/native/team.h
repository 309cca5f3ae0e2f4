// The OpenMP team of a thread, on which PyTorch's own operators run.
#pragma once

#include <functional>
#include <vector>

namespace vtc {

// A team spins for some milliseconds after each parallel region: who calls a program then is helped
// best by the threads that have the processors. A sleeping one would hold up the end of the region.
class Team {
 public:
  // That of the calling thread. In the child of a fork there is none to be relied on.
  static Team& own();

  Team() = default;
  ~Team() { forget(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Are its first `threads` threads awake now, or not known yet? False where the system does not
  // tell.
  bool ready(int threads);
  // Calls work(number) on `threads` threads, of which the caller is 0, and waits for all of them.
  void run(int threads, const std::function<void(int)>& work);

 private:
  void forget();

  std::vector<int> states_;  // what tells of the state of threads 1, 2, ...; -1 where nothing does
};

}  // namespace vtc
