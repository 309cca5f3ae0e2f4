// How the threads of a run share its work.
//
// Each kernel's tasks are cut into one range a thread. A thread claims its own range in pieces that
// get smaller, then what is left of the others': one that has not woken yet, or whose processor does
// something else, keeps nobody waiting but for the piece it is in. A phase, the kernels between two
// barriers, is over when as many tasks are done as it has, whoever did them; a thread that comes late
// finds nothing to claim and goes on. All threads take the same path: the first to reach a branch
// decides for all, since later phases may overwrite the predicate. So a thread that comes when all
// is done reads nothing but the counters here.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

namespace vtc {

// What a thread does between two looks at what it waits for.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Looks until `there()` or the time is over; says if it is there. A pause takes 10 to 100 ns.
template <class F>
bool spin(std::chrono::nanoseconds time, F there) {
  using Clock = std::chrono::steady_clock;
  for (Clock::time_point end{};;) {
    for (int n = 0; n < 16; ++n) {
      if (there()) return true;
      pause();
    }
    Clock::time_point now = Clock::now();
    if (end == Clock::time_point{}) end = now + time;
    if (now >= end) return false;
  }
}

class Sharing {
 public:
  // For a run of at most `steps` kernels, barriers, branches and ends. Not while threads are at work.
  void start(int64_t steps, int threads) {
    threads_ = threads;
    stride_ = (threads + kLine - 1) / kLine * kLine;
    int64_t size = steps * stride_;
    if (size > size_) {
      words_ = std::make_unique<std::atomic<int64_t>[]>(size + kLine);
      size_ = size;
    }
    for (int64_t i = 0; i < size; ++i) words_[i].store(0, std::memory_order_relaxed);
  }

  // Claims tasks [first, last) of the `tasks` of step `step`; false if all are claimed.
  bool claim(int64_t step, int64_t tasks, int thread, int64_t& first, int64_t& last) {
    for (int turn = 0; turn < threads_; ++turn) {
      int owner = thread + turn < threads_ ? thread + turn : thread + turn - threads_;
      int64_t begin = tasks * owner / threads_, size = tasks * (owner + 1) / threads_ - begin;
      std::atomic<int64_t>& next = words_[step * stride_ + owner];
      int64_t at = next.load(std::memory_order_relaxed);
      while (at < size) {
        int64_t piece = (size - at + 1) / 2;
        if (!next.compare_exchange_weak(at, at + piece, std::memory_order_relaxed)) continue;
        first = begin + at;
        last = first + piece;
        return true;
      }
    }
    return false;
  }

  // Adds `mine` to the tasks done in the phase that ends at step `step`; says if these are `all`.
  bool add(int64_t step, int64_t mine, int64_t all) {
    std::atomic<int64_t>& done = words_[step * stride_];
    if (mine == 0 || done.fetch_add(mine, std::memory_order_acq_rel) + mine < all) return false;
    done.notify_all();
    return true;
  }

  // Adds `mine` to the tasks done in the phase that ends at step `step`, and waits for `all`.
  void finish(int64_t step, int64_t mine, int64_t all) {
    if (add(step, mine, all)) return;
    const std::atomic<int64_t>& done = words_[step * stride_];
    if (spin(kSpins, [&] { return done.load(std::memory_order_acquire) == all; })) return;
    for (int turn = 0;; ++turn) {
      int64_t now = done.load(std::memory_order_acquire);
      if (now == all) return;
      if (turn < kYields)
        std::this_thread::yield();
      else
        done.wait(now, std::memory_order_acquire);
    }
  }

  // What the branch at step `step` is decided to be.
  bool decide(int64_t step, const char* predicate) {
    std::atomic<int64_t>& decision = words_[step * stride_];
    int64_t known = decision.load(std::memory_order_acquire);
    if (known == 0) {
      int64_t seen = *predicate ? 1 : 2;
      if (decision.compare_exchange_strong(known, seen, std::memory_order_acq_rel)) known = seen;
    }
    return known == 1;
  }

 private:
  static constexpr int64_t kLine = 8;  // counters in a cache line
  static constexpr std::chrono::microseconds kSpins{40};
  static constexpr int kYields = 50;

  std::unique_ptr<std::atomic<int64_t>[]> words_;
  int64_t size_ = 0, stride_ = 0;
  int threads_ = 1;
};

}  // namespace vtc
