// The OpenMP team of a thread, on which PyTorch's own operators run.
#pragma once

#include <time.h>

#include <functional>
#include <vector>

namespace vtc {

// A team spins for some milliseconds after each parallel region: who calls a program then is helped
// best by the threads that have the processors. A sleeping one, or one whose processor another
// runtime's threads have taken, would hold up the end of the region.
class Team {
 public:
  // That of the calling thread. In the child of a fork there is none to be relied on.
  static Team& own();

  // Are its first `threads` threads on a processor now, or not known yet?
  bool ready(int threads);
  // Calls work(number) on `threads` threads, of which the caller is 0, and waits for all of them.
  void run(int threads, const std::function<void(int)>& work);

 private:
  std::vector<clockid_t> clocks_;  // of the processor time of threads 1, 2, ...
};

}  // namespace vtc
