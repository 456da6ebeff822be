// SPDX-License-Identifier: MIT
// object_counts.hpp - count what a C++ program has made, per type, and how large things were.
#ifndef OBJECT_COUNTS_HPP
#define OBJECT_COUNTS_HPP

#include "percpu.h"
#include <cstddef>

// Derive from counted<T> to know how many T there are and ever were. One pair of counters per type,
// however many files instantiate it; zero-initialised, so constructors of static objects count too.
template <typename T> class counted
{
  public:
    static unsigned long alive() { return static_cast<unsigned long>(percpu_counter_sum(&live)); }
    static unsigned long ever() { return static_cast<unsigned long>(percpu_counter_sum(&made)); }

  protected:
    counted() { add(); }
    counted(const counted &) { add(); }
    counted &operator=(const counted &) { return *this; }
    ~counted() { percpu_counter_dec(&live); }

  private:
    static void add()
    {
        percpu_counter_inc(&live);
        percpu_counter_inc(&made);
    }
    static percpu_counter live, made;
};
template <typename T> percpu_counter counted<T>::live;
template <typename T> percpu_counter counted<T>::made;

// Powers of two, one row per CPU; a plain structure of integers and the operations on it.
template <std::size_t N> class histogram
{
  public:
    histogram() : row(PERCPU_NEW(buckets)) {}
    ~histogram() { percpu_free(row); }
    histogram(const histogram &) = delete;
    histogram &operator=(const histogram &) = delete;
    bool ok() const { return row != nullptr; }

    void record(unsigned long value)
    {
        std::size_t i = 0;
        while (i + 1 < N && value >> i > 1)
            i++;
        this_cpu_inc(row->count[i]);
    }
    unsigned long count(std::size_t i) const
    {
        unsigned long sum = 0;
        buckets *copy;
        percpu_for_each_copy(row, copy) sum += __atomic_load_n(&copy->count[i], __ATOMIC_RELAXED);
        return sum;
    }

  private:
    struct buckets {
        unsigned long count[N];
    };
    buckets *row;
};

// What the two files share.
struct message : counted<message> {
    explicit message(unsigned long n) : size(n) {}
    unsigned long size;
};
struct reply : counted<reply> {
};
enum { BUCKETS = 8 };
typedef histogram<BUCKETS> sizes;

void serve(unsigned n, sizes *seen); // object_counts_serve.cpp

#endif
