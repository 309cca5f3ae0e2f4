// The frame of a program: its head, steps, jumps, and heads of kernels.

#include "validate.h"

#include <algorithm>

#include "table.h"

namespace vtc {
namespace {

void validate_buffers(const ProgramView& p) {
  require(p.arena_bytes() >= 0 && p.arena_bytes() <= kMostElements, "size of the arena");
  require(p.register_bytes() >= 0 && p.register_bytes() < int64_t{1} << 31, "size of registers");
  for (int b = 0; b < p.buffers(); ++b) {
    require(p.type(b) < kTypes, "type of a buffer");
    require(p.extent(b) >= 0 && p.extent(b) <= kMostElements, "extent of a buffer");
    require(p.kind(b) <= BUFFER_HOSTED, "kind of a buffer");
    if (p.hosted(b))
      require(p.host(b) < p.buffers() && p.callers(p.host(b)), "the buffer that a temporary is in");
  }
  auto bytes = [&](int b) { return p.extent(b) * kItemsize[p.type(b)]; };
  for (int b = 0; b < p.buffers(); ++b) {
    if (p.callers(b)) continue;
    int64_t room = p.hosted(b) ? bytes(p.host(b)) : p.arena_bytes();
    require(p.offset(b) >= 0 && p.offset(b) % 64 == 0, "offset of a temporary");
    require(p.offset(b) <= room - bytes(b), "a temporary outside of the memory that it is in");
  }
}

// The number of words of the kernel at w, of which `left` are there.
int64_t validate_kernel(const ProgramView& p, const Word* w, int64_t left) {
  KernelView k{w};
  require(left >= 6, "a kernel is cut short");
  require(k.words() > 0 && k.words() <= left, "length of a kernel");
  require(k.dims() <= kMaxDims, "dimensions of a kernel");
  int64_t head = 6 + 2 * k.dims() + k.registers();
  int64_t body = static_cast<int64_t>(w[3]);
  require(head < k.words() && body > head && body < k.words(), "body of a kernel");
  require(k.number() >= 0 && k.number() < p.kernels(), "number of a kernel");
  require(k.row() == kNoDim || k.row() < k.dims(), "row dimension");
  require(k.column() == kNoDim || k.column() < k.dims(), "column dimension");
  require(k.row() == kNoDim || k.row() != k.column(), "row and column are one dimension");
  int64_t tasks = 1;
  for (int d = 0; d < k.dims(); ++d) {
    require(k.size(d) >= 0 && k.size(d) <= kMostElements, "size of a dimension");
    require(k.span(d) >= 1 && k.span(d) <= kMostElements, "span of a dimension");
    require(k.tasks(d) <= kMostElements / tasks, "number of tasks");
    tasks *= k.tasks(d);
  }
  for (int i = 0; i < k.registers(); ++i) {
    int64_t offset = k.reg(i) & 0xffffffff, bytes = static_cast<int64_t>(k.reg(i) >> 32);
    require(offset % 8 == 0 && offset + bytes <= p.register_bytes(), "place of a register");
  }
  validate_code(p, k);
  return k.words();
}

void validate_steps(const ProgramView& p) {
  int64_t at = p.steps() - p.w, end = p.words();
  std::vector<int64_t> starts, targets;
  for (;;) {
    require(at < end, "no END");
    starts.push_back(at);
    const Word* w = p.w + at;
    int64_t left = end - at;
    auto target = [&](Word word) {
      int64_t to = static_cast<int64_t>(word);
      require(to > at && to < end, "a jump that does not go forward");
      targets.push_back(to);
    };
    // Some who read steps go by the length in their heads.
    auto long_as = [&](int n) { require(length_of(*w) == n, "length of a step"); };
    switch (op_of(*w)) {
      case OP_END: {
        long_as(1);
        require(left == 1, "words behind END");
        for (int64_t to : targets)
          require(std::binary_search(starts.begin(), starts.end(), to), "a jump into a step");
        return;
      }
      case OP_BARRIER:
        long_as(1);
        at += 1;
        break;
      case OP_BRANCH:
        long_as(3);
        require(left >= 3 && w[1] < static_cast<Word>(p.buffers()), "buffer of a branch");
        require(p.type(static_cast<int>(w[1])) == T_BOOL && p.extent(static_cast<int>(w[1])) > 0,
                "predicate of a branch");
        target(w[2]);
        at += 3;
        break;
      case OP_JUMP:
        long_as(2);
        require(left >= 2, "a jump is cut short");
        target(w[1]);
        at += 2;
        break;
      case OP_KERNEL: at += validate_kernel(p, w, left); break;
      default: throw Invalid{"no step of a program"};
    }
  }
}

}  // namespace

std::optional<std::string> validate(const std::vector<Word>& words) {
  ProgramView p{words.data()};
  int64_t n = static_cast<int64_t>(words.size());
  try {
    require(n > kHeadWords && words[0] == kMagic, "no program");
    require(p.words() == n, "length of the program");
    require(kHeadWords + int64_t{kBufferWords} * p.buffers() < n, "table of buffers");
    validate_buffers(p);
    validate_steps(p);
  } catch (const Invalid& invalid) {
    return "malformed program: " + invalid.what;
  }
  return std::nullopt;
}

}  // namespace vtc
