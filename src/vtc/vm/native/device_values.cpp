// What A and B hold.
#include <cstring>

#include "device_emit.h"

namespace vtc {

namespace {

int kind_of_home(int size, bool narrow) { return (size == 8 ? 2 : 0) | (narrow ? 1 : 0); }

}  // namespace

int DeviceEmitter::fresh(int size, bool narrow) {
  std::vector<int>& left = free_[kind_of_home(size, narrow)];
  if (!left.empty()) {
    int location = left.back();
    left.pop_back();
    return location;
  }
  int at = out_.shared_bytes;
  out_.shared_bytes += narrow ? narrow_bytes(size) : wide_bytes(held, size);
  if (out_.shared_bytes > kMostSharedBytes)
    throw EncodeError("the values of a kernel do not fit the device");
  return kShared | (narrow ? kNarrow : 0) | at / 16;
}

// Where a register's value lies in shared memory.
int DeviceEmitter::home(int reg) {
  int& own = homes_[reg];
  if (!own) own = fresh(read_.registers[reg].size, read_.registers[reg].narrow);
  return own;
}

// What nothing behind instruction `at` of the body reads leaves its home to others.
void DeviceEmitter::free_homes(int at) {
  if (at < read_.body || read_.places) return;
  const DeviceInstruction& r = read_.code[at];
  auto leave = [&](int reg) {
    if (reg < 0 || !homes_[reg] || r.live.has(reg)) return;
    if ((homes_[reg] & 0x3fff) * 16 < out_.prologue_bytes) return;
    const DeviceRegister& own = read_.registers[reg];
    free_[kind_of_home(own.size, own.narrow)].push_back(homes_[reg]);
    homes_[reg] = stored_[reg] = 0;
    for (Held* held : {&a_, &b_})
      if (held->reg == reg) *held = {};
  };
  r.each_read(leave);
  leave(r.dst);
}

// A value in shared memory, or a number as the device takes it behind an instruction on A.
DeviceEmitter::Operand DeviceEmitter::operand(int reg, int type) {
  if (!known_[reg]) return {home(reg), 0};
  if (type != T_F32) return {kImmediate, numbers_[reg] & 0xffffffff};
  float x = static_cast<float>(real(numbers_[reg]));
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return {kImmediate, bits};
}

// Is a register read behind instruction `at`, or by it?
bool DeviceEmitter::wanted(int at, int reg, bool by_now) const {
  const DeviceInstruction& r = read_.code[at];
  return r.live.has(reg) || (by_now && r.reads(reg));
}

// Writes what A or B holds to its home, if it is not there and somebody wants it.
void DeviceEmitter::save(int at, Held& held, bool by_now) {
  if (held.reg < 0 || held.saved || !wanted(at, held.reg, by_now)) return;
  pair(&held == &a_ ? D_KEEP_A : D_KEEP_B, 0, 0, home(held.reg), 0, 0);
  bool both = a_.reg == b_.reg;
  held.saved = true;
  if (both) a_.saved = b_.saved = true;
}

// A = the value of a register. What A held goes to B, if nothing there is wanted and B may change.
void DeviceEmitter::to_a(int at, int reg, int type, bool keep_b) {
  if (a_.reg == reg) return;
  if (a_.reg >= 0 && !a_.saved && a_.reg != b_.reg && wanted(at, a_.reg, true)) {
    bool free = !keep_b && b_.reg != reg &&
                (b_.reg < 0 || b_.saved || !wanted(at, b_.reg, true));
    if (free) {
      pair(D_A_TO_B, 0, 0, 0, 0, 0);
      b_ = a_;
    } else {
      save(at, a_, true);
    }
  }
  if (b_.reg == reg) {
    pair(D_B_TO_A, 0, 0, 0, 0, 0);
    a_ = b_;
    return;
  }
  Operand from = operand(reg, type);
  pair(D_FETCH_A, 0, 0, 0, from.location, 0, from.number);
  a_ = {reg, true};
}

void DeviceEmitter::to_b(int at, int reg, int type) {
  if (b_.reg == reg) return;
  if (b_.reg != a_.reg) save(at, b_, true);
  if (a_.reg == reg) {
    pair(D_A_TO_B, 0, 0, 0, 0, 0);
    b_ = a_;
    return;
  }
  Operand from = operand(reg, type);
  pair(D_FETCH_B, 0, 0, 0, from.location, 0, from.number);
  b_ = {reg, true};
}

// Instruction `at` is about to write over A: its value goes elsewhere, if it is wanted behind it.
void DeviceEmitter::lose_a(int at) {
  const DeviceInstruction& r = read_.code[at];
  if (a_.reg < 0 || a_.saved || a_.reg == b_.reg || a_.reg == r.dst || !wanted(at, a_.reg, false))
    return;
  bool free = b_.reg < 0 || ((b_.saved || !wanted(at, b_.reg, false)) && !r.reads(b_.reg));
  if (free) {
    pair(D_A_TO_B, 0, 0, 0, 0, 0);
    b_ = a_;
  } else {
    save(at, a_, false);
  }
}

// A register has a new value: what A, B and its home held of it is of no use.
void DeviceEmitter::define(int reg) {
  known_[reg] = stored_[reg] = 0;
  // What the body computes is a task's own, and lies behind what the prologue has left.
  bool of_prologue = (homes_[reg] & 0x3fff) * 16 < out_.prologue_bytes;
  if (at_ >= read_.body && of_prologue) homes_[reg] = 0;
  if (a_.reg == reg) a_ = {};
  if (b_.reg == reg) b_ = {};
}

void DeviceEmitter::result_in_a(int reg) {
  define(reg);
  a_ = {reg, false};
}

void DeviceEmitter::set_number(int reg, int type, Word value) {
  define(reg);
  known_[reg] = 1;
  types_[reg] = static_cast<uint8_t>(type);
  numbers_[reg] = value;
}

// A value that an instruction reads in shared memory.
void DeviceEmitter::ensure_home(int reg) {
  for (Held* held : {&a_, &b_}) {
    if (held->reg != reg || held->saved) continue;
    pair(held == &a_ ? D_KEEP_A : D_KEEP_B, 0, 0, home(reg), 0, 0);
    if (a_.reg == reg) a_.saved = true;
    if (b_.reg == reg) b_.saved = true;
  }
}

// A register that must lie in memory though it is a number.
void DeviceEmitter::materialize(int at, int reg) {
  if (!known_[reg] || stored_[reg]) return;
  slow(OP_MOVE, types_[reg], 0, home(reg), kImmediate, kNowhere);
  push(numbers_[reg]);
  stored_[reg] = read_.code[at].loop < 0;
}

// A and B hold nothing from one task, or pass of a loop, to the next.
void DeviceEmitter::flush(int at) {
  save(at, a_, false);
  save(at, b_, false);
  a_ = b_ = {};
}

}  // namespace vtc
