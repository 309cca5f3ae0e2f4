// Generated from src/vtc/vm/isa.py by `python -m vtc.vm.isa`; do not edit.
#pragma once

#include <cstdint>

namespace vtc {

constexpr uint64_t kMagic = 0x314d56435456;
constexpr int kHeadWords = 5;
constexpr int kBufferWords = 3;
constexpr int kMaxDims = 8;
constexpr int kNoDim = 255;
constexpr int kFirstScalar = 32;

enum Type : uint8_t {
  T_F64 = 0,
  T_F32 = 1,
  T_BF16 = 2,
  T_F16 = 3,
  T_I64 = 4,
  T_I32 = 5,
  T_I16 = 6,
  T_I8 = 7,
  T_U8 = 8,
  T_BOOL = 9,
};
constexpr int kTypes = 10;

enum BufferKind : uint8_t {
  BUFFER_CALLERS = 0,
  BUFFER_ARENA = 1,
  BUFFER_HOSTED = 2,
};

enum Fold : uint8_t {
  FOLD_SUM = 0,
  FOLD_PROD = 1,
  FOLD_MAX = 2,
  FOLD_MIN = 3,
  FOLD_ANY = 4,
  FOLD_ALL = 5,
  FOLD_ARGMAX = 6,
  FOLD_ARGMIN = 7,
};
constexpr int kFolds = 8;

enum Op : uint8_t {
  OP_END = 0,
  OP_BARRIER = 1,
  OP_BRANCH = 2,
  OP_JUMP = 3,
  OP_KERNEL = 4,
  OP_DONE = 5,
  OP_LOOP = 6,
  OP_ENDLOOP = 7,
  OP_CONST = 8,
  OP_PARAM = 9,
  OP_IOTA = 10,
  OP_MOVE = 11,
  OP_LOAD = 12,
  OP_STORE = 13,
  OP_BIND = 14,
  OP_CAST = 15,
  OP_REDUCE = 16,
  OP_INIT = 17,
  OP_ACCUM = 18,
  OP_FINISH = 19,
  OP_SCAN = 20,
  OP_SPILL = 21,
  OP_MERGE = 22,
  OP_MATMUL = 23,
  OP_ATTENTION = 24,
  OP_CONVOLUTION = 25,
  OP_ADD = 32,
  OP_SUB = 33,
  OP_MUL = 34,
  OP_DIV = 35,
  OP_FLOORDIV = 36,
  OP_FMOD = 37,
  OP_POW = 38,
  OP_IPOW = 39,
  OP_MINIMUM = 40,
  OP_MAXIMUM = 41,
  OP_FMA = 42,
  OP_ATAN2 = 43,
  OP_EQ = 44,
  OP_NE = 45,
  OP_LT = 46,
  OP_LE = 47,
  OP_GT = 48,
  OP_GE = 49,
  OP_AND = 50,
  OP_OR = 51,
  OP_XOR = 52,
  OP_NOT = 53,
  OP_SHL = 54,
  OP_SHR = 55,
  OP_ISNAN = 56,
  OP_ISINF = 57,
  OP_SELECT = 58,
  OP_NEG = 59,
  OP_ABS = 60,
  OP_SIGN = 61,
  OP_FLOOR = 62,
  OP_CEIL = 63,
  OP_ROUND = 64,
  OP_TRUNC = 65,
  OP_EXP = 66,
  OP_EXP2 = 67,
  OP_EXPM1 = 68,
  OP_LOG = 69,
  OP_LOG2 = 70,
  OP_LOG10 = 71,
  OP_LOG1P = 72,
  OP_SQRT = 73,
  OP_RSQRT = 74,
  OP_SIN = 75,
  OP_COS = 76,
  OP_TAN = 77,
  OP_ASIN = 78,
  OP_ACOS = 79,
  OP_ATAN = 80,
  OP_SINH = 81,
  OP_COSH = 82,
  OP_TANH = 83,
  OP_ASINH = 84,
  OP_ACOSH = 85,
  OP_ATANH = 86,
  OP_ERF = 87,
  OP_ERFC = 88,
  OP_SIGMOID = 89,
  OP_RECIPROCAL = 90,
};
constexpr int kOps = 91;

// Fields of a head word: lowest bit and mask.
constexpr int kOpShift = 0;
constexpr uint64_t kOpMask = 0xff;
constexpr int kTypeShift = 8;
constexpr uint64_t kTypeMask = 0xf;
constexpr int kType2Shift = 12;
constexpr uint64_t kType2Mask = 0xf;
constexpr int kDstShift = 16;
constexpr uint64_t kDstMask = 0xff;
constexpr int kAShift = 24;
constexpr uint64_t kAMask = 0xff;
constexpr int kBShift = 32;
constexpr uint64_t kBMask = 0xff;
constexpr int kCShift = 40;
constexpr uint64_t kCMask = 0xff;
constexpr int kKindDstShift = 48;
constexpr uint64_t kKindDstMask = 0x3;
constexpr int kKindAShift = 50;
constexpr uint64_t kKindAMask = 0x3;
constexpr int kKindBShift = 52;
constexpr uint64_t kKindBMask = 0x3;
constexpr int kKindCShift = 54;
constexpr uint64_t kKindCMask = 0x3;
constexpr int kLengthShift = 56;
constexpr uint64_t kLengthMask = 0xff;

}  // namespace vtc
