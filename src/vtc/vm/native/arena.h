// Where the temporaries of a program are.
#pragma once

#include <cstdint>
#include <vector>

#include "batches.h"
#include "module.h"

namespace vtc {

// The place of each temporary: in the arena, or in the memory of an output, which is free until the
// first kernel that writes the output. Temporaries that are needed at the same time do not overlap.
//
// Two plans are made, each by first fit, and the smaller arena is taken: in the order of the program,
// where a value follows one that was just read, and the largest first, which leaves fewer gaps.
class Arena {
 public:
  struct Place {
    int host = -1;       // the output; -1: the arena
    int64_t offset = 0;  // in bytes
  };

  // extents: of all buffers, in elements. hosted: may temporaries be in outputs?
  Arena(const IrModule& module, const std::vector<int64_t>& extents, const Batches& batches,
        bool hosted);

  int64_t bytes() const { return plan_.bytes; }
  // Of a temporary.
  const Place& place(int b) const { return plan_.places[b]; }
  // Do two buffers share memory?
  bool overlap(int a, int b) const;

 private:
  // Memory for temporaries whose last use comes before the step `until`.
  struct Room {
    int host;
    int64_t bytes;
    int until;
    std::vector<int> held;  // by offset
  };
  struct Plan {
    std::vector<Place> places;
    int64_t bytes = 0;
  };

  bool temporary(int b) const { return module_.buffers[b].kind == 2; }
  int64_t size(int b) const;
  void touch(int b) { touch(b, step_, step_); }
  void touch(int b, int first, int last);
  void touch_all(int kernel);
  void find_uses(const std::vector<IrStep>& steps);
  void open_rooms(bool hosted);
  int64_t first_fit(const Plan& plan, const Room& room, int b) const;
  void put(Plan& plan, std::vector<Room>& rooms, int b) const;
  Plan plan(const std::vector<int>& order) const;

  const IrModule& module_;
  const std::vector<int64_t>& extents_;
  const Batches& batches_;
  std::vector<int> first_, last_;  // steps that use a buffer; -1: none
  int step_ = 0;
  std::vector<Room> rooms_;  // the arena is the last
  Plan plan_;
};

}  // namespace vtc
