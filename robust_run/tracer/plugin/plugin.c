/* A profiler plugin for NCCL: shows from outside, at any moment and after a death, where inside a collective a rank stalls.
 *
 * NCCL (2.26 and later) loads it by NCCL_PROFILER_PLUGIN, takes the newest of the four tables at the end of this file and calls
 * it from the program's threads and from its own proxy threads. What they say goes into a file that the launcher made
 * (ROBUST_NCCL_TRACE names it; robust_run/tracer/plugin/layout.py describes it): communicators, one row for each flow
 * (communicator, channel, peer, direction) with the four counters of Mycroft (arXiv 2509.03018), and a ring of operations.
 *
 * The rules here: never crash, block or slow the program. Nothing is allocated and no lock is taken after the first init. Every
 * shared word is written whole by an atomic, so a reader may see an old number but never half of one. Handles given to NCCL are
 * numbers, not addresses: kind, index and generation. One that is stale, foreign, doubled or garbage fails its check and is
 * counted. No NCCL header is needed: the few offsets used are equal in all versions or follow `Api`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define LOAD(cell) atomic_load_explicit(&(cell), memory_order_relaxed)
#define STORE(cell, value) atomic_store_explicit(&(cell), (uint64_t)(value), memory_order_relaxed)
#define PUBLISH(cell, value) atomic_store_explicit(&(cell), (uint64_t)(value), memory_order_release)
#define ADD(cell, value) atomic_fetch_add_explicit(&(cell), (uint64_t)(value), memory_order_relaxed)
#define SWAP_IF(cell, seen, value) \
    atomic_compare_exchange_strong_explicit(&(cell), seen, (uint64_t)(value), memory_order_acq_rel, memory_order_acquire)

typedef _Atomic uint64_t Cell;
_Static_assert(sizeof(void *) == 8 && sizeof(Cell) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "needs lock-free 64-bit words");

/* ---- the file: keep equal to layout.py (a test compares) ---- */
enum { VERSION = 1, COMMS = 256, FLOWS = 16384, OPS = 8192, HEADER_BYTES = 4096, NAME_BYTES = 64, WORD_BYTES = 16 };
#define MAGIC "RBNCCL\n"

typedef struct {
    Cell magic, version, pid, api, mask, started, comms, flows, ops, event, /* event: time of the newest one */
        dropped, foreign, unknown, stale, /* no room; of another process; of no known type; handle that fits nothing */
        busy, ran; /* for how long proxy threads had work, and for how long of that they ran on a CPU */
    Cell thread[COMMS]; /* of each communicator (row) the proxy thread that works for it, as the process sees it; 0: none yet */
    char pad[HEADER_BYTES - (16 + COMMS) * 8];
} Header;
typedef struct {
    Cell serial, hash, ranks, rank, nodes, opened, closed, p2ps; /* serial: 0 while empty; rank, ranks: + 1, 0: unknown */
    Cell name[NAME_BYTES / 8];
} Comm;
typedef struct {
    Cell key, origin, op, seq, op_at, op_base, op_steps, steps; /* of the newest operation that began; steps: of all so far */
    Cell level[4], level_at[4]; /* posted >= gpu_ready >= transmitted >= done, and when each last grew */
    Cell bytes, opened, closed; /* opened, closed: proxy operations */
    Cell spent[3], working, weighed; /* step-ns between two rungs each; ns with any between the last two; until when */
} Flow;
typedef struct {
    Cell number, comm, kind, seq, count, peer, started, stopped, proxy_first, proxy_last, sent, received, opened, closed;
    Cell kernel_first, kernel_last;
    Cell func[WORD_BYTES / 8], type[WORD_BYTES / 8];
} Op;
typedef struct {
    Header header;
    Comm comms[COMMS];
    Flow flows[FLOWS];
    Op ops[OPS];
} Trace;
_Static_assert(sizeof(Header) == HEADER_BYTES && sizeof(Comm) == 128 && sizeof(Flow) == 192 && sizeof(Op) == 160, "layout");

EXPORT const uint64_t robust_nccl_layout[] = {
    VERSION, sizeof(Trace), COMMS, FLOWS, OPS, sizeof(Comm), sizeof(Flow), sizeof(Op),
    offsetof(Trace, comms), offsetof(Trace, flows), offsetof(Trace, ops), offsetof(Header, event) / 8, offsetof(Header, ran) / 8, offsetof(Header, thread) / 8,
    offsetof(Comm, name) / 8, offsetof(Flow, level) / 8, offsetof(Flow, weighed) / 8, offsetof(Op, kernel_last) / 8, 0};

/* ---- what NCCL says: values of its interface ---- */
enum Type { COLL = 1 << 1, P2P = 1 << 2, PROXY_OP = 1 << 3, PROXY_STEP = 1 << 4, KERNEL = 1 << 6, LAST_KNOWN = 1 << 14 };
enum State { SEND_GPU_WAIT = 8, SEND_WAIT = 9, RECV_WAIT = 10, RECV_FLUSH_WAIT = 11, RECV_GPU_WAIT = 12, SEND_PEER_WAIT = 20 };
typedef enum { V3 = 3, V4, V5, V6 } Api;
enum { PARENT_AT = 8, RANK_AT = 16, BODY_AT = 24, V3_BODY_AT = 40 }; /* in v3 name and hash of the communicator come first */

/* ---- what this process keeps for itself ---- */
enum { PROXIES = 16384, CELLS = 8, PROBES = 128, HASH = 2 * FLOWS }; /* CELLS: steps that NCCL has in the air per operation */
enum { FREE, IN_USE, FILLED, STATE_MASK };
enum { STEP_SHIFT = 46, STEP_MASK = 0x3fff };
enum Level { STARTED, POSTED, GPU_READY, TRANSMITTED, DONE };
typedef struct {
    Cell owner, flow, key, task, steps, begun, bytes; /* owner: generation * 4 + FREE, IN_USE or FILLED; flow: index */
    Cell step[CELLS]; /* (number of the step + 1) << 8 | level reached */
} Proxy;
static Proxy proxies[PROXIES];
static Cell proxy_cursor, live_comms, comm_serial;
static Cell hash_flow[HASH], flow_key[FLOWS], flow_origin[FLOWS]; /* hash_flow: index of a flow + 1 */
static _Atomic(Trace *) trace; /* NULL: do nothing */
static Trace *mapped; /* where SIGBUS may come from */
static uint64_t own_pid;
static _Atomic int opening; /* 0, 1: a thread is at it, 2: done */
static struct sigaction bus_before;

static uint64_t clock_ns(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}
static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
/* Of the last tick of the kernel (1 to 10 ms ago): enough to see a stall, and five times cheaper. For steps. */
static uint64_t tick_ns(void) { return clock_ns(CLOCK_MONOTONIC_COARSE); }

static uint64_t word(const char *from) {
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}
static int32_t number(const char *from) {
    int32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}
static void store_text(Cell *cells, size_t bytes, const char *text) {
    char copy[NAME_BYTES] = {0};
    for (size_t i = 0; text && i + 1 < bytes && text[i]; i++) copy[i] = text[i];
    for (size_t i = 0; i < bytes / 8; i++) STORE(cells[i], word(copy + i * 8));
}

/* ---- handles: kind << 60 | what tells one from its successors in the same place ---- */
enum Kind { COMM_KIND = 1, TASK_KIND, PROXY_KIND, STEP_KIND, KERNEL_KIND };
static void *to_handle(enum Kind kind, uint64_t rest) { return (void *)(uintptr_t)((uint64_t)kind << 60 | rest); }
static enum Kind kind_of(const void *handle) { return (enum Kind)((uintptr_t)handle >> 60); }
static uint64_t rest_of(const void *handle) { return (uintptr_t)handle & (((uint64_t)1 << 60) - 1); }

static void *stale(Trace *t) {
    ADD(t->header.stale, 1);
    return NULL;
}
static void touch(Trace *t, uint64_t now) {
    if (LOAD(t->header.event) < now) STORE(t->header.event, now); /* seldom by steps, for all threads share the word */
}
static Comm *comm_of(Trace *t, const void *context) {
    uint64_t serial = rest_of(context);
    Comm *comm = &t->comms[serial % COMMS];
    return kind_of(context) == COMM_KIND && LOAD(comm->serial) == serial && !LOAD(comm->closed) ? comm : NULL;
}
/* The record of a collective or point-to-point call, unless so many came since that its place was taken. */
static Op *task_of(Trace *t, const void *handle) {
    Op *op = &t->ops[rest_of(handle) % OPS];
    int fits = kind_of(handle) == TASK_KIND || kind_of(handle) == KERNEL_KIND;
    return fits && atomic_load_explicit(&op->number, memory_order_acquire) == rest_of(handle) + 1 ? op : NULL;
}
/* A proxy operation (or that of a step) that has not been stopped: 14 bits of index, 32 of generation, 14 of step. */
static Proxy *proxy_of(const void *handle) {
    Proxy *proxy = &proxies[rest_of(handle) % PROXIES];
    uint64_t owner = atomic_load_explicit(&proxy->owner, memory_order_acquire);
    return (owner & STATE_MASK) == IN_USE && (uint32_t)(owner >> 2) == (uint32_t)(rest_of(handle) / PROXIES) ? proxy : NULL;
}

/* ---- the file comes and goes ---- */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
/* A handler that was installed after ours (Python's faulthandler.enable() is one) raises the signal again for us, and what it was
 * about is lost. It was about the file if the file's pages cannot be had; where the kernel does not tell, it is taken to be. The
 * access happens again in any case: if it was another one, the signal comes back, and goes on. */
static int is_repeated(const siginfo_t *info) {
    if (info->si_code > 0 || info->si_pid != getpid() || !atomic_load(&trace)) return 0;
    return madvise(mapped, sizeof(Trace), MADV_POPULATE_WRITE) != 0;
}
/* The file was cut short: give the program memory instead, and say no more. Any other SIGBUS goes where it would have gone. */
static void on_bus(int signal_number, siginfo_t *info, void *machine) {
    char *at = info->si_addr, *base = (char *)mapped;
    int kept_errno = errno, is_ours = info->si_code > 0 && base && at >= base && at < base + sizeof(Trace);
    if (is_ours || is_repeated(info)) {
        atomic_store(&trace, NULL);
        mmap(base, sizeof(Trace), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        errno = kept_errno;
    } else if (bus_before.sa_flags & SA_SIGINFO) {
        bus_before.sa_sigaction(signal_number, info, machine);
    } else if (bus_before.sa_handler != SIG_DFL && bus_before.sa_handler != SIG_IGN) {
        bus_before.sa_handler(signal_number);
    } else if (bus_before.sa_handler == SIG_IGN && info->si_code <= 0) { /* sent, not met: it would have been ignored */
    } else {
        signal(SIGBUS, SIG_DFL); /* the access happens again and ends the process, as it would have */
        if (info->si_code <= 0) raise(SIGBUS);
    }
}
static void in_child(void) { atomic_store(&trace, NULL); }

static Trace *map_file(int file) {
    if (lseek(file, 0, SEEK_END) != (off_t)sizeof(Trace)) return NULL; /* nor is it a pipe or a device */
    /* All pages are had before the first is used: later, want of room would be a SIGBUS. */
    int refused = EINTR;
    for (int tries = 0; refused == EINTR && tries < 100; tries++) refused = posix_fallocate(file, 0, sizeof(Trace));
    if (refused) return NULL;
    Trace *t = mmap(NULL, sizeof(Trace), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return t == MAP_FAILED ? NULL : t;
}
static void open_once(void) {
    const char *path = getenv("ROBUST_NCCL_TRACE");
    int file = path && *path ? open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
    if (file < 0) return;
    Trace *t = map_file(file);
    close(file);
    if (!t) return;
    mapped = t;
    struct sigaction bus = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&bus.sa_mask);
    uint64_t unclaimed = 0;
    own_pid = (uint64_t)getpid();
    if (sigaction(SIGBUS, &bus, &bus_before) || pthread_atfork(NULL, NULL, in_child)) return;
    /* A program that the rank started inherits the variable: the file belongs to the first process that uses it. */
    if (LOAD(t->header.magic) != word(MAGIC) || LOAD(t->header.version) != VERSION) return;
    if (!SWAP_IF(t->header.pid, &unclaimed, own_pid)) return;
    const char *kernels = getenv("ROBUST_NCCL_TRACE_KERNELS");
    STORE(t->header.mask, COLL | P2P | PROXY_OP | PROXY_STEP | (kernels && *kernels == '1' ? KERNEL : 0));
    STORE(t->header.started, now_ns());
    atomic_store(&trace, t);
}

/* What pthread_once and fstat do would ask for a new glibc where the plugin was compiled with one (2.34): the wheel's runs with 2.17.
 * A child that was forked in the middle does not wait for a thread that it does not have. */
static void open_first(void) {
    int state = 0;
    if (atomic_compare_exchange_strong(&opening, &state, 1)) {
        open_once();
        atomic_store(&opening, 2);
    }
    for (int tries = 0; tries < 100000 && atomic_load(&opening) == 1; tries++) sched_yield();
}

/* ---- communicators ---- */
/* No communicator uses the rows any more: a program that makes its communicators anew for ever must not run out of them. */
static void forget_flows(Trace *t) {
    for (int i = 0; i < HASH; i++) STORE(hash_flow[i], 0);
    for (int i = 0; i < FLOWS; i++) STORE(flow_key[i], 0);
    uint64_t used = LOAD(t->header.flows);
    STORE(t->header.flows, 0);
    memset(t->flows, 0, (used < FLOWS ? used : FLOWS) * sizeof(Flow));
}
static Comm *claim_comm(Trace *t, uint64_t *serial) {
    for (int i = 0; i < COMMS; i++) {
        *serial = (ADD(comm_serial, 1) + 1) & 0xffffff;
        Comm *comm = &t->comms[*serial % COMMS];
        uint64_t before = LOAD(comm->serial);
        if (*serial && (!before || LOAD(comm->closed)) && SWAP_IF(comm->serial, &before, 0)) return comm;
    }
    ADD(t->header.dropped, 1);
    return NULL;
}
static int init_any(void **context, int *mask, Api api, uint64_t hash, const char *name, int nodes, int ranks, int rank) {
    if (context) *context = NULL;
    if (mask) *mask = 0;
    open_first();
    Trace *t = atomic_load(&trace);
    if (!t || !context || !mask) return 0;
    *mask = (int)LOAD(t->header.mask);
    STORE(t->header.api, api);
    if (!ADD(live_comms, 1) && LOAD(t->header.flows) > FLOWS / 2) forget_flows(t);
    uint64_t serial;
    Comm *comm = claim_comm(t, &serial);
    if (!comm) {
        ADD(live_comms, -1);
        return 0;
    }
    STORE(comm->hash, hash);
    STORE(comm->ranks, ranks < 0 ? 0 : (int64_t)ranks + 1);
    STORE(comm->rank, rank < 0 ? 0 : (int64_t)rank + 1);
    STORE(comm->nodes, nodes < 0 ? 0 : (int64_t)nodes + 1);
    store_text(comm->name, NAME_BYTES, name);
    STORE(comm->p2ps, 0);
    STORE(t->header.thread[comm - t->comms], 0);
    STORE(comm->opened, now_ns());
    STORE(comm->closed, 0);
    PUBLISH(comm->serial, serial);
    ADD(t->header.comms, 1);
    *context = to_handle(COMM_KIND, serial);
    return 0;
}
static int finalize(void *context) {
    Trace *t = atomic_load(&trace);
    Comm *comm = t ? comm_of(t, context) : NULL;
    uint64_t open = 0;
    if (comm && SWAP_IF(comm->closed, &open, now_ns())) ADD(live_comms, -1);
    return 0;
}

/* ---- collectives and point-to-point calls: a ring ---- */
/* How a collective is carried out, as NCCL names it (RING, TREE, COLLNET_DIRECT, NVLS...): above the kind, see layout.py. */
static uint64_t algorithm_of(const char *name) {
    if (!name) return 0;
    return strcmp(name, "RING") == 0 ? 1 : strcmp(name, "TREE") == 0 ? 2 : 3;
}
static void *start_task(Trace *t, Comm *comm, uint64_t type, const char *event, Api api) {
    if (!comm) return stale(t);
    const char *body = event + (api == V3 ? V3_BODY_AT : BODY_AT), *call = type == COLL ? body + 8 : body;
    if (api == V3 && !LOAD(comm->hash)) { /* init of v3 told nothing */
        store_text(comm->name, NAME_BYTES, (const char *)word(event + BODY_AT));
        STORE(comm->hash, word(event + BODY_AT + 8));
        STORE(comm->rank, (int64_t)number(event + RANK_AT) + 1);
    }
    uint64_t place = ADD(t->header.ops, 1);
    Op *op = &t->ops[place % OPS];
    PUBLISH(op->number, 0);
    atomic_thread_fence(memory_order_release);
    for (Cell *cell = &op->comm; cell < &op->func[0]; cell++) STORE(*cell, 0);
    STORE(op->comm, LOAD(comm->serial));
    STORE(op->kind, type | (type == COLL ? algorithm_of((const char *)word(call + 56)) << 8 : 0));
    STORE(op->seq, type == COLL ? word(body) : ADD(comm->p2ps, 1)); /* NCCL does not number the calls of the second kind */
    store_text(op->func, WORD_BYTES, (const char *)word(call));
    STORE(op->count, word(call + 24));
    store_text(op->type, WORD_BYTES, (const char *)word(call + (type == COLL ? 40 : 16)));
    STORE(op->peer, (int64_t)number(call + 32));
    uint64_t now = now_ns();
    STORE(op->started, now);
    touch(t, now);
    PUBLISH(op->number, place + 1);
    return to_handle(TASK_KIND, place);
}
static void stop_task(Trace *t, const void *handle) {
    Op *op = task_of(t, handle);
    uint64_t open = 0;
    if (!op || !SWAP_IF(op->stopped, &open, now_ns())) stale(t);
}

/* The kernel of one channel; NCCL tells of it only if asked (ROBUST_NCCL_TRACE_KERNELS=1), for it slows small messages. */
static void *start_kernel(Trace *t, const void *parent) {
    Op *op = kind_of(parent) == TASK_KIND ? task_of(t, parent) : NULL;
    if (!op) return parent ? stale(t) : NULL;
    uint64_t first = 0;
    SWAP_IF(op->kernel_first, &first, now_ns());
    return to_handle(KERNEL_KIND, rest_of(parent));
}
static void stop_kernel(Trace *t, const void *handle) {
    Op *op = task_of(t, handle);
    if (op) STORE(op->kernel_last, now_ns());
    else stale(t);
}

/* ---- flows: rows in the order of their first use, found by a hash that only this process has ---- */
static uint64_t take_row(Trace *t, uint64_t key, uint64_t origin) {
    uint64_t index = ADD(t->header.flows, 1);
    if (index >= FLOWS) return 0;
    STORE(flow_key[index], key);
    STORE(flow_origin[index], origin);
    return index + 1;
}
/* A row is taken before its place in the hash is claimed, so no thread waits; the loser of a race leaves its row empty. */
static Flow *flow_of(Trace *t, uint64_t key, uint64_t origin, uint64_t *index) {
    uint64_t place = (key ^ origin << 7) * 0x9e3779b97f4a7c15u >> 32, taken = 0;
    for (int i = 0; i < PROBES; i++, place++) {
        uint64_t found = atomic_load_explicit(&hash_flow[place % HASH], memory_order_acquire);
        if (!found && !taken && !(taken = take_row(t, key, origin))) return NULL;
        if (!found && SWAP_IF(hash_flow[place % HASH], &found, taken)) {
            *index = taken - 1;
            STORE(t->flows[*index].origin, origin);
            PUBLISH(t->flows[*index].key, key);
            return &t->flows[*index];
        }
        *index = found - 1;
        if (LOAD(flow_key[*index]) == key && LOAD(flow_origin[*index]) == origin) return &t->flows[*index];
    }
    return NULL;
}

/* ---- steps: each climbs started, posted, gpu_ready, transmitted, done; a flow counts how many reached each rung ---- */
/* Adds up where steps have spent their time since the flow was last weighed. Within a tick nothing passes, so most events only
 * compare two numbers; of two threads one does it. */
static void weigh(Flow *flow, uint64_t now) {
    uint64_t last = LOAD(flow->weighed);
    if (now <= last || !SWAP_IF(flow->weighed, &last, now) || !last) return;
    uint64_t level[4];
    for (int rung = 0; rung < 4; rung++) level[rung] = LOAD(flow->level[rung]);
    for (int rung = 0; rung < 3; rung++)
        if (level[rung] > level[rung + 1]) ADD(flow->spent[rung], (level[rung] - level[rung + 1]) * (now - last));
    if (level[TRANSMITTED - 1] > level[DONE - 1]) ADD(flow->working, now - last);
}
/* NCCL repeats states while it polls, leaves some out (v3 has no SEND_PEER_WAIT) and ends operations early: a step counts once on
 * every rung up to the one it is on, whether or not those in between came. */
static void climb(Trace *t, Proxy *proxy, Cell *cell, uint64_t seen, enum Level level) {
    Flow *flow = &t->flows[LOAD(proxy->flow)];
    uint64_t from = seen & 0xff;
    if (from >= level || LOAD(flow_key[LOAD(proxy->flow)]) != LOAD(proxy->key)) return;
    if (!SWAP_IF(*cell, &seen, (seen & ~(uint64_t)0xff) | level)) return; /* another thread moved the same step */
    uint64_t now = tick_ns();
    weigh(flow, now);
    for (uint64_t rung = from; rung < level; rung++) {
        STORE(flow->level_at[rung], now);
        atomic_fetch_add_explicit(&flow->level[rung], 1, memory_order_release);
    }
    touch(t, now);
}
static Cell *step_of(Trace *t, const void *handle, Proxy **proxy, uint64_t *seen) {
    uint64_t step = rest_of(handle) >> STEP_SHIFT;
    *proxy = proxy_of(handle);
    Cell *cell = *proxy ? &(*proxy)->step[step % CELLS] : NULL;
    *seen = cell ? LOAD(*cell) : 0;
    return cell && *seen && (((*seen >> 8) - 1) & STEP_MASK) == step ? cell : stale(t);
}
/* This operation is the one that its flow is in now. */
static void begin(Trace *t, Proxy *proxy, uint64_t now) {
    Flow *flow = &t->flows[LOAD(proxy->flow)];
    Op *op = task_of(t, to_handle(TASK_KIND, LOAD(proxy->task) - 1));
    uint64_t waiting = 0;
    if (!SWAP_IF(proxy->begun, &waiting, 1)) return;
    STORE(flow->op, LOAD(proxy->task));
    STORE(flow->seq, LOAD(proxy->task) && op ? LOAD(op->seq) : 0);
    STORE(flow->op_base, LOAD(flow->level[DONE - 1]));
    STORE(flow->op_steps, LOAD(proxy->steps));
    STORE(flow->op_at, now);
}
static void *start_step(Trace *t, const void *parent, const char *event) {
    Proxy *proxy = kind_of(parent) == PROXY_KIND ? proxy_of(parent) : NULL;
    if (!proxy) return parent ? stale(t) : NULL;
    uint64_t step = (uint32_t)number(event + BODY_AT), cell_value = (step + 1) << 8;
    Cell *cell = &proxy->step[step % CELLS];
    uint64_t seen = LOAD(*cell);
    if (!LOAD(proxy->begun)) begin(t, proxy, now_ns());
    if (seen >> 8 != step + 1) { /* else NCCL tries again to post the same step */
        if (seen) climb(t, proxy, cell, seen, DONE);
        STORE(*cell, cell_value);
    }
    return to_handle(STEP_KIND, (rest_of(parent) & (((uint64_t)1 << STEP_SHIFT) - 1)) | (step & STEP_MASK) << STEP_SHIFT);
}
static void step_state(Trace *t, const void *handle, int state, const char *about) {
    static const uint8_t levels[] = {
        [SEND_GPU_WAIT] = POSTED, [SEND_PEER_WAIT] = GPU_READY, [SEND_WAIT] = TRANSMITTED,
        [RECV_WAIT] = POSTED, [RECV_FLUSH_WAIT] = GPU_READY, [RECV_GPU_WAIT] = TRANSMITTED};
    Proxy *proxy;
    uint64_t seen;
    Cell *cell = step_of(t, handle, &proxy, &seen);
    enum Level level = state > 0 && state < (int)sizeof levels ? levels[state] : STARTED;
    if (level == STARTED) ADD(t->header.unknown, 1);
    if (!cell || level == STARTED || (seen & 0xff) >= level) return;
    if (about && (state == SEND_WAIT || state == RECV_FLUSH_WAIT)) {
        ADD(t->flows[LOAD(proxy->flow)].bytes, word(about));
        ADD(proxy->bytes, word(about));
    }
    climb(t, proxy, cell, seen, level);
}
static void stop_step(Trace *t, const void *handle) {
    Proxy *proxy;
    uint64_t seen;
    Cell *cell = step_of(t, handle, &proxy, &seen);
    if (cell && (seen & 0xff) == DONE) stale(t);
    else if (cell) climb(t, proxy, cell, seen, DONE);
}

/* ---- proxy operations: the part of one operation in one flow ---- */
/* NCCL starts and ends them in a proxy thread, which polls without a pause as long as it has one. What it has not run meanwhile,
 * it was kept from: stopped, asleep, or without a CPU. `change`: of those that this thread has. (libc may allocate these 32 bytes,
 * once for each thread: the only exception. A static place for them might not be free, and the plugin could not be loaded then.) */
static __thread uint64_t thread_has, thread_wall, thread_cpu, thread_id;
static void account(Trace *t, uint64_t now, int change) {
    uint64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    if (thread_has) {
        ADD(t->header.busy, now - thread_wall);
        ADD(t->header.ran, cpu - thread_cpu);
    }
    thread_wall = now;
    thread_cpu = cpu;
    if (change > 0 || thread_has) thread_has += (uint64_t)(int64_t)change;
}
/* Ends an operation and all of its steps that NCCL left open, so that the flow's counters are equal again. */
static int end_proxy(Trace *t, Proxy *proxy, uint64_t owner) {
    Flow *flow = &t->flows[LOAD(proxy->flow)];
    Op *op = task_of(t, to_handle(TASK_KIND, LOAD(proxy->task) - 1));
    uint64_t sending = LOAD(proxy->key) & 1, bytes = LOAD(proxy->bytes);
    for (int i = 0; i < CELLS; i++) {
        uint64_t seen = LOAD(proxy->step[i]);
        if (seen & 0xff) climb(t, proxy, &proxy->step[i], seen, DONE);
    }
    int same_flow = LOAD(flow_key[LOAD(proxy->flow)]) == LOAD(proxy->key), in_ring = LOAD(proxy->task) && op;
    if ((owner & STATE_MASK) != IN_USE || !SWAP_IF(proxy->owner, &owner, owner - IN_USE + FREE)) return 0;
    uint64_t now = now_ns();
    if (same_flow) ADD(flow->closed, 1);
    if (in_ring) {
        ADD(*(sending ? &op->sent : &op->received), bytes);
        STORE(op->proxy_last, now);
        ADD(op->closed, 1);
    }
    touch(t, now);
    return 1;
}
static void stop_proxy(Trace *t, const void *handle) {
    Proxy *proxy = proxy_of(handle);
    uint64_t owner = proxy ? LOAD(proxy->owner) : 0;
    int same = proxy && (uint32_t)(owner >> 2) == (uint32_t)(rest_of(handle) / PROXIES); /* still, for both were loaded apart */
    if (!same || !end_proxy(t, proxy, owner)) stale(t);
    else account(t, now_ns(), -1);
}
/* A free place, or that of the oldest one near: NCCL may forget to stop those of a communicator that it aborts. */
static Proxy *claim_proxy(Trace *t, uint64_t *index, uint64_t *generation) {
    uint64_t owner = 0;
    for (int i = 0; i < PROBES; i++) {
        *index = ADD(proxy_cursor, 1) % PROXIES;
        owner = LOAD(proxies[*index].owner);
        if ((owner & STATE_MASK) == FREE) break;
    }
    if ((owner & STATE_MASK) == IN_USE) {
        ADD(t->header.dropped, 1);
        end_proxy(t, &proxies[*index], owner);
        owner = LOAD(proxies[*index].owner);
    }
    *generation = (owner >> 2) + 1;
    int is_free = (owner & STATE_MASK) == FREE;
    return is_free && SWAP_IF(proxies[*index].owner, &owner, *generation << 2 | FILLED) ? &proxies[*index] : NULL;
}
static void *start_proxy(Trace *t, const Comm *comm, const void *parent, const char *event) {
    const char *body = event + BODY_AT;
    uint64_t pid = (uint32_t)number(body), foreign = pid != own_pid, index, row, generation;
    if (foreign) ADD(t->header.foreign, 1); /* works for a process beside (PXN): its context and parent mean nothing here */
    if (!foreign && !comm) return stale(t);
    uint64_t serial = foreign ? pid & 0xffffff : LOAD(comm->serial), channel = (uint8_t)body[4];
    uint64_t key = (uint64_t)1 << 63 | foreign << 62 | serial << 34 | channel << 26 |
                   ((uint64_t)(uint32_t)number(body + 8) & 0xffffff) << 2 | (number(body + 20) != 0);
    uint64_t origin = (uint64_t)(uint32_t)number(event + RANK_AT) << 32 | (foreign ? pid : 0);
    Flow *flow = flow_of(t, key, origin, &row);
    Proxy *proxy = flow ? claim_proxy(t, &index, &generation) : NULL;
    if (!proxy) {
        ADD(t->header.dropped, 1);
        return NULL;
    }
    Op *op = !foreign && kind_of(parent) == TASK_KIND ? task_of(t, parent) : NULL;
    if (!foreign && parent && !op) stale(t);
    int32_t steps = number(body + 12);
    uint64_t now = now_ns(), first = 0;
    STORE(proxy->flow, row);
    STORE(proxy->key, key);
    STORE(proxy->task, op ? rest_of(parent) + 1 : 0);
    STORE(proxy->steps, steps > 0 ? steps : 0);
    STORE(proxy->begun, 0);
    STORE(proxy->bytes, 0);
    for (int i = 0; i < CELLS; i++) STORE(proxy->step[i], 0);
    PUBLISH(proxy->owner, generation << 2 | IN_USE);
    ADD(flow->steps, steps > 0 ? steps : 0);
    if (op) {
        SWAP_IF(op->proxy_first, &first, now);
        ADD(op->opened, 1);
    }
    if (ADD(flow->opened, 1) == LOAD(flow->closed)) begin(t, proxy, now);
    if (!thread_id) thread_id = (uint64_t)syscall(SYS_gettid);
    if (!foreign) STORE(t->header.thread[comm - t->comms], thread_id);
    account(t, now, 1);
    touch(t, now);
    return to_handle(PROXY_KIND, (generation & 0xffffffff) * PROXIES + index);
}

/* ---- the interface ---- */
static int start_any(void *context, void **handle, const char *event, Api api) {
    if (handle) *handle = NULL;
    Trace *t = atomic_load_explicit(&trace, memory_order_acquire);
    if (!t || !handle || !event) return 0;
    uint64_t type = api >= V5 ? word(event) : (uint8_t)event[0]; /* before v5 one byte, the rest is padding */
    const void *parent = (const void *)(uintptr_t)word(event + PARENT_AT);
    if (type == PROXY_STEP) *handle = start_step(t, parent, event);
    else if (type == PROXY_OP) *handle = start_proxy(t, comm_of(t, context), parent, event);
    else if (type == COLL || type == P2P) *handle = start_task(t, comm_of(t, context), type, event, api);
    else if (type == KERNEL) *handle = start_kernel(t, parent);
    else if (!type || type > LAST_KNOWN || type & (type - 1)) ADD(t->header.unknown, 1);
    return 0; /* NCCL tells of calls and groups unasked, too */
}
static int stop_any(void *handle) {
    Trace *t = atomic_load_explicit(&trace, memory_order_acquire);
    if (!t || !handle) return 0;
    enum Kind kind = kind_of(handle);
    if (kind == STEP_KIND) stop_step(t, handle);
    else if (kind == TASK_KIND) stop_task(t, handle);
    else if (kind == KERNEL_KIND) stop_kernel(t, handle);
    else if (kind == PROXY_KIND) stop_proxy(t, handle);
    else stale(t);
    return 0;
}
static int state_any(void *handle, int state, void *about) {
    Trace *t = atomic_load_explicit(&trace, memory_order_acquire);
    if (t && handle && kind_of(handle) == STEP_KIND) step_state(t, handle, state, about);
    return 0;
}
typedef void *Log; /* NCCL's logger: not used */
static int init_v3(void **context, int *mask) { return init_any(context, mask, V3, 0, NULL, -1, -1, -1); }
static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank, Log log) {
    (void)log;
    return init_any(context, mask, V4, hash, name, nodes, ranks, rank);
}
static int init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, Log log) {
    (void)log;
    return init_any(context, mask, V5, hash, name, nodes, ranks, rank);
}
static int init_v6(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, Log log) {
    (void)log;
    return init_any(context, mask, V6, hash, name, nodes, ranks, rank);
}
static int start_v3(void *context, void **handle, void *event) { return start_any(context, handle, event, V3); }
static int start_v4(void *context, void **handle, void *event) { return start_any(context, handle, event, V4); }
static int start_v5(void *context, void **handle, void *event) { return start_any(context, handle, event, V5); }

typedef struct {
    const char *name;
    void *init; /* differs by version */
    int (*start)(void *, void **, void *);
    int (*stop)(void *);
    int (*state)(void *, int, void *);
    int (*finalize)(void *);
} Table;
EXPORT const Table ncclProfiler_v3 = {"robust-run", (void *)init_v3, start_v3, stop_any, state_any, finalize};
EXPORT const Table ncclProfiler_v4 = {"robust-run", (void *)init_v4, start_v4, stop_any, state_any, finalize};
EXPORT const Table ncclProfiler_v5 = {"robust-run", (void *)init_v5, start_v5, stop_any, state_any, finalize};
EXPORT const Table ncclProfiler_v6 = {"robust-run", (void *)init_v6, start_v5, stop_any, state_any, finalize};
