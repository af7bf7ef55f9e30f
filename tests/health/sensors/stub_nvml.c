/* A stand-in for NVIDIA's libnvidia-ml.so.1 for tests: it shows the GPUs that a text file describes, read anew at every call.
 *
 * STUB_NVML_STATE names the file. Its lines: `KEY GPU VALUE`, or `KEY GPU LINK VALUE` for links; what is not named is 0.
 *     count 0 2        two GPUs               lost 1 1         GPU 1 is lost
 *     celsius 0 95     its temperature        throttle 0 64    why its clocks are low
 *     xid 0 79         an Xid event, told once for each change of the value
 *     ecc 0 3          uncorrectable errors   remapped 0 1  pending 0 1  failed 0 1
 *     width 0 8        PCIe lanes of 16       speed 0 3        PCIe generation of 5      busy 0 1
 *     down 0 2 1       NVLink 2 is down       errors 0 2 500   its CRC errors
 *     clock 0 1980     its clock in MHz       watts 0 600      its power
 *     nvlink 0 4096    KiB sent, and as many received, over all its NVLinks; without the line it does not tell
 *     hang 0 1         every call about a GPU waits until this line goes
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, TIMEOUT = 10, LOST = 15, MOST = 16, LINKS = 4 };

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned instance, compute;
} Event;

static int gpus[MOST];
static long told[MOST];

/* The value of a line, 0 where there is none. */
static long value(const char *key, int gpu, int link) {
    const char *path = getenv("STUB_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[128], name[32];
    long found = 0;
    if (!file) return strcmp(key, "count") ? 0 : 1;
    while (fgets(line, sizeof line, file)) {
        int first;
        long second, third;
        int fields = sscanf(line, "%31s %d %ld %ld", name, &first, &second, &third);
        if (fields < 3 || strcmp(name, key) || first != gpu) continue;
        if (link < 0) found = second;
        else if (fields == 4 && second == link) found = third;
    }
    fclose(file);
    return found;
}

static int gpu_of(void *device) { return (int)((int *)device - gpus); }

/* What any call about a GPU does first. */
static int reached(void *device) {
    while (value("hang", 0, -1)) usleep(10000);
    return value("lost", gpu_of(device), -1) ? LOST : SUCCESS;
}

#define ANSWER(device, target, what)        \
    do {                                    \
        int failure = reached(device);      \
        if (failure) return failure;        \
        *(target) = (what);                 \
        return SUCCESS;                     \
    } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "an error of the stub"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)value("count", 0, -1); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= MOST) return INVALID;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x3B + gpu_of(device));
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-%d", gpu_of(device));
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    (void)sensor;
    ANSWER(device, celsius, (unsigned)value("celsius", gpu_of(device), -1));
}

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    int failure = reached(device);
    if (failure) return failure;
    memory->total = 80ULL << 30;
    memory->used = (unsigned long long)value("gib", gpu_of(device), -1) << 30;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
    int failure = reached(device);
    if (failure) return failure;
    rates->gpu = (unsigned)value("percent", gpu_of(device), -1);
    rates->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperatureThreshold(void *device, int kind, unsigned *celsius) { (void)kind; (void)device; *celsius = 92; return SUCCESS; }

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    ANSWER(device, reasons, (unsigned long long)value("throttle", gpu_of(device), -1));
}

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
    (void)kind;
    ANSWER(device, mhz, (unsigned)value("clock", gpu_of(device), -1));
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    ANSWER(device, milliwatts, 1000 * (unsigned)value("watts", gpu_of(device), -1));
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, failure;
    unsigned long long value;
} Field;

int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
    int failure = reached(device);
    long moved = value("nvlink", gpu_of(device), -1);
    for (int at = 0; at < count && !failure; at++) {
        fields[at].failure = moved ? SUCCESS : UNSUPPORTED;
        fields[at].value = (unsigned long long)moved;
    }
    return failure;
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *count) {
    (void)counter;
    ANSWER(device, count, kind == 1 ? (unsigned long long)value("ecc", gpu_of(device), -1) : 0);
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    int state = reached(device);
    *correctable = 0;
    *uncorrectable = (unsigned)value("remapped", gpu_of(device), -1);
    *pending = (unsigned)value("pending", gpu_of(device), -1);
    *failed = (unsigned)value("failed", gpu_of(device), -1);
    return state;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width) {
    long now = value("width", gpu_of(device), -1);
    ANSWER(device, width, now ? (unsigned)now : 16);
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *width) { ANSWER(device, width, 16); }

int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *speed) {
    long now = value("speed", gpu_of(device), -1);
    ANSWER(device, speed, now ? (unsigned)now : 5);
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *speed) { ANSWER(device, speed, 5); }
int nvmlDeviceGetPerformanceState(void *device, int *state) { ANSWER(device, state, value("busy", gpu_of(device), -1) ? 0 : 8); }

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    if (link >= LINKS) return UNSUPPORTED;
    ANSWER(device, active, !value("down", gpu_of(device), (int)link));
}

int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, int kind, unsigned long long *count) {
    ANSWER(device, count, kind == 2 ? (unsigned long long)value("errors", gpu_of(device), (int)link) : 0);
}

int nvmlEventSetCreate(void **set) { *set = gpus; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set) { (void)device; (void)kinds; (void)set; return SUCCESS; }

int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
    (void)set;
    (void)milliseconds;
    for (int gpu = 0; gpu < MOST; gpu++) {
        long number = value("xid", gpu, -1);
        if (number == told[gpu]) continue;
        told[gpu] = number;
        if (!number) continue;
        memset(event, 0, sizeof *event);
        event->device = &gpus[gpu];
        event->type = 8; /* nvmlEventTypeXidCriticalError */
        event->data = (unsigned long long)number;
        return SUCCESS;
    }
    return TIMEOUT;
}
