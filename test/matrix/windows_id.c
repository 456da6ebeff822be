/* SPDX-License-Identifier: MIT */
/* windows_id.c - this_cpu_id() on each processor that this process may use. */
#include "percpu.h"
#include "tap.h"
#include <windows.h>

int main(void)
{
    DWORD_PTR allowed = 0, system_mask = 0;
    unsigned checked = 0;
    ok(GetProcessAffinityMask(GetCurrentProcess(), &allowed, &system_mask), "the mask is known");
    for (unsigned cpu = 0; cpu < 8 * sizeof allowed; cpu++) {
        const DWORD_PTR mask = (DWORD_PTR)1 << cpu;
        if (!(allowed & mask) || !SetThreadAffinityMask(GetCurrentThread(), mask))
            continue;
        /* Windows may be an emulation that moves the thread late: compare the two answers. */
        for (int tries = 0; tries < 1000 && GetCurrentProcessorNumber() != cpu; tries++)
            Sleep(0);
        is(this_cpu_id(), GetCurrentProcessorNumber(), "this_cpu_id() is the system's");
        ok(this_cpu_id() < percpu_nr_cpus(), "and below percpu_nr_cpus()");
        checked++;
    }
    ok(checked > 0, "some processor was checked");
    ok(percpu_cpu_raw() < 0, "there is no area to read from");
    is(percpu_status().mode, PERCPU_MODE_FALLBACK, "operations are atomics");
    return done();
}
