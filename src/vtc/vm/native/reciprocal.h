// Division by one number as two multiplications.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace vtc {

// 1 / by as the sum of two floats of one sign. For |a| >= kLeast, a = 0, infinities and NaN
// fma(a, high, a * low) is a / by rounded once (Brisebarre, Muller and Raina, "Accelerating correctly
// rounded floating-point division when the divisor is known in advance", 2004): before the last
// rounding it is within 2^-22 of an ulp of the quotient, and a quotient by m * 2^e with an odd m lies
// at least 1 / (2 m) of an ulp from where two floats meet.
struct Reciprocal {
  static constexpr float kLeast = 0x1p-60f;

  float high = 0, low = 0;  // 0 where the divisor is not short enough

  Reciprocal() = default;
  explicit Reciprocal(float by) {
    uint32_t bits = std::bit_cast<uint32_t>(by);
    uint32_t odd = (bits & 0x7fffff) | 0x800000;
    odd >>= std::countr_zero(odd);
    bool near = std::abs(by) > 0x1p-20f && std::abs(by) < 0x1p20f;
    // A power of two would leave 0 for `low`, and infinity times that is NaN.
    if (!near || odd == 1 || odd >= 1u << 20) return;
    double all = 1.0 / static_cast<double>(by);
    uint64_t top = std::bit_cast<uint64_t>(all) & ~((uint64_t{1} << 29) - 1);  // 24 bits of it
    double cut = std::bit_cast<double>(top);
    high = static_cast<float>(cut);
    low = static_cast<float>(all - cut);
  }

  bool there() const { return high != 0; }
};

}  // namespace vtc
