/* A small libnvidia-ml.so.1 that the real pynvml loads: it answers as the text file named by NVML_STAND_IN says.

   A line is `KEY VALUE...` for the machine, `gpu N KEY VALUE...` for a GPU, `gpu N slice M KEY VALUE...` for one of
   its MIG slices; empty lines and lines from # on are skipped. A field that no line gives is NOT_SUPPORTED (3).

     init_error CODE            nvmlInit returns it
     driver 550.54.14           cuda 12040           nvml 12.550.54.14
     gpu N uuid|name|bus TEXT   `\x1b` in a text is that byte; a text is cut to the caller's buffer
     gpu N capability 6 1       gpu N memory TOTAL FREE [RESERVED] in bytes
     gpu N process compute|graphics PID|self BYTES|none [NAME]
     gpu N mig 1                its slices are listed where lines give them
     gpu N p2p M STATUS         may it read GPU M's memory? 0: yes
     gpu N temperature (°C), power, power_limit, power_default (mW), energy (mJ), clock_graphics|sm|memory|video (MHz),
           max_clock_graphics|sm|memory|video (MHz), cores, throttle (bits),
           ecc_corrected, ecc_uncorrected (since the driver was loaded), persistence, display,
           link_width, link_generation, max_link_width, max_link_generation
     [gpu N] error KEY CODE     the call for that field returns CODE; KEY `handle`, `count`, `processes_v3`,
                                `compute`, `graphics`, `process_name` too, and `all` for every call on that GPU;
                                `temperature_v` and `throttle_events` 13 are a driver without the newer call
     gpu N series KEY A B C     one value a call, then the last for ever; `!15` is an error. Single numbers only.

   For a CODE or a value in a series, `~60` is a call that hangs for 60 s and then fails. Threads may call at once, but
   for one GPU's series no two. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { NODES = 64, ENTRIES = 2048, MACHINE = -1, WHOLE = -1 };

struct node { int gpu, slice; };
struct entry { struct node node; char key[64]; char *value; unsigned calls; };

static struct entry entries[ENTRIES];
static struct node nodes[NODES];
static int entry_count, node_count, loaded;
static _Atomic int initialised;
static struct node machine = {MACHINE, WHOLE};

/* ---- the script ---- */

static void unescape(char *text) {
    char *to = text;
    for (char *from = text; *from; to++) {
        unsigned byte;
        if (from[0] == '\\' && from[1] == 'x' && sscanf(from + 2, "%2x", &byte) == 1) {
            *to = (char)byte;
            from += 4;
        } else
            *to = *from++;
    }
    *to = 0;
}

static char *word(char **rest) {
    char *start = *rest + strspn(*rest, " \t");
    char *end = start + strcspn(start, " \t");
    *rest = *end ? end + 1 : end;
    *end = 0;
    return start;
}

static struct node *node_of(int gpu, int slice) {
    for (int i = 0; i < node_count; i++)
        if (nodes[i].gpu == gpu && nodes[i].slice == slice) return &nodes[i];
    if (node_count == NODES) return NULL;
    nodes[node_count] = (struct node){gpu, slice};
    return &nodes[node_count++];
}

static void parse(char *line) {
    line[strcspn(line, "\r\n")] = 0;
    struct entry *entry = &entries[entry_count];
    struct node node = machine;
    char *rest = line, *key = word(&rest);
    if (!*key || *key == '#' || entry_count == ENTRIES) return;
    if (!strcmp(key, "gpu")) {
        node.gpu = atoi(word(&rest));
        key = word(&rest);
        if (!strcmp(key, "slice")) {
            node.slice = atoi(word(&rest));
            key = word(&rest);
        }
        node_of(node.gpu, node.slice);
    }
    entry->node = node;
    if (!strcmp(key, "error") || !strcmp(key, "series"))
        snprintf(entry->key, sizeof entry->key, "%s %s", key, word(&rest));
    else
        snprintf(entry->key, sizeof entry->key, "%s", key);
    entry->value = strdup(rest + strspn(rest, " \t"));
    unescape(entry->value);
    entry_count++;
}

/* With the library, and so once, whatever threads come later. */
__attribute__((constructor)) static void load(void) {
    const char *path = getenv("NVML_STAND_IN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char *line = NULL;
    size_t size = 0;
    if (!file) return;
    while (getline(&line, &size, file) >= 0) parse(line);
    free(line);
    fclose(file);
    loaded = 1;
}

static struct entry *find(const struct node *node, const char *kind, const char *key) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "%s%s", kind, key);
    for (int i = 0; i < entry_count; i++) {
        struct entry *entry = &entries[i];
        if (entry->node.gpu == node->gpu && entry->node.slice == node->slice && !strcmp(entry->key, wanted))
            return entry;
    }
    return NULL;
}

/* ---- answers ---- */

static int failure(const char *code) {
    if (*code != '~') return atoi(code);
    sleep((unsigned)atoi(code + 1));
    return UNKNOWN;
}

static int fault(const struct node *node, const char *key) {
    if (!initialised) return UNINITIALIZED;
    if (!node) return INVALID_ARGUMENT;
    struct entry *error = find(node, "error ", key);
    if (!error && node->gpu != MACHINE) error = find(node, "error ", "all");
    return error ? failure(error->value) : OK;
}

/* The n-th word of the value as a number; with a series, its next. */
static int number(const struct node *node, const char *key, int n, unsigned long long *out) {
    int code = fault(node, key);
    if (code) return code;
    struct entry *series = find(node, "series ", key), *entry = series ? series : find(node, "", key);
    if (!entry) return NOT_SUPPORTED;
    char copy[4096], *rest = copy, *chosen = NULL;
    snprintf(copy, sizeof copy, "%s", entry->value);
    unsigned wanted = series ? series->calls++ : (unsigned)n;
    for (unsigned i = 0; i <= wanted; i++) {
        char *next = word(&rest);
        if (*next)
            chosen = next;
        else if (!series)
            return NOT_SUPPORTED;
        else
            break;
    }
    if (!chosen) return NOT_SUPPORTED;
    if (*chosen == '!') return failure(chosen + 1);
    if (*chosen == '~') return failure(chosen);
    *out = strtoull(chosen, NULL, 0);
    return OK;
}

static int unsigned_number(const struct node *node, const char *key, unsigned *out) {
    unsigned long long value;
    int code = number(node, key, 0, &value);
    if (!code) *out = (unsigned)value;
    return code;
}

static int text(const struct node *node, const char *key, char *out, unsigned size) {
    int code = fault(node, key);
    struct entry *entry = code ? NULL : find(node, "", key);
    if (entry) snprintf(out, size, "%s", entry->value);
    return code ? code : entry ? OK : NOT_SUPPORTED;
}

/* ---- the machine ---- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!loaded) return UNKNOWN;
    struct entry *error = find(&machine, "", "init_error");
    if (error) return failure(error->value);
    initialised++;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return OK;
}
const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "stand-in error %d", code);
    return text;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(&machine, "driver", out, size); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { /* answers before nvmlInit too, as NVIDIA's does */
    struct entry *entry = loaded ? find(&machine, "", "nvml") : NULL;
    if (entry) snprintf(out, size, "%s", entry->value);
    return entry ? OK : UNKNOWN;
}
int nvmlSystemGetCudaDriverVersion(int *out) { return unsigned_number(&machine, "cuda", (unsigned *)out); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }
int nvmlDeviceGetCount_v2(unsigned *out) {
    int code = fault(&machine, "count");
    if (code) return code;
    *out = 0;
    for (int i = 0; i < node_count; i++)
        if ((unsigned)(nodes[i].gpu + 1) > *out) *out = (unsigned)nodes[i].gpu + 1;
    return OK;
}

/* ---- handles ---- */

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct node **out) {
    unsigned count;
    int code = nvmlDeviceGetCount_v2(&count);
    if (!code && index >= count) code = INVALID_ARGUMENT;
    if (!code) code = fault(node_of((int)index, WHOLE), "handle");
    if (!code) *out = node_of((int)index, WHOLE);
    return code;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, struct node **out) {
    if (!initialised) return UNINITIALIZED;
    for (int i = 0; i < node_count; i++) {
        struct entry *entry = find(&nodes[i], "", "uuid");
        if (!entry || strcmp(entry->value, uuid)) continue;
        int code = fault(&nodes[i], "handle");
        if (!code) *out = &nodes[i];
        return code;
    }
    return NOT_FOUND;
}
int nvmlDeviceGetIndex(struct node *node, unsigned *out) {
    int code = fault(node, "index");
    if (!code) *out = (unsigned)node->gpu;
    return code;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(struct node *node, unsigned *current, unsigned *pending) {
    int code = unsigned_number(node, "mig", current);
    if (!code) *pending = *current;
    return code;
}
int nvmlDeviceGetMaxMigDeviceCount(struct node *node, unsigned *out) {
    int code = fault(node, "mig");
    if (!code) *out = find(node, "", "mig") ? 7 : 0;
    return code;
}
int nvmlDeviceGetMigDeviceHandleByIndex(struct node *node, unsigned index, struct node **out) {
    int code = fault(node, "mig");
    for (int i = 0; !code && i < node_count; i++)
        if (nodes[i].gpu == node->gpu && nodes[i].slice == (int)index) {
            *out = &nodes[i];
            return OK;
        }
    return code ? code : NOT_FOUND;
}
int nvmlDeviceIsMigDeviceHandle(struct node *node, unsigned *out) {
    *out = node->slice != WHOLE;
    return OK;
}

/* ---- what a GPU is ---- */

struct pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetName(struct node *node, char *out, unsigned size) { return text(node, "name", out, size); }
int nvmlDeviceGetUUID(struct node *node, char *out, unsigned size) { return text(node, "uuid", out, size); }
int nvmlDeviceGetPciInfo_v3(struct node *node, struct pci *out) {
    memset(out, 0, sizeof *out);
    int code = text(node, "bus", out->bus_id, sizeof out->bus_id);
    if (code) return code;
    if (sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device) == 3)
        snprintf(out->legacy, sizeof out->legacy, "%04x:%02x:%02x.0", out->domain & 0xFFFF, out->bus & 0xFF,
                 out->device & 0xFF);
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(struct node *node, int *major, int *minor) {
    unsigned long long first, second;
    int code = number(node, "capability", 0, &first);
    if (!code) code = number(node, "capability", 1, &second);
    if (code) return code;
    *major = (int)first;
    *minor = (int)second;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(struct node *node, struct memory_v2 *out) {
    if (out->version != (sizeof *out | 2U << 24)) return VERSION_MISMATCH;
    int code = number(node, "memory", 0, &out->total);
    if (!code) code = number(node, "memory", 1, &out->free);
    if (code) return code;
    if (number(node, "memory", 2, &out->reserved)) out->reserved = 0;
    out->used = out->total - out->free - out->reserved;
    return OK;
}
int nvmlDeviceGetMemoryInfo(struct node *node, struct memory *out) {
    struct memory_v2 newer = {.version = sizeof newer | 2U << 24};
    int code = nvmlDeviceGetMemoryInfo_v2(node, &newer);
    if (!code) *out = (struct memory){newer.total, newer.free, newer.total - newer.free};
    return code;
}
int nvmlDeviceGetPersistenceMode(struct node *node, unsigned *out) { return unsigned_number(node, "persistence", out); }
int nvmlDeviceGetDisplayActive(struct node *node, unsigned *out) { return unsigned_number(node, "display", out); }

/* ---- its processes: `process KIND PID BYTES NAME` ---- */

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };

static unsigned pid_of(const char *text) { return strcmp(text, "self") ? (unsigned)atoi(text) : (unsigned)getpid(); }

static int processes(struct node *node, const char *kind, unsigned *count, struct process *out) {
    int code = fault(node, kind);
    unsigned found = 0;
    for (int i = 0; !code && i < entry_count; i++) {
        struct entry *entry = &entries[i];
        if (entry->node.gpu != node->gpu || entry->node.slice != node->slice || strcmp(entry->key, "process")) continue;
        char copy[4096], *rest = copy;
        snprintf(copy, sizeof copy, "%s", entry->value);
        if (strcmp(word(&rest), kind)) continue;
        if (out && found < *count) {
            unsigned pid = pid_of(word(&rest));
            char *bytes = word(&rest); /* all ones is NVML's "not available" */
            unsigned long long memory = strcmp(bytes, "none") ? strtoull(bytes, NULL, 0) : ~0ULL;
            out[found] = (struct process){pid, memory, ~0U, ~0U};
        }
        found++;
    }
    if (code) return code;
    code = found > *count ? INSUFFICIENT_SIZE : OK;
    *count = found;
    return code;
}

#define PROCESSES(Kind, kind)                                                                                        \
    int nvmlDeviceGet##Kind##RunningProcesses_v2(struct node *node, unsigned *count, struct process *out) {          \
        return processes(node, kind, count, out);                                                                    \
    }                                                                                                                \
    int nvmlDeviceGet##Kind##RunningProcesses_v3(struct node *node, unsigned *count, struct process *out) {          \
        int code = fault(node, "processes_v3");                                                                      \
        return code ? code : processes(node, kind, count, out);                                                      \
    }
PROCESSES(Compute, "compute")
PROCESSES(Graphics, "graphics")

int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    int code = fault(&machine, "process_name");
    for (int i = 0; !code && i < entry_count; i++) {
        if (strcmp(entries[i].key, "process")) continue;
        char copy[4096], *rest = copy;
        snprintf(copy, sizeof copy, "%s", entries[i].value);
        word(&rest);
        if (pid_of(word(&rest)) != pid) continue;
        word(&rest);
        if (!*rest) continue;
        snprintf(out, size, "%s", rest);
        return OK;
    }
    return code ? code : NOT_FOUND;
}

/* ---- how it is doing ---- */

struct temperature { unsigned version, sensor; int celsius; };

int nvmlDeviceGetTemperature(struct node *node, unsigned sensor, unsigned *out) {
    return sensor ? INVALID_ARGUMENT : unsigned_number(node, "temperature", out);
}
int nvmlDeviceGetTemperatureV(struct node *node, struct temperature *out) {
    if (out->version != (sizeof *out | 1U << 24)) return VERSION_MISMATCH;
    int code = fault(node, "temperature_v");
    return code ? code : nvmlDeviceGetTemperature(node, out->sensor, (unsigned *)&out->celsius);
}
int nvmlDeviceGetPowerUsage(struct node *node, unsigned *out) { return unsigned_number(node, "power", out); }
int nvmlDeviceGetEnforcedPowerLimit(struct node *node, unsigned *out) {
    return unsigned_number(node, "power_limit", out);
}
int nvmlDeviceGetPowerManagementDefaultLimit(struct node *node, unsigned *out) {
    return unsigned_number(node, "power_default", out);
}
int nvmlDeviceGetCurrPcieLinkWidth(struct node *node, unsigned *out) { return unsigned_number(node, "link_width", out); }
int nvmlDeviceGetMaxPcieLinkWidth(struct node *node, unsigned *out) {
    return unsigned_number(node, "max_link_width", out);
}
int nvmlDeviceGetCurrPcieLinkGeneration(struct node *node, unsigned *out) {
    return unsigned_number(node, "link_generation", out);
}
int nvmlDeviceGetGpuMaxPcieLinkGeneration(struct node *node, unsigned *out) {
    return unsigned_number(node, "max_link_generation", out);
}
int nvmlDeviceGetP2PStatus(struct node *node, struct node *other, unsigned kind, unsigned *out) {
    int code = kind > 1 ? NOT_SUPPORTED : fault(node, "p2p");
    for (int i = 0; !code && i < entry_count; i++) {
        struct entry *entry = &entries[i];
        int to;
        if (entry->node.gpu == node->gpu && entry->node.slice == node->slice && !strcmp(entry->key, "p2p") &&
            sscanf(entry->value, "%d %u", &to, out) == 2 && to == other->gpu)
            return OK;
    }
    return code ? code : NOT_SUPPORTED;
}
int nvmlDeviceGetTotalEnergyConsumption(struct node *node, unsigned long long *out) {
    return number(node, "energy", 0, out);
}
int nvmlDeviceGetClockInfo(struct node *node, unsigned type, unsigned *out) {
    static const char *const keys[] = {"clock_graphics", "clock_sm", "clock_memory", "clock_video"};
    return type < 4 ? unsigned_number(node, keys[type], out) : INVALID_ARGUMENT;
}
int nvmlDeviceGetMaxClockInfo(struct node *node, unsigned type, unsigned *out) {
    static const char *const keys[] = {"max_clock_graphics", "max_clock_sm", "max_clock_memory", "max_clock_video"};
    return type < 4 ? unsigned_number(node, keys[type], out) : INVALID_ARGUMENT;
}
int nvmlDeviceGetNumGpuCores(struct node *node, unsigned *out) { return unsigned_number(node, "cores", out); }
int nvmlDeviceGetCurrentClocksEventReasons(struct node *node, unsigned long long *out) {
    int code = fault(node, "throttle_events");
    return code ? code : number(node, "throttle", 0, out);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(struct node *node, unsigned long long *out) {
    return number(node, "throttle", 0, out);
}
int nvmlDeviceGetTotalEccErrors(struct node *node, unsigned kind, unsigned counter, unsigned long long *out) {
    if (counter) return NOT_SUPPORTED; /* the ones of the card's whole life */
    return number(node, kind ? "ecc_uncorrected" : "ecc_corrected", 0, out);
}
