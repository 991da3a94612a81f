#include "is/sort.hpp"

#include <algorithm>
#include <numeric>

namespace workload {

namespace {

// Where each part begins if they follow one another.
std::vector<int> starts_of(const std::vector<int>& counts) {
    std::vector<int> starts(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), 0);
    return starts;
}

}  // namespace

Array<Key>& Sorter::sort(const Array<Key>& keys) {
    std::vector<std::int64_t> histogram(buckets());
    for (const Key key : keys) {
        ++histogram[bucket_of(key)];
    }
    const std::vector<int> owner = owners(histogram);

    std::vector<int> sent(world_.ranks());
    for (const Key key : keys) {
        ++sent[owner[bucket_of(key)]];
    }
    std::vector<int> received(world_.ranks());
    wait_for(waiting_, [&](MPI_Request* request) {
        MPI_Ialltoall(sent.data(), 1, MPI_INT, received.data(), 1, MPI_INT, MPI_COMM_WORLD, request);
    });

    const std::vector<int> out_starts = starts_of(sent);
    std::vector<int> next = out_starts;
    given_.resize(keys.size());
    for (const Key key : keys) {
        given_[next[owner[bucket_of(key)]]++] = key;
    }
    const std::vector<int> in_starts = starts_of(received);
    received_.resize(in_starts.back() + received.back());
    wait_for(waiting_, [&](MPI_Request* request) {
        MPI_Ialltoallv(given_.data(), sent.data(), out_starts.data(), MPI_UINT32_T, received_.data(),
                       received.data(), in_starts.data(), MPI_UINT32_T, MPI_COMM_WORLD, request);
    });
    count_sorted();
    return sorted_;
}

std::vector<int> Sorter::owners(const std::vector<std::int64_t>& mine) const {
    std::vector<std::int64_t> all(mine.size());
    wait_for(waiting_, [&](MPI_Request* request) {
        MPI_Iallreduce(mine.data(), all.data(), static_cast<int>(mine.size()), MPI_INT64_T, MPI_SUM,
                       MPI_COMM_WORLD, request);
    });
    // Weights that are the same for every bucket divide the range; the counts divide the keys.
    if (split_ == Split::range) {
        std::fill(all.begin(), all.end(), 1);
    }
    const std::int64_t sum = std::max<std::int64_t>(std::accumulate(all.begin(), all.end(), std::int64_t{0}), 1);
    std::vector<int> owner(all.size());
    std::int64_t before = 0;
    for (std::size_t bucket = 0; bucket < all.size(); ++bucket) {
        // By the middle of the bucket: it goes where most of it belongs.
        const std::int64_t middle = 2 * before + all[bucket];
        const auto rank = static_cast<int>(middle * world_.ranks() / (2 * sum));
        owner[bucket] = std::min(rank, world_.ranks() - 1);
        before += all[bucket];
    }
    return owner;
}

void Sorter::count_sorted() {
    sorted_.clear();
    if (received_.empty()) {
        return;
    }
    const auto [least, most] = std::minmax_element(received_.begin(), received_.end());
    const Key base = *least;
    counts_.assign(static_cast<std::size_t>(*most - base) + 1, 0);
    for (const Key key : received_) {
        ++counts_[key - base];
    }
    sorted_.reserve(received_.size());
    for (std::size_t value = 0; value < counts_.size(); ++value) {
        sorted_.insert(sorted_.end(), counts_[value], static_cast<Key>(base + value));
    }
}

}  // namespace workload
