#include "arena.h"

#include <algorithm>
#include <limits>

#include "table.h"

namespace vtc {
namespace {

constexpr int64_t kLine = 64;  // bytes; what temporaries are aligned to

int64_t aligned(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

Arena::Arena(const IrModule& module, const std::vector<int64_t>& extents, const Batches& batches,
             bool hosted)
    : module_(module), extents_(extents), batches_(batches) {
  int n = static_cast<int>(module.buffers.size());
  first_.assign(n, -1);
  last_.assign(n, -1);
  find_uses(module.steps);
  open_rooms(hosted);
  std::vector<int> order;
  for (int b = 0; b < n; ++b)
    if (temporary(b)) order.push_back(b);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return first_[a] < first_[b]; });
  plan_ = plan(order);
  if (order.size() < 3) return;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return size(a) > size(b); });
  Plan other = plan(order);
  if (other.bytes < plan_.bytes) plan_ = std::move(other);
}

int64_t Arena::size(int b) const {
  const IrBuffer& buffer = module_.buffers[b];
  return std::max<int64_t>(extents_[b], 1) * kItemsize[buffer.type];
}

bool Arena::overlap(int a, int b) const {
  if (a == b) return true;
  auto where = [&](int buffer) { return temporary(buffer) ? place(buffer) : Place{buffer, 0}; };
  Place one = where(a), two = where(b);
  return one.host == two.host && one.offset < two.offset + size(b) &&
         two.offset < one.offset + size(a);
}

void Arena::touch(int b, int first, int last) {
  first_[b] = first_[b] < 0 ? first : std::min(first_[b], first);
  last_[b] = std::max(last_[b], last);
}

// What a batch does not keep for itself is needed as long as any of its parts is.
void Arena::touch_all(int kernel) {
  const Batch* batch = batches_.of(kernel);
  int first = batch ? step_ - (kernel - batch->first) : step_;
  int last = batch ? first + batch->last - batch->first - 1 : step_;
  for (const IrAccess& a : module_.kernels[kernel].accesses) {
    if (batches_.local()[a.buffer])
      touch(a.buffer);
    else
      touch(a.buffer, first, last);
  }
}

void Arena::find_uses(const std::vector<IrStep>& steps) {
  for (const IrStep& step : steps) {
    ++step_;
    if (step.kernel >= 0) {
      touch_all(step.kernel);
      continue;
    }
    touch(step.predicate);
    find_uses(step.then);
    find_uses(step.otherwise);
    // A slow thread still reads the predicate when others are in an arm.
    touch(step.predicate);
  }
}

// Small outputs come first, so that there is room in the large ones for large temporaries.
void Arena::open_rooms(bool hosted) {
  for (int b = 0; hosted && b < static_cast<int>(first_.size()); ++b) {
    const IrBuffer& buffer = module_.buffers[b];
    if (buffer.kind == 1 && first_[b] >= 0 && extents_[b] > 0)
      rooms_.push_back({b, size(b), first_[b], {}});
  }
  std::stable_sort(rooms_.begin(), rooms_.end(),
                   [](const Room& a, const Room& b) { return a.bytes < b.bytes; });
  rooms_.push_back({-1, std::numeric_limits<int64_t>::max(), std::numeric_limits<int>::max(), {}});
}

// The lowest place for b between those that are in the room while it is needed.
int64_t Arena::first_fit(const Plan& plan, const Room& room, int b) const {
  int64_t at = 0;
  for (int other : room.held) {
    if (last_[other] < first_[b] || last_[b] < first_[other]) continue;
    int64_t begin = plan.places[other].offset;
    if (begin - at >= size(b)) break;
    at = std::max(at, begin + aligned(size(other)));
  }
  return at;
}

void Arena::put(Plan& plan, std::vector<Room>& rooms, int b) const {
  for (Room& room : rooms) {
    if (last_[b] >= room.until) continue;
    int64_t at = first_fit(plan, room, b);
    if (at > room.bytes - size(b)) continue;
    plan.places[b] = {room.host, at};
    auto above = [&](int64_t offset, int other) { return offset < plan.places[other].offset; };
    room.held.insert(std::upper_bound(room.held.begin(), room.held.end(), at, above), b);
    if (room.host < 0) plan.bytes = std::max(plan.bytes, at + aligned(size(b)));
    return;
  }
}

Arena::Plan Arena::plan(const std::vector<int>& order) const {
  Plan made;
  made.places.resize(first_.size());
  std::vector<Room> rooms = rooms_;
  for (int b : order) put(made, rooms, b);
  return made;
}

}  // namespace vtc
