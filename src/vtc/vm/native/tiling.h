// What tilings for a processor and for a device have in common.
#pragma once

#include "shape.h"

namespace vtc {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Chooses the dimensions that are the axes of tiles.
void choose_axes(const Shape& s, Tiling& t);
// Is any access contiguous along a dimension?
bool any_contiguous(const Shape& s, int d);

// When tasks share a reduction: where there would be fewer than `few_tasks` and at least `points`
// points; then up to `tasks` tasks of at least `points_a_task`.
struct Sharing {
  int64_t few_tasks, tasks, points, points_a_task;
};

// Spans, loops and shared reductions for the axes and tile sizes chosen. May reorder dimensions.
void divide_tasks(const IrKernel& kernel, Shape& s, Tiling& t, const Sharing& sharing);

// Tiles for the device: at most as many points as its threads hold. Throws EncodeError for what the
// device has no instruction for.
void choose_device_tiles(const IrKernel& kernel, Shape& shape, Tiling& out);

}  // namespace vtc
