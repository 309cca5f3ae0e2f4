// Threads that help others with their work, and sleep when there is none.
//
// Who has work offers it to the helpers, does it himself all the same, and withdraws the offer when
// it is done: he never waits for a helper that has not begun, nor for one that comes late. What a
// helper needs of the work is owned by the job itself, which lives as long as a helper has it.
#pragma once

#include <memory>

namespace vtc {

// Work that several threads may take part in.
class Job {
 public:
  virtual ~Job() = default;
  // Takes part until nothing is left to begin. Called once by each helper; `thread` numbers them
  // from 1. Must not throw.
  virtual void help(int thread) = 0;
};

// Offers `job` to `most` helpers, which are started when first needed; as long as the offer lasts,
// and before anything else that is offered later. Fewer may come, or none. Safe to call from
// several threads, and after a fork, whose child starts helpers of its own.
class Offer {
 public:
  Offer(std::shared_ptr<Job> job, int most);
  ~Offer();
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;

 private:
  friend class Helpers;
  std::shared_ptr<Job> job_;
  int most_, taken_ = 0;
  int processor_;  // where it was made
};

// Helpers that were started in this process.
int helpers_started();

}  // namespace vtc
