// SPDX-License-Identifier: MIT
// object_counts - a C++ program with templates in two files.
//
//     c++ -std=c++11 object_counts.cpp object_counts_serve.cpp -pthread
#include "object_counts.hpp"
#include <iostream>
#include <thread>
#include <vector>

static message before_main(1); // a static constructor counts, whatever the order of files

int main()
{
    const unsigned threads = 4, messages = 50000;
    sizes seen;
    std::vector<std::thread> workers;
    std::vector<message> kept;

    if (!seen.ok())
        return 1;
    for (unsigned i = 0; i < threads; i++)
        workers.emplace_back(serve, messages, &seen);
    kept.reserve(10);
    for (unsigned i = 0; i < 10; i++)
        kept.emplace_back(i); // in this file, while the others run
    for (auto &w : workers)
        w.join();
    seen.record(before_main.size);

    std::cout << "messages alive=" << message::alive() << " ever=" << message::ever()
              << " replies alive=" << reply::alive() << " ever=" << reply::ever() << "\nsizes";
    for (std::size_t i = 0; i < BUCKETS; i++)
        std::cout << ' ' << seen.count(i);
    std::cout << '\n';
    return 0;
}
