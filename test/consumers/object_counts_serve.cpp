// SPDX-License-Identifier: MIT
// The second file: instantiates the same templates.
#include "object_counts.hpp"

void serve(unsigned n, sizes *seen)
{
    for (unsigned i = 0; i < n; i++) {
        message m(i % 100);
        message copy(m); // copies count as well
        reply r;
        seen->record(copy.size);
        (void)r;
    }
}
