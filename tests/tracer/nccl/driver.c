/* Plays events to the plugin as NCCL would, through any version of the interface, without NCCL and without a GPU.
 *
 *     driver PLUGIN VERSION      reads commands from standard input, one a line
 *
 * Handles and communicators are named by small numbers; numbers may be written as in C. The structures below are those of NCCL's
 * interface, declared here once more and independently of the plugin, so that a wrong offset in one of the two is seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROXY_OP_FIELDS struct { int pid; uint8_t channel; int peer, steps, chunk, sends; } proxy_op
#define COLL_FIELDS uint64_t seq; const char *func; const void *from; void *to; size_t count; int root; const char *type; \
    uint8_t channels, warps; const char *algorithm, *protocol
#define P2P_FIELDS const char *func; void *buffer; const char *type; size_t count; int peer
typedef struct { /* v3: the type is one byte; name and hash come with each operation */
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct { const char *name; uint64_t hash; COLL_FIELDS; } coll;
        struct { const char *name; uint64_t hash; P2P_FIELDS; } p2p;
        PROXY_OP_FIELDS;
        int step;
    };
} V3;
typedef struct {
    uint8_t type;
    void *parent;
    int rank;
    union { struct { COLL_FIELDS; } coll; struct { P2P_FIELDS; } p2p; PROXY_OP_FIELDS; int step; };
} V4;
typedef struct { /* v5, v6 */
    uint64_t type;
    void *parent;
    int rank;
    union { struct { COLL_FIELDS; } coll; struct { P2P_FIELDS; } p2p; PROXY_OP_FIELDS; int step; };
} V5;
typedef union { V3 v3; V4 v4; V5 v5; char room[256]; } Event;
typedef struct {
    const char *name;
    void *init;
    int (*start)(void *, void **, void *), (*stop)(void *), (*state)(void *, int, void *), (*finalize)(void *);
} Table;

enum { COMMS = 1024, HANDLES = 65536, WORDS = 12 };
static const Table *table;
static int version, mask;
static void *comms[COMMS], *handles[HANDLES];
static char names[COMMS][128];
static uint64_t hashes[COMMS];
static int ranks[COMMS];

static void expect(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "driver: %s\n", what);
    exit(3);
}
/* The padding that the interface leaves undefined is filled with rubbish. */
static void fill(Event *event, uint64_t type, void *parent, int rank) {
    memset(event, 0xee, sizeof *event);
    if (version == 3) event->v3.type = (uint8_t)type, event->v3.parent = parent, event->v3.rank = rank;
    else if (version == 4) event->v4.type = (uint8_t)type, event->v4.parent = parent, event->v4.rank = rank;
    else event->v5.type = type, event->v5.parent = parent, event->v5.rank = rank;
}
static void *start(int comm, Event *event) {
    void *handle = (void *)0x5555; /* the plugin must set it in any case */
    expect(!table->start(comms[comm], &handle, event), "start failed");
    return handle;
}
#define SET(event, field, value) \
    (version == 3 ? (void)((event).v3.field = (value)) : version == 4 ? (void)((event).v4.field = (value)) : (void)((event).v5.field = (value)))

static void make_comm(int comm, const char *name, uint64_t hash, int nodes, int count, int rank) {
    snprintf(names[comm], sizeof names[comm], "%s", name);
    hashes[comm] = hash;
    ranks[comm] = rank;
    int result = -1;
    if (version == 3) result = ((int (*)(void **, int *))table->init)(&comms[comm], &mask);
    else if (version == 4)
        result = ((int (*)(void **, int *, const char *, uint64_t, int, int, int, void *))table->init)(
            &comms[comm], &mask, names[comm], hash, nodes, count, rank, NULL);
    else
        result = ((int (*)(void **, uint64_t, int *, const char *, int, int, int, void *))table->init)(
            &comms[comm], hash, &mask, names[comm], nodes, count, rank, NULL);
    expect(!result, "init failed");
}
static void *coll(int comm, uint64_t seq, const char *func, size_t count, const char *type, int root, const char *algorithm) {
    Event event;
    fill(&event, 2, NULL, ranks[comm]);
    if (version == 3) event.v3.coll.name = names[comm], event.v3.coll.hash = hashes[comm];
    SET(event, coll.seq, seq), SET(event, coll.func, func), SET(event, coll.count, count);
    SET(event, coll.type, type), SET(event, coll.root, root);
    SET(event, coll.algorithm, strcmp(algorithm, "0") ? algorithm : NULL);
    return start(comm, &event);
}
static void *p2p(int comm, const char *func, size_t count, const char *type, int peer) {
    Event event;
    fill(&event, 4, NULL, ranks[comm]);
    if (version == 3) event.v3.p2p.name = names[comm], event.v3.p2p.hash = hashes[comm];
    SET(event, p2p.func, func), SET(event, p2p.count, count), SET(event, p2p.type, type), SET(event, p2p.peer, peer);
    return start(comm, &event);
}
static void *proxy_op(int comm, void *parent, int pid, int channel, int peer, int steps, int sends) {
    Event event;
    fill(&event, 8, parent, ranks[comm]);
    SET(event, proxy_op.pid, pid ? pid : getpid()), SET(event, proxy_op.channel, (uint8_t)channel);
    SET(event, proxy_op.peer, peer), SET(event, proxy_op.steps, steps), SET(event, proxy_op.sends, sends);
    SET(event, proxy_op.chunk, 1 << 17);
    return start(comm, &event);
}
static void *bare(int comm, uint64_t type, void *parent, int step) {
    Event event;
    fill(&event, type, parent, ranks[comm]);
    SET(event, step, step);
    return start(comm, &event);
}
static void state(void *handle, int value, long bytes) {
    size_t about[2] = {(size_t)bytes, 0};
    expect(!table->state(handle, value, bytes < 0 ? NULL : about), "state failed");
}
static void whole_step(int comm, void *op, int step, int sends) {
    static const int climb[2][3] = {{10, 11, 12}, {8, 20, 9}};
    void *handle = bare(comm, 16, op, step);
    for (int i = 0; i < 3; i++) state(handle, climb[sends][i], 1024);
    table->stop(handle);
}

/* Threads: each plays `rounds` collectives of 16 steps, in flows of its own or all in one. */
typedef struct { int number, rounds, shared; } Work;
static void *play(void *argument) {
    Work *work = argument;
    for (int round = 0; round < work->rounds; round++) {
        void *task = coll(0, (uint64_t)round, "AllReduce", 64, "ncclFloat32", 0, "0");
        void *op = proxy_op(0, task, 0, work->shared ? 0 : work->number, 1, 16, 1);
        table->stop(task);
        for (int step = 0; step < 16; step++) whole_step(0, op, step, 1);
        table->stop(op);
    }
    return NULL;
}
/* All threads play the same handles at once, and wrong ones: nothing may happen that the counters' order forbids. */
static void *fight(void *argument) {
    Work *work = argument;
    unsigned seed = (unsigned)work->number;
    for (int round = 0; round < work->rounds; round++) {
        void *handle = __atomic_load_n(&handles[rand_r(&seed) % 64], __ATOMIC_RELAXED), *made = NULL;
        switch (rand_r(&seed) % 8) {
            case 0: made = coll(0, 1, "Broadcast", 1, "ncclInt8", 0, "0"); break;
            case 1: made = proxy_op(0, handle, rand_r(&seed) % 4 ? 0 : 77, rand_r(&seed) % 4, 1, 8, 1); break;
            case 2: case 3: made = bare(0, 16, handle, rand_r(&seed) % 12); break;
            case 4: case 5: state(handle, rand_r(&seed) % 24, 1); break;
            case 6: table->stop(handle); break;
            default: made = (void *)((uintptr_t)handle ^ (uintptr_t)1 << rand_r(&seed) % 64);
        }
        if (made) __atomic_store_n(&handles[rand_r(&seed) % 64], made, __ATOMIC_RELAXED);
    }
    return NULL;
}
static void threads(void *(*body)(void *), int count, int rounds, int shared) {
    pthread_t ids[64];
    Work work[64];
    for (int i = 0; i < count && i < 64; i++) {
        work[i] = (Work){i, rounds, shared};
        expect(!pthread_create(&ids[i], NULL, body, &work[i]), "no thread");
    }
    for (int i = 0; i < count && i < 64; i++) pthread_join(ids[i], NULL);
}
static uint64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}
/* Prints nanoseconds per step (start, three states, stop), the best of ten runs; and of one with nothing to call. */
static void bench(int steps) {
    double best = 1e9, hollow = 1e9;
    for (int run = 0; run < 10; run++) {
        void *op = proxy_op(0, NULL, 0, 0, 1, steps, 1);
        uint64_t from = now_ns();
        for (int i = 0; i < steps; i++) whole_step(0, op, i, 1);
        double each = (double)(now_ns() - from) / steps;
        best = each < best ? each : best;
        table->stop(op);
        from = now_ns();
        for (int i = 0; i < steps; i++) {
            Event event;
            fill(&event, 16, op, 0);
            SET(event, step, i);
            __asm__ volatile("" : : "r"(&event) : "memory");
        }
        each = (double)(now_ns() - from) / steps;
        hollow = each < hollow ? each : hollow;
    }
    printf("%.1f %.1f\n", best, hollow);
}
/* A child of a fork is another process: it may call, and nothing may come of it. */
static void in_fork(void) {
    pid_t child = fork();
    int status = 0;
    if (!child) {
        play(&(Work){0, 100, 0});
        make_comm(1, "child", 1, 1, 1, 0);
        whole_step(0, handles[1], 9, 1);
        _exit(mask ? 4 : 0);
    }
    expect(waitpid(child, &status, 0) == child && status == 0, "the child of a fork came to grief");
}
static void print_layout(void *library) {
    const uint64_t *at = dlsym(library, "robust_nccl_layout");
    for (; at && *at; at++) printf("%llu ", (unsigned long long)*at);
    puts("");
}

static int run(char **words, void *library) {
#define N(i) strtoll(words[i], NULL, 0)
#define U(i) strtoull(words[i], NULL, 0)
#define HANDLE(i) handles[N(i) % HANDLES]
#define IS(name) !strcmp(words[0], name)
    if (IS("comm")) make_comm((int)N(1), words[2], U(3), (int)N(4), (int)N(5), (int)N(6));
    else if (IS("finalize")) table->finalize(comms[N(1)]);
    else if (IS("coll")) HANDLE(2) = coll((int)N(1), U(3), words[4], U(5), words[6], (int)N(7), words[8]);
    else if (IS("p2p")) HANDLE(2) = p2p((int)N(1), words[3], U(4), words[5], (int)N(6));
    else if (IS("op")) HANDLE(2) = proxy_op((int)N(1), HANDLE(3), (int)N(4), (int)N(5), (int)N(6), (int)N(7), (int)N(8));
    else if (IS("step")) HANDLE(2) = bare((int)N(1), 16, HANDLE(3), (int)N(4));
    else if (IS("steps")) for (int i = (int)N(3); i < N(4); i++) whole_step((int)N(1), HANDLE(2), i, (int)N(5));
    else if (IS("event")) HANDLE(2) = bare((int)N(1), U(4), HANDLE(3), 0);
    else if (IS("state")) state(HANDLE(1), (int)N(2), N(3));
    else if (IS("stop")) table->stop(HANDLE(1));
    else if (IS("raw")) HANDLE(1) = (void *)(uintptr_t)U(2);
    else if (IS("context")) comms[N(1)] = (void *)(uintptr_t)U(2);
    else if (IS("show")) printf("%d\n", HANDLE(1) != NULL);
    else if (IS("mask")) printf("%d\n", mask);
    else if (IS("play")) threads(play, (int)N(1), (int)N(2), (int)N(3));
    else if (IS("fight")) threads(fight, (int)N(1), (int)N(2), 0);
    else if (IS("fork")) in_fork();
    else if (IS("bench")) bench((int)N(1));
    else if (IS("layout")) print_layout(library);
    else if (IS("null")) table->stop(NULL), table->state(NULL, 8, NULL), table->finalize(NULL), table->start(NULL, NULL, NULL);
    else if (IS("unload")) dlclose(library);
    else if (IS("bus")) raise(SIGBUS);
    else if (IS("kill")) raise(SIGKILL);
    else if (IS("sync")) puts("ok");
    else return 0;
    return 1;
}

int main(int count, char **arguments) {
    expect(count == 3, "usage: driver PLUGIN VERSION");
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    expect(library != NULL, dlerror());
    char symbol[32], line[1024];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%s", arguments[2]);
    version = atoi(arguments[2]);
    table = dlsym(library, symbol);
    expect(table != NULL, "no such version");
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char *words[WORDS] = {"", "0", "0", "0", "0", "0", "0", "0", "0", "0", "0", "0"}, *rest = line;
        for (int i = 0; i < WORDS; i++) {
            char *next = strtok_r(rest, " \n", &rest);
            if (!next) break;
            words[i] = next;
        }
        expect(!*words[0] || run(words, library), line);
    }
    return 0;
}
