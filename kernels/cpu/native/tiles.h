// The eight tile registers of AMX, up to 16 rows of 64 bytes each; their shapes are configured before use. Operations:
// LDTILECFG, TILELOADD, TILEZERO, TDPBF16PS of Intel's Software Developer's Manual. tiles_amx.h has the instructions;
// tiles_emulated.h emulates them in C++ for CPUs without AMX (built by tests only).
#pragma once
#include <cstdint>

namespace tiles {

constexpr int ROWS = 16;
constexpr int BYTES = 64;  // of a row

// The 64-byte operand of LDTILECFG. A tile with 0 rows is unused.
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
