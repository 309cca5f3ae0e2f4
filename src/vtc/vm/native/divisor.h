// Division of many vectors by one number.
#pragma once

#include "reciprocal.h"
#include "simd.h"

namespace vtc::VTC_ISA {

#if defined(__AVX512F__)
// Quotients by a divisor that has a Reciprocal, each rounded once.
class ShortDivisor {
 public:
  ShortDivisor(float by, const Reciprocal& r)
      : by_(splat(by)), high_(splat(r.high)), low_(splat(r.low)) {}

  f32v operator()(f32v a) const {
    // Twice the bits of |a|, less 1: 0 becomes the largest.
    __m512i size = _mm512_add_epi32(_mm512_add_epi32((__m512i)a, (__m512i)a), _mm512_set1_epi32(-1));
    constexpr uint32_t kLeast = std::bit_cast<uint32_t>(Reciprocal::kLeast) * 2 - 1;
    if (_mm512_cmplt_epu32_mask(size, _mm512_set1_epi32(static_cast<int>(kLeast)))) return a / by_;
    return fma(a, high_, a * low_);
  }

 private:
  f32v by_, high_, low_;
};

// Many quotients by one divisor, each rounded once, as by a division, which takes twice as long: two
// corrections of a product with the rounded reciprocal (Markstein, "Computation of elementary
// functions on the IBM RISC System/6000 processor", 1990, theorem 8).
class Divisor {
 public:
  explicit Divisor(float by)
      : by_(splat(by)),
        inverse_(splat(1.0f / by)),
        plain_(!(std::abs(by) > 0x1p-60f && std::abs(by) < 0x1p60f)) {}

  f32v operator()(f32v a) const {
    if (plain_) return a / by_;
    f32v q = a * inverse_;
    // Is the exponent of a in [-60, 60)?
    __m512i size = _mm512_sub_epi32((__m512i)vabs(a), _mm512_set1_epi32((127 - 60) << 23));
    __mmask16 inside = _mm512_cmplt_epu32_mask(size, _mm512_set1_epi32(120 << 23));
    if (inside != 0xffff) {
      // Zeros, infinities and NaN are right already; others have no room for the corrections.
      constexpr int kEasy = 0x9f;
      if ((inside | _mm512_fpclass_ps_mask((__m512)a, kEasy)) != 0xffff) return a / by_;
    }
    f32v better = fma(fma(-q, by_, a), inverse_, q);
    better = fma(fma(-better, by_, a), inverse_, better);
    return blend(inside, better, q);
  }

 private:
  f32v by_, inverse_;
  bool plain_;
};
#else
class ShortDivisor {
 public:
  ShortDivisor(float by, const Reciprocal&) : by_(splat(by)) {}
  f32v operator()(f32v a) const { return a / by_; }

 private:
  f32v by_;
};


class Divisor {
 public:
  explicit Divisor(float by) : by_(splat(by)) {}
  f32v operator()(f32v a) const { return a / by_; }

 private:
  f32v by_;
};
#endif

}  // namespace vtc::VTC_ISA
