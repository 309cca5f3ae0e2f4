// Groups that lie side by side, wherever they begin: vectors that cover them are read, and shifted.
#pragma once

#include "runs.cuh"
#include "values.cuh"

namespace vtc {

// Which elements of group g are there: from `first` up to `last`.
struct Part {
  int first, last;

  __device__ __forceinline__ Part(const Cursor& p, const Spots& s, int g) {
    int j = s.j(g);
    first = static_cast<int>(p.columns & 0xffff) - j;
    last = static_cast<int>(p.columns >> 16) - j;
    first = first > 0 ? first : 0;
    last = !p.has_row(s.i(g)) ? 0 : last < kRun ? last : kRun;
  }
  __device__ __forceinline__ bool none() const { return first >= last; }
  __device__ __forceinline__ bool all() const { return first == 0 && last == kRun; }
  __device__ __forceinline__ bool has(int e) const { return e >= first && e < last; }
};

// The words of a group of which `skipped` bytes of the first vector are another's.
template <int kVectors>
__device__ __forceinline__ void shift_words(uint32_t (&w)[4 * kVectors + 4], uint32_t skipped) {
  constexpr int kWords = 4 * kVectors;
#pragma unroll
  for (int n = 0; n < kWords + 2; ++n) w[n] = skipped & 8 ? w[n + 2] : w[n];
#pragma unroll
  for (int n = 0; n < kWords + 1; ++n) w[n] = skipped & 4 ? w[n + 1] : w[n];
#pragma unroll
  for (int n = 0; n < kWords; ++n) w[n] = shifted(w[n], w[n + 1], (skipped & 3) * 8);
}

// The 16 bytes at `at`, of which those from `end` on become 0 and are not touched. Both are multiples of 2.
VTC_OUT_OF_LINE __device__ Vector load_up_to(const char* at, const char* end) {
  uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
  for (int n = 0; n < 8; ++n)
    if (at + 2 * n < end)
      w[n / 2] |= static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(at + 2 * n))
                  << (n % 2 * 16);
  return Vector{w[0], w[1], w[2], w[3]};
}

// The end of the buffer of access n.
__device__ __forceinline__ const char* end_of(const Tile& t, int n) {
  Access a = access_of(t, n);
  // The arena's is not known; it ends where a vector may.
  int64_t extent = a.extent() ? a.extent() : int64_t{1} << kExtentBits;
  return a.pointer() + extent * itemsize(a.type());
}

// V = the tile at p, or 0 where it lacks elements. Reads no vector that has none of them, and nothing
// behind `end`.
template <int kType>
__device__ __forceinline__ void load_shifted(const Tile& t, const Spots& s, const Cursor& p,
                                             const char* end, Values& v) {
  constexpr int kSize = itemsize(kType), kVectors = vectors_of(kType);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    Part part(p, s, g);
    if (g >= t.groups) part.last = 0;
    const char* at = p.address() + (s.i(g) * p.row + s.j(g)) * kSize;
    uint32_t skipped = static_cast<uint32_t>(reinterpret_cast<uint64_t>(at) & 15);
    int low = static_cast<int>(skipped) + part.first * kSize;
    int high = part.none() ? low : static_cast<int>(skipped) + part.last * kSize;
    at -= skipped;
    uint32_t w[4 * kVectors + 4];
#pragma unroll
    for (int n = 0; n <= kVectors; ++n) {
      Vector own{0, 0, 0, 0};
      if (low < high && low < 16 * n + 16 && high > 16 * n)
        own = at + 16 * n + 16 <= end ? load_cached_vector(at + 16 * n) : load_up_to(at + 16 * n, end);
      w[4 * n] = own.x, w[4 * n + 1] = own.y, w[4 * n + 2] = own.z, w[4 * n + 3] = own.w;
    }
    shift_words<kVectors>(w, skipped);
    float* x = v.x + g * kRun;
    unpack<kType>({{w[0], w[1], w[2], w[3]}, {w[4], w[5], w[6], w[7]}}, x);
    if (!part.all())
#pragma unroll
      for (int e = 0; e < kRun; ++e) x[e] = part.has(e) ? x[e] : 0.0f;
  }
}

// The tile at p = V.
template <int kType>
__device__ __forceinline__ void store_shifted(const Tile& t, const Spots& s, const Cursor& p,
                                              const Values& v) {
  constexpr int kSize = itemsize(kType), kVectors = vectors_of(kType), kWords = 4 * kVectors;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    Part part(p, s, g);
    if (g >= t.groups || part.none()) continue;
    char* at = p.address() + (s.i(g) * p.row + s.j(g)) * kSize;
    Vector parts[2];
    pack<kType>(v.x + g * kRun, parts);
    uint32_t w[8] = {parts[0].x, parts[0].y, parts[0].z, parts[0].w,
                     parts[1].x, parts[1].y, parts[1].z, parts[1].w};
    uint32_t skipped = static_cast<uint32_t>(reinterpret_cast<uint64_t>(at) & 15);
    if (part.all() && !skipped) {
#pragma unroll
      for (int n = 0; n < kVectors; ++n)
        store_vector(at + 16 * n, parts[n]);
    } else if (part.all() && !(skipped & 3)) {
#pragma unroll
      for (int n = 0; n < kWords; ++n) store_bits(at + 4 * n, 4, w[n]);
    } else if (part.all() && kSize == 2) {
      store_bits(at, 2, w[0]);
#pragma unroll
      for (int n = 0; n < kWords - 1; ++n)
        store_bits(at + 2 + 4 * n, 4, shifted(w[n], w[n + 1], 16));
      store_bits(at + 4 * kWords - 2, 2, w[kWords - 1] >> 16);
    } else {
#pragma unroll
      for (int e = 0; e < kRun; ++e)
        if (part.has(e))
          store_bits(at + e * kSize, kSize, kSize == 4 ? w[e] : w[e / 2] >> (e % 2 * 16));
    }
  }
}

}  // namespace vtc
