// From a module and the values of its size symbols to a program.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device.h"
#include "module.h"
#include "shape.h"
#include "words.h"

namespace vtc {

// Writes the KERNEL words of one kernel at one shape: one kernel, or several where tasks share a
// reduction.
class KernelWriter {
 public:
  // device: for a device, whose registers cannot be kept in memory.
  KernelWriter(const IrModule& module, const std::vector<int64_t>& values, std::vector<Word>& out,
               bool device)
      : module_(module), values_(values), out_(out), device_(device) {}

  void write(const IrKernel& kernel, const Shape& shape, const Tiling& tiling);

  int64_t register_bytes = 0;  // the most that a kernel needs
  int64_t arena_bytes = 0;     // grows by what reductions spill

 private:
  // An instruction over virtual registers.
  struct Draft {
    int op, type = 0, type2 = 0;
    int dst = -1, a = -1, b = -1, c = -1;
    const Access* access = nullptr;
    std::vector<int> terms;  // registers of the terms of its accesses
    const IrInstr* ir = nullptr;
    double low = 0, high = 0;  // of a convolution
    int64_t word[5] = {};
    int words = 0;  // of `word`, written before the access
  };
  // A virtual register. Pools: registers that a load or a bind points elsewhere are no one else's.
  struct Virtual {
    int kind, size, pool, first, last, real;
  };
  struct Real {
    int kind, size, pool;
  };

  void analyse();
  bool moves_along(const Access& a, uint32_t dims) const;
  int kind_of(const Access& a) const;
  void mark_hoisted();
  bool may_bind(int v) const;
  bool read_before(int value, int store) const;
  bool has_loop(int phase) const;
  void mark_needed(int v, std::vector<char>& needed) const;
  int folded_bits() const;
  void check_anchor(const IrInstr& i) const;

  void write_split();
  void begin();
  void emit_hoisted();
  bool is_cheap(int v) const;
  void emit_straight();
  void emit_reduced(int phase, bool stores);
  void emit_loop(int phase);
  int emit_value(int v);
  int emit_load(int v, int other);
  int emit_scan(int v, int from);
  int operand(int v, int kind);
  void emit_store(int v);
  int emit_carry(int v);
  void emit_finish(int v, int acc, int place);
  void emit_spill(int v, int acc, int place);
  void emit_merge(int v, int64_t group);
  std::vector<int> terms_of(const Access& a);
  Draft& draft(int op, int type);
  int fresh(int kind, int size, int pool = 0);

  // Turns the drafts into the words of a kernel with these spans.
  void finish(const int64_t* span);
  int64_t register_size(int kind, int size) const;
  void assign_registers();
  void put(const Draft& d, int64_t loop);
  void put_anchor(const Draft& d);
  void put_convolution(const Draft& d);
  int user_of(int v) const;
  void take_epilogue(int v, Draft& d, int& last);
  void put_access(const Access& a, int strides, const int* terms);

  const IrModule& module_;
  const std::vector<int64_t>& values_;
  std::vector<Word>& out_;
  bool device_;
  const IrKernel* k_ = nullptr;
  const Shape* s_ = nullptr;
  const Tiling* t_ = nullptr;

  std::vector<int> kind_, phase_;
  std::vector<char> reduced_, hoisted_, stored_buffer_;
  std::vector<int> buffer_uses_;
  std::vector<int> reg_;           // of a value, in the code at hand; -1 if not computed there
  std::vector<int> carry_;         // of a scan in a loop
  std::vector<int> bound_store_;   // value -> its store, if it may be bound
  struct Spill {
    int64_t offset, bytes, tasks;
  };
  std::vector<Spill> spills_;      // of a reduction
  int phases_ = 0;
  bool stream_ = false;
  std::vector<Draft> prologue_, body_;
  std::vector<Draft>* code_ = nullptr;
  std::vector<Virtual> virtual_;
  std::vector<Real> real_;
};

struct Program {
  std::shared_ptr<const std::vector<Word>> words;
  std::vector<int64_t> extents;
  std::vector<int> fresh;  // large buffers that the program is the first to touch
  std::vector<DeviceKernel> launches;  // where it was encoded for a device
};

class Encoder {
 public:
  explicit Encoder(std::span<const int64_t> image) : module_(image) {}

  const IrModule& module() const { return module_; }
  // Safe to call from several threads. device: for the interpreter on a GPU.
  std::unique_ptr<Program> encode(std::span<const int64_t> sizes, bool device = false) const;

 private:
  IrModule module_;
};

}  // namespace vtc
