#pragma once
#include <cstdint>
#include <map>

namespace device {

// Numbers from `first` up to `end`, handed out and taken back in pieces. A piece given back comes again as late as can
// be, so that a use of something freed is found as an access to nothing.
class Ranges {
public:
    Ranges(uint64_t first, uint64_t end);
    // Start of a free piece at a multiple of alignment (a power of two); 0 where there is none.
    uint64_t take(uint64_t size, uint64_t alignment);
    void give_back(uint64_t start, uint64_t size);

private:
    uint64_t take_from(uint64_t least, uint64_t size, uint64_t alignment);
    std::map<uint64_t, uint64_t> free_;  // start -> end
    uint64_t next_;                      // where the last piece ended
};

}  // namespace device
