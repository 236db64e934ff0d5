// Memory that is kept between calls. It begins with a cache line: rows of 64 bytes, as AMX loads them, would otherwise lie in
// two lines each.
#pragma once
#include <new>
#include <vector>

template <class T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t LINE{64};

    LineAllocator() = default;
    template <class U>
    LineAllocator(const LineAllocator<U>&) {}

    T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), LINE)); }
    void deallocate(T* first, std::size_t) { ::operator delete(first, LINE); }
    template <class U>
    bool operator==(const LineAllocator<U>&) const {
        return true;
    }
};

template <class T>
using Buffer = std::vector<T, LineAllocator<T>>;
