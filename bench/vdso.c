/* SPDX-License-Identifier: MIT */
/* vdso.c - the kernel's getcpu without libc's detours. */
#include "bench.h"
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>

int (*vdso_getcpu)(unsigned *cpu, unsigned *node, void *unused);

static const void *dynamic(const char *base, const ElfW(Dyn) * d, ElfW(Sxword) tag)
{
    for (; d->d_tag != DT_NULL; d++)
        if (d->d_tag == tag)
            return base + d->d_un.d_ptr;
    return NULL;
}

/* The vDSO is an ELF image; its symbols up to the string table, which follows them. */
void vdso_find(void)
{
    const char *base = (const char *)getauxval(AT_SYSINFO_EHDR);
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)(const void *)base;
    const ElfW(Dyn) *d = NULL;
    if (!base)
        return;
    for (unsigned i = 0; i < header->e_phnum; i++) {
        const ElfW(Phdr) *p = (const ElfW(Phdr) *)(const void *)(base + header->e_phoff) + i;
        if (p->p_type == PT_DYNAMIC)
            d = (const ElfW(Dyn) *)(const void *)(base + p->p_offset);
    }
    if (!d)
        return;
    const ElfW(Sym) *symbol = (const ElfW(Sym) *)dynamic(base, d, DT_SYMTAB);
    const char *names = (const char *)dynamic(base, d, DT_STRTAB);
    for (; symbol && (const char *)symbol < names; symbol++) {
        const char *name = names + symbol->st_name;
        if (!strcmp(name, "__vdso_getcpu") || !strcmp(name, "__kernel_getcpu"))
            vdso_getcpu =
                (int (*)(unsigned *, unsigned *, void *))(uintptr_t)(base + symbol->st_value);
    }
}
