// Words of instructions and accesses for the device.
#include <algorithm>

#include "device_emit.h"

namespace vtc {

void DeviceEmitter::pair(int op, int type, int type2, int dst, int a, int b, Word argument) {
  out_.code.push_back(static_cast<Word>(op) | static_cast<Word>(type) << 8 |
                      static_cast<Word>(type2) << 12 | static_cast<Word>(dst) << 16 |
                      static_cast<Word>(a) << 32 | static_cast<Word>(b) << 48);
  out_.code.push_back(argument);
}

// A and B hold nothing behind it: what they held that is wanted has to be in its home.
void DeviceEmitter::slow(int op, int type, int type2, int dst, int a, int b) {
  save(at_, a_, true);
  save(at_, b_, true);
  a_ = b_ = {};
  pair(D_SLOW, type, type2, dst, a, b, out_.pool.size());
  out_.pool_arguments.push_back(out_.code.size() - 1);
  push(static_cast<Word>(op));
}

int DeviceEmitter::buffer(int of_program) {
  std::vector<int>& buffers = out_.buffers;
  auto found = std::find(buffers.begin(), buffers.end(), of_program);
  if (found != buffers.end()) return static_cast<int>(found - buffers.begin());
  buffers.push_back(of_program);
  if (buffers.size() > 64) throw EncodeError("a kernel has more than 64 buffers");
  return static_cast<int>(buffers.size()) - 1;
}

// May the access move 16 bytes at once where elements of a group are side by side?
bool DeviceEmitter::aligned(const DeviceInstruction& r) const {
  AccessView a{r.access};
  int size = kItemsize[program_.type(a.buffer())];
  if (kernel_.column() == kNoDim || a.stride(kernel_.column()) != 1 || size > 4 || size < 2)
    return false;
  int64_t unit = 16 / size;
  if (a.offset() % unit) return false;
  for (int d = 0; d < kernel_.dims(); ++d) {
    bool column = d == kernel_.column();
    if (kernel_.size(d) <= 1) continue;
    if (!column && a.stride(d) % unit) return false;
    if (column && kernel_.tasks(d) > 1 && kernel_.span(d) % kRun) return false;
    if (column && read_.looped >> d & 1 && kernel_.columns() % kRun) return false;
  }
  for (int n = 0; n < a.terms(); ++n)
    if (TermView{a.term(n)}.stride() % unit) return false;
  return true;
}

// Do elements of a group lie side by side in memory, in a type of 16 or 32 bits?
bool DeviceEmitter::side_by_side(const DeviceInstruction& r) const {
  AccessView a{r.access};
  int type = program_.type(a.buffer()), size = kItemsize[type];
  return kernel_.column() != kNoDim && a.stride(kernel_.column()) == 1 && !a.terms() &&
         type != T_I16 && (size == 2 || size == 4);
}

// Writes an access, and gives its number.
int DeviceEmitter::access(const DeviceInstruction& r) {
  AccessView a{r.access};
  int kind = kind_dst_of(r.head()), row = kernel_.row(), column = kernel_.column();
  bool groups = distance == 1 && !narrow_kind(kind);
  int moves = groups ? (aligned(r) ? kMovesVectors : 0) | (side_by_side(r) ? kMovesRuns : 0) : 0;
  int number = static_cast<int>(out_.accesses.size());
  if (number == kMostAccesses) throw EncodeError("a kernel has too many accesses for the device");
  out_.accesses.push_back(out_.pool.size());
  push(static_cast<Word>(buffer(a.buffer())) | static_cast<Word>(program_.type(a.buffer())) << 16 |
       static_cast<Word>(a.terms()) << 24 | static_cast<Word>(a.masks()) << 32 |
       static_cast<Word>(kind | (r.op == OP_STORE ? kWritesBit : 0)) << 40 |
       static_cast<Word>(moves) << 48);
  push(static_cast<Word>(a.offset()));
  push(kind & kRowBit ? static_cast<Word>(a.stride(row)) : 0);
  push(kind & kColumnBit ? static_cast<Word>(a.stride(column)) : 0);
  for (int d = 0; d < kernel_.dims(); ++d) push(static_cast<Word>(a.stride(d)));
  for (int n = 0; n < a.terms(); ++n) {
    TermView t{a.term(n)};
    push(static_cast<Word>(home(t.reg())) | static_cast<Word>(t.type()) << 16 |
         static_cast<Word>(t.checked()) << 24);
    push(static_cast<Word>(t.stride()));
    push(static_cast<Word>(t.size()));
  }
  out_.pool.insert(out_.pool.end(), a.mask(0), a.mask(0) + 3 * a.masks());
  return number;
}

}  // namespace vtc
