// Arrays that programs look into without order: voxels, triangles, pixels.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

namespace workload {

/// Allocates on huge pages where the kernel has them, from an eighth of one on. With pages of
/// 4 KB every look at a volume of some MB misses the TLB, which in a virtual machine costs a third of
/// the time, until the kernel happens to merge the pages: a frame would take what luck decides.
template <class T>
struct HugePages {
    using value_type = T;

    HugePages() = default;
    template <class U>
    HugePages(const HugePages<U>&) {}

    T* allocate(std::size_t count) {
        const std::size_t bytes = count * sizeof(T);
        if (bytes < worthwhile) {
            return static_cast<T*>(::operator new(bytes));
        }
        const std::size_t whole = (bytes + huge_page - 1) / huge_page * huge_page;
        void* memory = ::operator new(whole, std::align_val_t{huge_page});
        madvise(memory, whole, MADV_HUGEPAGE);  // a kernel that has none gives small ones
        return static_cast<T*>(memory);
    }
    void deallocate(T* memory, std::size_t count) {
        if (count * sizeof(T) < worthwhile) {
            ::operator delete(memory);
        } else {
            ::operator delete(memory, std::align_val_t{huge_page});
        }
    }
    friend bool operator==(HugePages, HugePages) { return true; }
    friend bool operator!=(HugePages, HugePages) { return false; }

  private:
    static constexpr std::size_t huge_page = std::size_t{2} << 20;
    static constexpr std::size_t worthwhile = huge_page / 8;
};

template <class T>
using Array = std::vector<T, HugePages<T>>;

}  // namespace workload
