// AMX tile instructions. On machines without them, the code that uses them is tested with tiles_emulated.h.
// Inline assembly, because the compilers' intrinsics do not declare that they read memory.
#pragma once
#include "tiles.h"

namespace tiles {

constexpr const char* NAME = "amx";

inline void configure(const Shapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory"); }
inline void release() { asm volatile("tilerelease" : : : "memory"); }

// Rows of a tile lie `stride` bytes apart.
template <int TILE>
inline void load(const void* first, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(first), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
inline void store(void* first, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(first), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
inline void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}

// SUM [rows][16] floats += X [rows][16 pairs] times W [16 pairs][16], pairs of bfloat16.
template <int SUM, int X, int W>
inline void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(X), "i"(W));
}

}  // namespace tiles
