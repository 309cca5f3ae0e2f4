// A kernel's bytecode as the lowering to a device reads it: instructions with what they read and
// write, registers with what they hold, and which registers are live behind each instruction.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "device.h"
#include "module.h"
#include "table.h"
#include "words.h"

namespace vtc {

constexpr int kRegisters = 256;

// A set of registers.
struct RegisterSet {
  std::array<uint64_t, kRegisters / 64> bits{};

  bool has(int r) const { return bits[r >> 6] >> (r & 63) & 1; }
  void add(int r) { bits[r >> 6] |= uint64_t{1} << (r & 63); }
  void remove(int r) { bits[r >> 6] &= ~(uint64_t{1} << (r & 63)); }
  void add(const RegisterSet& other) {
    for (size_t n = 0; n < bits.size(); ++n) bits[n] |= other.bits[n];
  }
  bool operator==(const RegisterSet&) const = default;
};

// Operators of the device alone, in place of those that mean the same together.
enum FusedOp : int {
  FUSED_NOTHING = 256,  // what a later one does as well
  FUSED_SILU,           // a * sigmoid(a)
  FUSED_GELU,           // a * (1 + erf(a / sqrt(2))) / 2
  FUSED_GELU_TANH,      // a * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 * a^3))) / 2
  FUSED_SQUARES,        // REDUCE: the sum of squares of a
};

struct DeviceInstruction {
  const Word* w;
  int op, type, type2;
  int dst = -1, a = -1, b = -1, c = -1;  // registers
  const Word* access = nullptr;
  bool in_body = false;
  int loop = -1;     // number of the LOOP around it, or of an ENDLOOP
  RegisterSet live;  // behind it

  Word head() const { return *w; }
  template <class F>
  void each_read(F f) const {
    for (int r : {a, b, c})
      if (r >= 0) f(r);
    if (access) {
      AccessView view{access};
      for (int n = 0; n < view.terms(); ++n) f(TermView{view.term(n)}.reg());
    }
    if (op == OP_ACCUM) f(dst);
  }
  bool reads(int reg) const {
    bool found = false;
    each_read([&](int r) { found |= r == reg; });
    return found;
  }
};

struct DeviceRegister {
  int size = 4;  // bytes of an element
  bool narrow = true;
};

// A kernel as it is read. Kept from one lowering to the next for its memory.
struct DeviceCode {
  std::vector<DeviceInstruction> code;  // of the prologue, then of the body
  int body = 0;
  std::array<DeviceRegister, kRegisters> registers;
  int full = 0;         // the axes that the kernel has, as a kind
  bool folded = false;  // along columns
  bool places = false;  // are found: argmax, argmin
  int slots = 1;        // a row
  uint32_t looped = 0;  // dimensions

  // Throws EncodeError for what the device has no instruction for.
  void read(const KernelView& kernel);

  // Is a fold one of D_REDUCE and D_ACCUM: of f32 over columns, or over the tile?
  bool folds_columns(const DeviceInstruction& r) const;
  bool wide32(int reg) const { return !registers[reg].narrow && registers[reg].size == 4; }

 private:
  void read_code(const Word* w, bool in_body);
  void classify(const KernelView& kernel);
  void find_live();
  // device_fuse.cpp: do they change anything?
  bool fuse();
  bool store_early();
};

inline bool narrow_kind(int kind) { return !(kind & kColumnBit); }

// The word of an instruction of D_SLOW or of a fold: fold, mode (see cuda/slow_folds.cuh), kind.
inline Word fold_word(int fold, int mode, int kind) {
  return static_cast<Word>(fold) | static_cast<Word>(mode) << 8 | static_cast<Word>(kind) << 16;
}

}  // namespace vtc
