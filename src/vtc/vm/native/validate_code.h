// The checker of one kernel's code: every instruction's length, registers and addresses.
#pragma once

#include <vector>

#include "table.h"
#include "validate.h"

namespace vtc {

using Wide = __int128;

inline bool within(int64_t x, int64_t most) { return x >= -most && x <= most; }

class CodeChecker {
 public:
  CodeChecker(const ProgramView& program, const KernelView& kernel);

  // Throws Invalid.
  void run();

 private:
  // Where a register is used: the place of the instruction, and the tile there, at most.
  struct Use {
    int64_t at;
    int64_t rows, columns;
    bool write;
  };

  struct Register {
    int kind = -1, size = 0;
    bool points = false;  // into a buffer, perhaps
    bool plain_write = false;
    std::vector<Use> uses;
  };

  struct Loop {
    int dim;
    int64_t start, step;
    int64_t end = 0;
  };

  // Registers and loops: validate_code.cpp. An instruction's function gives its words.

  const Word* at() const { return k_.w + at_; }
  int64_t extent(int dim) const;
  int64_t rows() const { return extent(k_.row()); }
  int64_t columns() const { return extent(k_.column()); }
  // Is the code at hand in a loop that never turns?
  bool dead() const;
  Register& reg(int number, int kind, int size, bool write);
  void read(int number, int kind, int size) { reg(number, kind, size, false); }
  void write(int number, int kind, int size);
  void check_pointing(const Register& r) const;
  void code(int64_t first, int64_t end);
  int64_t instruction(int op, int64_t length);
  int64_t loop(int64_t length);
  int64_t endloop(int64_t length);
  int64_t move(int op, int64_t length);
  int64_t scalar(int op);
  int64_t fold(int op, int64_t length);
  int64_t spilled(int op, int64_t length, Word which);

  // Addresses: validate_access.cpp.

  // The words of the access at `offset` words from the head of the instruction.
  int64_t access(int64_t offset, int64_t length, int strides, bool terms_allowed = true);
  // Every address of an access is inside its buffer. Dimension d takes the coordinates [0, n[d]).
  // `more` elements behind each are there too. Where terms are added, the addresses of the first and
  // the last element of a run are checked as it is copied: none between them may wrap.
  void inside(AccessView a, const int64_t* n, int count, int64_t more = 0) const;
  // Coordinates of the kernel's dimensions. A dimension of no size is still at 0 where tiles do not
  // extend along it.
  void coordinates(int64_t* n, int kind) const;
  // Every address of a left operand that a window does not leave out is inside its buffer.
  void left_inside(ConvolutionView c, PartView p) const;

  // Products, attention and convolutions: validate_contraction.cpp.

  int64_t matmul(int64_t length);
  // A right operand in panels: tiles start where panels do, and every panel is there whole.
  void panels(AccessView a, int kind, int64_t k) const;
  int64_t attention(int64_t length);
  int64_t convolution(int64_t length);

  const ProgramView& p_;
  const KernelView& k_;
  const Table& table_;
  std::vector<Register> registers_;
  std::vector<Loop> active_, loops_;
  int64_t at_ = 0, tasks_ = 1;
  int bound_ = -1;  // the register that the instruction before binds
};

}  // namespace vtc
