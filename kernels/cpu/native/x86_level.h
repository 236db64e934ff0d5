// Tests for the x86-64 microarchitecture levels v3 and v4 of the psABI (https://gitlab.com/x86-psABIs/x86-64-ABI).
// Older compilers know the features by name, but not the levels.
#pragma once
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>

inline bool has_x86_64_v3() {
    constexpr unsigned movbe = 1u << 22, f16c = 1u << 29, lzcnt = 1u << 5;
    unsigned eax, ebx, ecx, edx;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
    if (!__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2")) return false;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & (movbe | f16c)) != (movbe | f16c)) return false;
    return __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) && (ecx & lzcnt) != 0;
}

inline bool has_x86_64_v4() {
    return has_x86_64_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif
