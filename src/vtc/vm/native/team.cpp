// The OpenMP team of a thread.

#include "team.h"

#include <omp.h>
#include <pthread.h>

#include <atomic>

#include "sharing.h"

namespace vtc {
namespace {

constexpr int64_t kWatchedNs = 1000;

// Nanoseconds of a clock; -1 where its thread is no more.
int64_t read(clockid_t clock) {
  timespec t;
  return clock_gettime(clock, &t) == 0 ? int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec : -1;
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
  if (clocks_.size() < others) return true;
  thread_local std::vector<int64_t> before;
  before.clear();
  int64_t start = read(CLOCK_MONOTONIC);
  for (size_t i = 0; i < others; ++i) before.push_back(read(clocks_[i]));
  while (read(CLOCK_MONOTONIC) < start + kWatchedNs) pause();
  for (size_t i = 0; i < others; ++i) {
    int64_t now = read(clocks_[i]);
    if (now < 0) {  // a smaller team was called for, and its thread has ended
      clocks_.clear();
      return true;
    }
    if (now - before[i] < kWatchedNs / 2) return false;
  }
  return true;
}

void Team::run(int threads, const std::function<void(int)>& work) {
  size_t known = clocks_.size();
  if (known < static_cast<size_t>(threads - 1)) clocks_.resize(threads - 1, CLOCK_MONOTONIC);
  std::vector<clockid_t>& clocks = clocks_;
#pragma omp parallel num_threads(threads)
  {
    size_t number = omp_get_thread_num();
    if (number > known) pthread_getcpuclockid(pthread_self(), &clocks[number - 1]);
    work(static_cast<int>(number));
  }
}

}  // namespace vtc
