// Parsing a module's image, and evaluating its sizes.

#include "module.h"

#include <algorithm>

#include "table.h"

namespace vtc {
namespace {

class Reader {
 public:
  explicit Reader(std::span<const int64_t> image) : image_(image) {}

  int64_t wide() {
    if (at_ >= image_.size()) throw EncodeError("a module image ends early");
    return image_[at_++];
  }
  int next() { return static_cast<int>(wide()); }

  std::vector<int> list() {
    std::vector<int> out(next());
    for (int& x : out) x = next();
    return out;
  }

 private:
  std::span<const int64_t> image_;
  size_t at_ = 0;
};

IrAccess read_access(Reader& in) {
  IrAccess a;
  a.buffer = in.next();
  a.offset = in.next();
  a.strides = in.list();
  a.terms.resize(in.next());
  for (IrTerm& t : a.terms) t = {in.next(), in.next(), in.next()};
  a.masks.resize(in.next());
  for (IrMask& m : a.masks) m = {in.next(), in.next(), in.next()};
  return a;
}

IrInstr read_instr(Reader& in, IrKernel& kernel) {
  IrInstr i;
  i.op = in.next();
  i.type = in.next();
  i.args = in.list();
  i.constant = in.wide();
  i.symbolic = in.next() != 0;
  i.memory = in.next();
  if (i.op == OP_MATMUL) {
    i.width = in.next();
    i.depth = in.next();
  }
  if (i.op == OP_ATTENTION) {
    i.constant = static_cast<int64_t>(kernel.attentions.size());
    IrAttention& a = kernel.attentions.emplace_back();
    a.length = in.next();
    a.head_dim = in.next();
    a.shift = in.next();
    a.window = in.next();
    a.flags = in.next();
    a.scale = in.wide();
    a.softcap = in.wide();
  }
  if (i.op == OP_CONVOLUTION) {
    i.constant = static_cast<int64_t>(kernel.convolutions.size());
    IrConvolution& c = kernel.convolutions.emplace_back();
    c.windows.resize(in.next());
    for (IrWindow& w : c.windows)
      w = {in.next(), in.next(), in.next(), in.next(), in.next(), in.next()};
    c.k = in.list();
    c.width = in.next();
  }
  int accesses = in.next();
  if (accesses) i.access = static_cast<int>(kernel.accesses.size());
  while (accesses--) kernel.accesses.push_back(read_access(in));
  return i;
}

// Calls f with each value that an instruction reads.
template <class F>
void each_operand(const IrKernel& k, const IrInstr& i, F f) {
  for (int a : i.args) f(a);
  if (i.access < 0 || i.op == OP_CONVOLUTION) return;
  int accesses = i.op == OP_MATMUL ? 2 : 1;
  if (i.op == OP_ATTENTION) accesses = k.attentions[i.constant].flags & 8 ? 4 : 3;
  for (int a = i.access; a < i.access + accesses; ++a)
    for (const IrTerm& t : k.accesses[a].terms) f(t.value);
}

// How often a store needs each value, how many bytes a point the values hold that are alive at
// once, and what the body costs.
void measure(IrKernel& k) {
  int n = static_cast<int>(k.body.size());
  std::vector<int> last(n, 0);
  k.uses.assign(n, 0);
  for (int v = n - 1; v >= 0; --v) {
    const IrInstr& i = k.body[v];
    if (is_anchor(i.op)) k.anchor = v;
    if (i.op != OP_STORE && k.uses[v] == 0) continue;
    each_operand(k, i, [&](int a) {
      if (k.uses[a]++ == 0) last[a] = v;
    });
  }
  int live = 0;
  std::vector<int> dying(n, 0);
  for (int v = 0; v < n; ++v) {
    const IrInstr& i = k.body[v];
    if (i.op != OP_STORE && k.uses[v] == 0) continue;
    // Loads mostly stay where they are; what one instruction uses is not worth the room to hold it.
    bool passing = i.op == OP_LOAD && k.uses[v] == 1;
    bool small = passing || i.op == OP_CONST || i.op == OP_PARAM || i.op == OP_REDUCE ||
                 i.op == OP_STORE;
    int bytes = small ? 0 : kItemsize[i.type];
    live += bytes;
    k.live_bytes = std::max(k.live_bytes, live);
    dying[last[v]] += bytes;
    live -= dying[v];
    k.cost += is_anchor(i.op) ? 1000 : i.op >= OP_EXP ? 12 : 2;
  }
}

IrKernel read_kernel(Reader& in) {
  IrKernel k;
  k.number = in.next();
  k.sizes = in.list();
  for (int d : in.list()) k.reduced |= 1u << d;
  int count = in.next();
  while (count--) k.body.push_back(read_instr(in, k));
  measure(k);
  return k;
}

std::vector<IrStep> read_steps(Reader& in, IrModule& module) {
  std::vector<IrStep> steps(in.next());
  for (IrStep& step : steps) {
    if (in.next() == 0) {
      step.kernel = static_cast<int>(module.kernels.size());
      module.kernels.push_back(read_kernel(in));
    } else {
      step.predicate = in.next();
      step.then = read_steps(in, module);
      step.otherwise = read_steps(in, module);
    }
  }
  return steps;
}

enum SizeOp { kConst, kSymbol, kAdd, kMul, kFloorDiv, kMod, kMin, kMax };

int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) throw EncodeError("division by zero in a size");
  int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t apply(int64_t op, int64_t a, int64_t b) {
  switch (op) {
    case kAdd: return a + b;
    case kMul: return a * b;
    case kFloorDiv: return floor_div(a, b);
    case kMod: return a - floor_div(a, b) * b;
    case kMin: return std::min(a, b);
    case kMax: return std::max(a, b);
    default: throw EncodeError("unknown operator in a size");
  }
}

}  // namespace

IrModule::IrModule(std::span<const int64_t> image) {
  Reader in(image);
  symbols = in.next();
  params = in.next();
  expressions.resize(in.next());
  for (auto& e : expressions) {
    e.resize(in.next());
    for (int64_t& x : e) x = in.wide();
  }
  buffers.resize(in.next());
  for (IrBuffer& b : buffers) b = {in.next(), in.next(), in.next()};
  steps = read_steps(in, *this);
}

void IrModule::evaluate(std::span<const int64_t> given, std::vector<int64_t>& values) const {
  values.resize(expressions.size());
  int64_t stack[64];
  for (size_t e = 0; e < expressions.size(); ++e) {
    const auto& code = expressions[e];
    int top = 0;
    for (size_t i = 0; i < code.size(); i += 2) {
      if (top >= 63) throw EncodeError("a size is nested too deep");
      if (code[i] == kConst) {
        stack[top++] = code[i + 1];
      } else if (code[i] == kSymbol) {
        stack[top++] = given[code[i + 1]];
      } else {
        --top;
        stack[top - 1] = apply(code[i], stack[top - 1], stack[top]);
      }
    }
    values[e] = stack[0];
  }
}

}  // namespace vtc
