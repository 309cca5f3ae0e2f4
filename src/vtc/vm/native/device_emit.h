// The code of a kernel for the device's machine of two registers: which values are in A and B, and
// where the others lie in shared memory.
#pragma once

#include <array>
#include <vector>

#include "../cuda/layout.h"
#include "device_read.h"

namespace vtc {

constexpr int kMostSharedBytes = 232448;  // of a block

// A load that may be copied ahead.
struct Copyable {
  size_t at;      // word of its instruction in `code`
  int access;
  int type;       // of memory
};

// What the emitter leaves. Kept from one kernel to the next for its memory.
struct DeviceWords {
  std::vector<Word> code;             // pairs
  std::vector<Word> pool;             // accesses, and further arguments of instructions
  std::vector<Word> accesses;         // where each of them begins in `pool`
  std::vector<Copyable> copyable;
  std::vector<size_t> code_targets;   // words of `pool` that are words of `code`
  std::vector<size_t> pool_arguments; // words of `code` that are words of `pool`
  std::vector<int> buffers;           // of the program
  size_t body = 0;                    // word of `code`
  int shared_bytes = 0;               // of values
  int prologue_bytes = 0;             // of those that have a home when the body begins
};

class DeviceEmitter {
 public:
  DeviceEmitter(const ProgramView& program, const KernelView& kernel, const DeviceCode& read,
                DeviceWords& out)
      : program_(program), kernel_(kernel), read_(read), out_(out) {}

  // Throws EncodeError.
  void emit();

  int distance = 1;  // of the columns of a group
  int held = 0;      // slots

 private:
  // What one of A and B holds: the value of a register, which may be in its home too.
  struct Held {
    int reg = -1;
    bool saved = true;
  };
  struct Operand {
    int location = kNowhere;
    Word number = 0;
  };

  // device_emit.cpp: instructions.
  void instruction(int at);
  void load(int at);
  void store(int at);
  void move(int at);
  void begin_fold(int at);
  void set_identity(int fold, int type, int accumulator, int places);
  int places_of(const DeviceInstruction& r);
  void push_strides(const DeviceInstruction& r);
  void reduce(int at);
  void accumulate(int at);
  void finish(int at);
  void spill(int at);
  void merge(int at);
  void loop(int at);
  void scalar(int at);
  void unary(int at, int op);
  void binary(int at, int op);
  void ternary(int at, int op);
  void choose(int at);
  bool narrow_scalar(int at);
  bool joins_previous(int at, int op, const Operand& b);
  bool fast_scalar(const DeviceInstruction& r) const;
  bool fast_access(const DeviceInstruction& r) const;
  static int without_division(int op, Operand& by);
  bool copyable(const DeviceInstruction& r) const;
  void choose_distance();

  // device_values.cpp: values.
  bool number(int reg) const { return known_[reg]; }
  bool scalar_value(int reg) const { return known_[reg] || read_.registers[reg].narrow; }
  int home(int reg);
  int fresh(int size, bool narrow);
  void free_homes(int at);
  Operand operand(int reg, int type);
  bool wanted(int at, int reg, bool by_now) const;
  void save(int at, Held& held, bool by_now);
  void to_a(int at, int reg, int type, bool keep_b = false);
  void to_b(int at, int reg, int type);
  void lose_a(int at);
  void result_in_a(int reg);
  void define(int reg);
  void set_number(int reg, int type, Word value);
  void ensure_home(int reg);
  // The runtime terms of an access lie in shared memory.
  void put_terms_home(int at, AccessView view);
  void materialize(int at, int reg);
  void flush(int at);

  // device_words.cpp: words.
  void pair(int op, int type, int type2, int dst, int a, int b, Word argument = 0);
  // An instruction on shared memory, whose further arguments are pushed behind it.
  void slow(int op, int type, int type2, int dst, int a, int b);
  void push(Word w) { out_.pool.push_back(w); }
  void push_number(int location, Word number) {
    if (location == kImmediate) push(number);
  }
  int access(const DeviceInstruction& r);
  bool aligned(const DeviceInstruction& r) const;
  bool side_by_side(const DeviceInstruction& r) const;
  int buffer(int of_program);

  const ProgramView& program_;
  const KernelView& kernel_;
  const DeviceCode& read_;
  DeviceWords& out_;

  int at_ = 0;  // the instruction at hand
  Held a_, b_;
  std::array<int, kRegisters> homes_{};   // locations; 0: none yet
  std::array<std::vector<int>, 4> free_;  // locations that the body has left, by `kind_of_home`
  std::array<uint8_t, kRegisters> known_{}, stored_{}, types_{}, modes_{};
  std::array<Word, kRegisters> numbers_{};
  std::array<size_t, kMaxDims> loops_{};
  int depth_ = 0;
};

// The operator on A that computes `op` of isa.h, of f32 or for logic of bools; -1 if there is none.
int device_operator(int op);
// The one of the swapped operands.
int swapped(int device_op);

}  // namespace vtc
