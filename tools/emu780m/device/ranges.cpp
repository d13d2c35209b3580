#include "ranges.h"

#include <algorithm>
#include <iterator>

namespace device {

Ranges::Ranges(uint64_t first, uint64_t end) : free_{{first, end}}, next_(first) {}

uint64_t Ranges::take(uint64_t size, uint64_t alignment) {
    const uint64_t start = take_from(next_, size, alignment);
    return start ? start : take_from(0, size, alignment);
}

uint64_t Ranges::take_from(uint64_t least, uint64_t size, uint64_t alignment) {
    auto piece = free_.upper_bound(least);
    if (piece != free_.begin())
        --piece;
    for (; piece != free_.end(); ++piece) {
        const auto [first, end] = *piece;
        const uint64_t start = (std::max(first, least) + alignment - 1) & ~(alignment - 1);
        if (start < first || start > end || size > end - start)
            continue;
        free_.erase(piece);
        if (first < start)
            free_[first] = start;
        if (start + size < end)
            free_[start + size] = end;
        next_ = start + size;
        return start;
    }
    return 0;
}

void Ranges::give_back(uint64_t start, uint64_t size) {
    uint64_t end = start + size;
    auto after = free_.lower_bound(start);
    if (after != free_.end() && after->first == end) {
        end = after->second;
        after = free_.erase(after);
    }
    if (after != free_.begin() && std::prev(after)->second == start)
        std::prev(after)->second = end;
    else
        free_[start] = end;
}

}  // namespace device
