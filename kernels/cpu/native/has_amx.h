// Whether this CPU has AMX for bfloat16 and Linux lets this process use it.
#pragma once
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

// Requests permission for the tile state from Linux, for all threads of the process (Documentation/arch/x86/xstate.rst).
// A kernel without AMX support refuses.
inline bool has_amx() {
    constexpr unsigned bf16 = 1u << 22, tile = 1u << 24;
    constexpr long request_permission = 0x1023, tile_data = 18;
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & (bf16 | tile)) != (bf16 | tile)) return false;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#else
inline bool has_amx() { return false; }
#endif
