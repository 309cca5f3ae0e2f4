// The OpenMP team of a thread.

#include "team.h"

#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string>

namespace vtc {
namespace {

// Where Linux tells what call of the system a thread is in, or that it runs. Clocks of a thread's
// processor time are not read for that: they advance with the timer's ticks on some kernels.
int open_state() {
  std::string path = "/proc/self/task/" + std::to_string(syscall(SYS_gettid)) + "/syscall";
  return open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

enum class ThreadState { kAwake, kAsleep, kGone };

ThreadState read_state(int file) {
  char first;
  ssize_t n = pread(file, &first, 1, 0);
  if (n < 1) return ThreadState::kGone;
  return first == 'r' ? ThreadState::kAwake : ThreadState::kAsleep;  // "running"
}

std::atomic<bool> forked{false};
const int registered = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });

}  // namespace

Team& Team::own() {
  thread_local Team team;
  return team;
}

bool Team::ready(int threads) {
  if (forked.load(std::memory_order_relaxed) || registered != 0 || omp_in_parallel()) return false;
  size_t others = threads - 1;
  if (states_.size() < others) return true;
  for (size_t i = 0; i < others; ++i) {
    if (states_[i] < 0) return false;
    ThreadState state = read_state(states_[i]);
    if (state == ThreadState::kGone) {  // a smaller team was called for, and its thread has ended
      forget();
      return true;
    }
    if (state == ThreadState::kAsleep) return false;
  }
  return true;
}

void Team::run(int threads, const std::function<void(int)>& work) {
  size_t known = states_.size();
  if (known < static_cast<size_t>(threads - 1)) states_.resize(threads - 1, -1);
  std::vector<int>& states = states_;
#pragma omp parallel num_threads(threads)
  {
    size_t number = omp_get_thread_num();
    if (number > known) states[number - 1] = open_state();
    work(static_cast<int>(number));
  }
}

void Team::forget() {
  for (int file : states_)
    if (file >= 0) close(file);
  states_.clear();
}

}  // namespace vtc
