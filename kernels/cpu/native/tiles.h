// The eight tile registers of AMX, up to 16 rows of 64 bytes each: what they hold is set before they are used.
// The operations are those of Intel's Software Developer's Manual (LDTILECFG, TILELOADD, TDPBF16PS): instructions in
// tiles_amx.h, or the same in plain C++ in tiles_emulated.h, for machines that have none (tests alone build that).
#pragma once
#include <cstdint>

namespace tiles {

constexpr int ROWS = 16;
constexpr int BYTES = 64;  // of a row

// As LDTILECFG reads it. A tile without rows is not used.
struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int64_t count) {
        rows[tile] = uint8_t(count);
        row_bytes[tile] = BYTES;
    }
};
static_assert(sizeof(Shapes) == 64);

}  // namespace tiles

#ifdef TANDEM_EMULATE_TILES
#include "tiles_emulated.h"
#else
#include "tiles_amx.h"
#endif
