/* SPDX-License-Identifier: MIT */
/*
 * use_all.h - a call of every function, and every macro, of the header that was included before
 * it, as strict C or C++. check_warnings.sh compiles it, and compares it with the header's names.
 */
#ifdef PERCPU_RSEQ_ABI_H
int use_abi(void);
int use_abi(void)
{
    int answer = 0;
#if PERCPU_RSEQ_PORTED
    const intptr_t off = 0;
    unsigned size = 0;
    int constant = 0;
    answer += percpu_rseq_tp() != percpu_rseq_locate_own(&constant);
    answer += percpu_rseq_tp() != percpu_rseq_locate_foreign(&constant);
    answer += percpu_rseq_tp() != percpu_rseq_locate_here(&constant);
    answer += percpu_rseq_libc_size_address() == percpu_rseq_libc_offset_address();
    answer += percpu_rseq_libc(&size) == 0;
    answer += percpu_rseq_cpu_id(off) + (percpu_rseq_read_cpu_id(off) == 1);
    answer += percpu_rseq_read_member(off, offsetof(struct percpu_rseq_area, mm_cid)) == 1;
    answer += percpu_rseq_thread_v1.state + percpu_rseq_foreign.state + constant;
#endif
#if PERCPU_RSEQ_SECTIONS
    {
        static struct percpu_rseq_reach nowhere;
        const struct percpu_rseq_reach *reach = &nowhere;
        percpu_rseq_self_t self;
        static struct percpu_rseq_stamped stamped;
        static struct percpu_rseq_list list;
        static void *node[2], *popped;
        static uintptr_t *words;
        uint32_t w = 0, w_out = 0;
        uint64_t d = 0;
        uintptr_t sequence = 0;
        answer += percpu_rseq_add_u32(reach, &w, 1) + percpu_rseq_and_u32(reach, &w, 1);
        answer += percpu_rseq_or_u32(reach, &w, 1) + percpu_rseq_store_u32(reach, &w, 1);
        answer += percpu_rseq_load_u32(reach, &w, &w_out);
        answer += percpu_rseq_add_return_u32(reach, &w, 1, &w_out);
        answer += percpu_rseq_xchg_u32(reach, &w, 1, &w_out);
        answer += percpu_rseq_cmpxchg_u32(reach, &w, 1, 2, &w_out);
#if UINTPTR_MAX > 0xffffffffu
        uint64_t d_out = 0;
        answer += percpu_rseq_add_u64(reach, &d, 1) + percpu_rseq_and_u64(reach, &d, 1);
        answer += percpu_rseq_or_u64(reach, &d, 1) + percpu_rseq_store_u64(reach, &d, 1);
        answer += percpu_rseq_load_u64(reach, &d, &d_out);
        answer += percpu_rseq_add_return_u64(reach, &d, 1, &d_out);
        answer += percpu_rseq_xchg_u64(reach, &d, 1, &d_out);
        answer += percpu_rseq_cmpxchg_u64(reach, &d, 1, 2, &d_out);
#endif
        answer += percpu_rseq_self(reach, &self) + (self.bound == 1);
        answer += percpu_rseq_add_first(reach, &words, &w, 1);
        answer += percpu_rseq_add_element(reach, &words, &w, w, 1);
        answer += percpu_rseq_push(reach, &list, node, 0);
        answer += percpu_rseq_pop(reach, &list, 0, &popped);
        answer += percpu_rseq_publish(reach, &stamped, 1, &sequence);
        answer += percpu_rseq_stamp(reach, &w, &d);
#ifdef PERCPU_RSEQ_TICKS
        answer += percpu_rseq_ticks() == percpu_rseq_ticks_ordered();
#endif
#if defined(__x86_64__)
        answer += percpu_rseq_has_rdtscp() && percpu_rseq_rdtscp(&w) == 1;
#endif
        answer += percpu_rseq_aborts_v1 == 1;
    }
#endif
    percpu_rseq_valgrind_untrack(&answer, sizeof answer);
    return answer;
}
#endif

#ifdef PERCPU_H
#ifdef __cplusplus
#define USE_NULL nullptr
#else
#define USE_NULL NULL
#endif

enum use_enum { USE_NONE, USE_ONE };
struct use_object {
    unsigned u;
    int i;
    long l;
    unsigned long ul;
    uint32_t u32;
    int32_t i32;
    char *text;
    const char *constant_text;
    struct use_object *next;
    enum use_enum e;
#if UINTPTR_MAX > 0xffffffffu
    uint64_t u64;
    int64_t i64;
#endif
};

/* The same operations under their long and their short names. */
#define USE_INTEGER(x, small)                              \
    do {                                                   \
        percpu_this_cpu_add(x, 1);                         \
        percpu_this_cpu_add(x, -1);                        \
        percpu_this_cpu_add(x, small);                     \
        percpu_this_cpu_sub(x, 1u);                        \
        percpu_this_cpu_sub(x, small);                     \
        percpu_this_cpu_inc(x);                            \
        percpu_this_cpu_dec(x);                            \
        percpu_this_cpu_and(x, 0xff);                      \
        percpu_this_cpu_or(x, 0x1);                        \
        percpu_this_cpu_write(x, 7);                       \
        percpu_this_cpu_write(x, percpu_this_cpu_read(x)); \
        (x) = percpu_this_cpu_add_return(x, 1);            \
        (x) = percpu_this_cpu_xchg(x, 2);                  \
        (x) = percpu_this_cpu_cmpxchg(x, 2, 3);            \
    } while (0)
#ifndef PERCPU_NO_SHORT_NAMES
#define USE_SHORT(x, small)              \
    do {                                 \
        this_cpu_add(x, 1);              \
        this_cpu_add(x, -1);             \
        this_cpu_add(x, small);          \
        this_cpu_sub(x, 1);              \
        this_cpu_inc(x);                 \
        this_cpu_dec(x);                 \
        this_cpu_and(x, 0xff);           \
        this_cpu_or(x, 0x1);             \
        this_cpu_write(x, 7);            \
        (x) = this_cpu_read(x);          \
        (x) = this_cpu_add_return(x, 1); \
        (x) = this_cpu_xchg(x, 2);       \
        (x) = this_cpu_cmpxchg(x, 2, 3); \
    } while (0)
#else
#define USE_SHORT(x, small) ((void)0)
#endif

int use_operations(struct use_object *o, const struct use_object *read_only, signed char small);
int use_operations(struct use_object *o, const struct use_object *read_only, signed char small)
{
    struct use_object *const fixed = o;
    struct use_object *copy;
    const struct use_object *seen;
    static char letters[2];
    unsigned cpu, count = 0;
    USE_INTEGER(o->u, small);
    USE_INTEGER(o->i, small);
    USE_INTEGER(o->l, small);
    USE_INTEGER(o->ul, small);
    USE_INTEGER(fixed->u32, small);
    USE_INTEGER(fixed->i32, small);
    USE_SHORT(o->u, small);
    USE_SHORT(o->i, small);
    USE_SHORT(o->l, small);
    USE_SHORT(fixed->u32, small);
#if UINTPTR_MAX > 0xffffffffu
    USE_INTEGER(o->u64, small);
    USE_INTEGER(o->i64, small);
    USE_SHORT(o->u64, small);
    USE_SHORT(o->i64, small);
#endif
    percpu_this_cpu_write(o->text, letters);
    percpu_this_cpu_write(o->text, USE_NULL);
    o->text = percpu_this_cpu_xchg(o->text, letters + 1);
    o->text = percpu_this_cpu_cmpxchg(o->text, letters, letters + 1);
    percpu_this_cpu_write(o->constant_text, "text");
    o->constant_text = percpu_this_cpu_read(o->constant_text);
    percpu_this_cpu_write(o->next, o);
    o->next = percpu_this_cpu_read(o->next);
    percpu_this_cpu_write(o->e, USE_ONE);
    o->e = percpu_this_cpu_read(o->e);
    count += percpu_this_cpu_read(read_only->u);
    /* Statements of if, without braces. */
    if (count)
        percpu_this_cpu_inc(o->u);
    else
        percpu_this_cpu_dec(o->u);
    percpu_for_each_cpu(cpu) count +=
        percpu_ptr(o, cpu)->u + percpu_ptr(read_only, cpu)->u + percpu_ptr(fixed, cpu)->u;
    percpu_for_each_copy(o, copy) percpu_for_each_copy(read_only, seen) count += copy->u + seen->u;
    percpu_for_each_copy(fixed, copy) count += copy->u;
    count += percpu_this_cpu_ptr(o)->u + percpu_this_cpu_ptr(read_only)->u;
    count += percpu_this_cpu_ptr(fixed)->u;
#ifndef PERCPU_NO_SHORT_NAMES
    count += this_cpu_ptr(o)->u + this_cpu_id() + this_cpu_node() + this_cpu_cid();
#endif
    count += percpu_this_cpu_id() + percpu_this_cpu_node() + percpu_this_cpu_cid();
    return (count == 1) + percpu_cpu_raw();
}

int use_typed(uint32_t *w, uint64_t *d);
int use_typed(uint32_t *w, uint64_t *d)
{
    percpu_this_cpu_add_u32(w, 1);
    percpu_this_cpu_and_u32(w, 1);
    percpu_this_cpu_or_u32(w, 1);
    percpu_this_cpu_write_u32(w, percpu_this_cpu_read_u32(w));
    *w = percpu_this_cpu_add_return_u32(w, 1);
    *w = percpu_this_cpu_xchg_u32(w, 1) + percpu_this_cpu_cmpxchg_u32(w, 1, 2);
#if UINTPTR_MAX > 0xffffffffu
    percpu_this_cpu_add_u64(d, 1);
    percpu_this_cpu_and_u64(d, 1);
    percpu_this_cpu_or_u64(d, 1);
    percpu_this_cpu_write_u64(d, percpu_this_cpu_read_u64(d));
    *d = percpu_this_cpu_add_return_u64(d, 1);
    *d = percpu_this_cpu_xchg_u64(d, 1) + percpu_this_cpu_cmpxchg_u64(d, 1, 2);
#endif
    return *d == *w;
}

int use_objects(void);
int use_objects(void)
{
    static struct percpu_counters set = PERCPU_COUNTERS_INIT(2, PERCPU_COUNTERS_SHARED), child;
    static struct percpu_gauge gauge;
    static struct percpu_freelist list;
    static void *node[2];
    struct percpu_tscp now = percpu_tscp(), about = percpu_tscp_approx();
    void *chain;
    percpu_word sums[2];
    double value;
    int answer = percpu_counters_init(&child, 2, &set, 0);
    percpu_counters_add(&child, 0, 5);
    percpu_counters_inc(&child, 1);
    percpu_counters_snapshot(&set, sums);
    answer += percpu_counters_take(&set, sums) + (percpu_counters_sum(&set, 1) == sums[1]);
    answer += percpu_counters_destroy(&child);
    answer += percpu_ticks() + now.ticks == about.ticks;
    answer += percpu_gauge_init(&gauge);
    percpu_gauge_set(&gauge, 1.5);
    answer += percpu_gauge_get(&gauge, &value);
    percpu_gauge_destroy(&gauge);
    answer += percpu_freelist_init(&list, 0);
    percpu_freelist_push(&list, node);
    answer += percpu_freelist_pop(&list) == node;
    answer += percpu_freelist_drain(&list, 0, &chain) + percpu_freelist_destroy(&list);
    return answer + percpu_fence_cpu(0) + percpu_fence();
}

int use_percpu(void);
int use_percpu(void)
{
    static struct percpu_counter ready;
    struct percpu_counter c;
    struct percpu_status status = percpu_status();
    struct use_object *o = PERCPU_NEW(struct use_object);
    void *raw = percpu_alloc(PERCPU_STRIDE / 2, 64);
    char text[200];
    percpu_word sum = 0;
    int answer = percpu_thread_register();
    if (percpu_counter_init(&c) == 0) {
        percpu_counter_add(&c, 3);
        percpu_counter_sub(&c, 1);
        percpu_counter_inc(&ready);
        percpu_counter_dec(&ready);
        sum = percpu_counter_sum(&c) + percpu_counter_take(&ready);
        percpu_counter_destroy(&c);
    }
    answer += percpu_status_format(text, sizeof text);
    answer += *percpu_reason_text(status.reason) == 'o';
    answer += percpu_nr_cpus() == sum;
    if (o)
        answer += use_operations(o, o, 1);
    answer += percpu_free(o) + percpu_free(raw);
    answer += PERCPU_VERSION_MAJOR + PERCPU_VERSION_MINOR + PERCPU_VERSION_PATCH;
    answer += sizeof PERCPU_VERSION_STRING > 1;
    return answer + percpu_thread_unregister();
}

#ifdef __cplusplus
template <typename T> class use_class
{
  public:
    use_class() : p_(PERCPU_NEW(T)) {}
    ~use_class() { (void)percpu_free(p_); }
    void bump() { percpu_this_cpu_inc(p_->u); }
    unsigned sum() const
    {
        unsigned n = 0;
        T *copy;
        percpu_for_each_copy(p_, copy) n += copy->u;
        return n + percpu_ptr(p_, 0)->u + percpu_this_cpu_ptr(p_)->u + percpu_this_cpu_read(p_->u);
    }

  private:
    use_class(const use_class &);
    use_class &operator=(const use_class &);
    T *p_;
};
unsigned use_template();
unsigned use_template()
{
    use_class<use_object> object;
    object.bump();
    return object.sum();
}
#endif
#endif
