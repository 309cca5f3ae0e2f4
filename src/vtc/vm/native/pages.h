// Fresh memory, in large pages.
#pragma once

#include <cstddef>

namespace vtc {

// From here on it pays to ask. An allocator takes so much from the system anew in each call, and
// the first touch of a small page costs more than the arithmetic on it.
constexpr size_t kHugeBytes = size_t{4} << 20;

// Asks the system for large pages where this memory has not been touched.
void want_huge_pages(void* memory, size_t bytes);

}  // namespace vtc
