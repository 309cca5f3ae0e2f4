// Threads that help others with their work.

#include "helpers.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "sharing.h"

namespace vtc {
namespace {

// How long an idle helper looks before it sleeps: the time between two calls in a row. One that
// sleeps comes too late for a program that takes less than this: a processor that has gone idle takes
// some tens of microseconds to wake.
constexpr std::chrono::microseconds kLooks{200};

// The process's signals are for the threads of the caller: none reaches what starts within.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// On which processors a thread may run.
//
// Some kernels wake a thread where its waker runs, who goes on for milliseconds. Its waker therefore
// keeps it away from there, and once awake it may go anywhere again. Some also leave a thread that
// never sleeps beside another one that does not, for seconds: a helper that finds itself where the
// work was offered goes elsewhere.
class Place {
 public:
  // In the thread itself.
  void begin() {
    thread_ = static_cast<pid_t>(syscall(SYS_gettid));
    known_ = sched_getaffinity(0, sizeof(all_), &all_) == 0;
  }
  void leave_here() {
    int here = sched_getcpu();
    if (!known_ || here < 0 || !CPU_ISSET(here, &all_) || CPU_COUNT(&all_) < 2) return;
    cpu_set_t rest = all_;
    CPU_CLR(here, &rest);
    moved_ = sched_setaffinity(thread_, sizeof(rest), &rest) == 0;
  }
  void leave(int processor) {
    if (sched_getcpu() != processor) return;
    leave_here();
    anywhere();
  }
  void anywhere() {
    if (moved_) sched_setaffinity(0, sizeof(all_), &all_);
    moved_ = false;
  }

 private:
  pid_t thread_ = 0;
  cpu_set_t all_;
  bool known_ = false, moved_ = false;
};

}  // namespace

class Helpers {
 public:
  // Never destroyed: helpers sleep on it until the process ends.
  static Helpers& here() { return *current().load(std::memory_order_acquire); }

  void post(Offer* offer) {
    thread_local std::vector<Helper*> woken;
    woken.clear();
    {
      std::lock_guard lock(mutex_);
      start(offer->most_);
      offers_.push_back(offer);
      for (int n = looking_; n < offer->most_ && !asleep_.empty(); ++n) {
        woken.push_back(asleep_.back());
        asleep_.pop_back();
      }
    }
    offered_.fetch_add(1, std::memory_order_release);
    for (Helper* helper : woken) {
      helper->place.leave_here();
      helper->awake.store(1, std::memory_order_release);
      helper->awake.notify_one();
    }
  }

  void withdraw(Offer* offer) {
    std::lock_guard lock(mutex_);
    std::erase(offers_, offer);
  }

  int started() {
    std::lock_guard lock(mutex_);
    return started_;
  }

 private:
  struct Helper {
    std::atomic<int> awake{0};
    Place place;
  };

  static std::atomic<Helpers*>& current() {
    static std::atomic<Helpers*> helpers = [] {
      // The threads are not in the child, and its copy of the mutex may be locked for ever.
      pthread_atfork(nullptr, nullptr, [] { current().store(new Helpers); });
      return new Helpers;
    }();
    return helpers;
  }

  // Starts helpers up to `most`, as many as the system gives.
  void start(int most) {
    if (started_ >= most) return;
    SignalsBlocked blocked;
    try {
      for (; started_ < most; ++started_) std::thread([this] { work(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  void work() {
    Helper self;
    pthread_setname_np(pthread_self(), "vtc-helper");
    self.place.begin();
    std::unique_lock lock(mutex_);
    for (;;) {
      while (!offers_.empty()) {
        Offer* first = offers_.front();
        std::shared_ptr<Job> job = first->job_;
        int thread = ++first->taken_, processor = first->processor_;
        if (thread == first->most_) offers_.erase(offers_.begin());
        lock.unlock();
        self.place.leave(processor);
        job->help(thread);
        job.reset();
        lock.lock();
      }
      int seen = offered_.load(std::memory_order_relaxed);
      ++looking_;
      lock.unlock();
      spin(kLooks, [&] { return offered_.load(std::memory_order_relaxed) != seen; });
      lock.lock();
      --looking_;
      if (!offers_.empty()) continue;
      self.awake.store(0, std::memory_order_relaxed);
      asleep_.push_back(&self);
      lock.unlock();
      self.awake.wait(0, std::memory_order_acquire);
      self.place.anywhere();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::vector<Offer*> offers_;  // with room for another helper
  std::vector<Helper*> asleep_;
  int started_ = 0, looking_ = 0;
  std::atomic<int> offered_{0};
};

Offer::Offer(std::shared_ptr<Job> job, int most)
    : job_(std::move(job)), most_(most), processor_(sched_getcpu()) {
  if (most_ > 0) Helpers::here().post(this);
}

Offer::~Offer() {
  if (most_ > 0) Helpers::here().withdraw(this);
}

int helpers_started() { return Helpers::here().started(); }

}  // namespace vtc
