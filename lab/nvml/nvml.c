/*
 * A stand-in libnvidia-ml.so.1: GPUs that are described in a file, so that what reads NVML can be tested where there is
 * no GPU, and against states that no healthy GPU shows.
 *
 * SEATRIAL_NVML_FILE names the file. It is read again whenever it has changed, so that a test can turn a GPU hot, raise
 * an Xid or lose a device while a program watches. Its lines are "key = value", under [gpu 0], [gpu 1], ... and, for
 * slices, [gpu 0 mig 0], ...; lines before the first section describe the machine; # begins a comment line.
 *
 *   value            answer
 *   a number         that number, decimal or 0x...
 *   !NAME            the error NVML_ERROR_NAME
 *   (no such key)    NVML_ERROR_NOT_SUPPORTED
 *
 * A file that cannot be read, an unknown key or a value of the wrong kind is said on standard error, and every call then
 * answers NVML_ERROR_UNKNOWN: nothing is filled in by default.
 *
 * Signatures and structures are those of NVML's public API, as the ctypes definitions of nvidia-ml-py state them.
 */

#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { MOST_GPUS = 16, MOST_SLICES = 8, MOST_KEYS = 64, MOST_SETS = 8, WHOLE = MOST_SLICES };

typedef int nvmlReturn_t;

static const struct {
    const char *name;
    nvmlReturn_t code;
} RETURNS[] = {
    {"SUCCESS", 0},
    {"UNINITIALIZED", 1},
    {"INVALID_ARGUMENT", 2},
    {"NOT_SUPPORTED", 3},
    {"NO_PERMISSION", 4},
    {"NOT_FOUND", 6},
    {"INSUFFICIENT_SIZE", 7},
    {"DRIVER_NOT_LOADED", 9},
    {"TIMEOUT", 10},
    {"FUNCTION_NOT_FOUND", 13},
    {"GPU_IS_LOST", 15},
    {"RESET_REQUIRED", 16},
    {"LIB_RM_VERSION_MISMATCH", 18},
    {"VGPU_ECC_NOT_SUPPORTED", 22},
    {"INSUFFICIENT_RESOURCES", 23},
    {"GPU_NOT_FOUND", 28},
    {"UNKNOWN", 999},
};

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    INSUFFICIENT_RESOURCES = 23,
    UNKNOWN = 999
};

/* ---- What the file may say. ---- */

enum kind { NUMBER, TEXT, NUMBERS, CODE };

struct word {
    const char *key; /* may hold the wildcards of fnmatch(3) */
    enum kind kind;
};

static const struct word MACHINE_WORDS[] = {
    {"driver", TEXT}, {"nvml", TEXT}, {"cuda", NUMBER}, {"init", CODE}, {"delay", NUMBER}, {NULL, NUMBER},
};

static const struct word GPU_WORDS[] = {
    {"uuid", TEXT},
    {"name", TEXT},
    {"pci", TEXT},
    {"open", CODE},
    {"memory.total", NUMBER},
    {"memory.used", NUMBER},
    {"utilisation.gpu", NUMBER},
    {"utilisation.memory", NUMBER},
    {"power", NUMBER},
    {"temperature", NUMBER},
    {"headroom", NUMBER},
    {"clock.sm", NUMBER},
    {"clock.memory", NUMBER},
    {"reasons", NUMBER},
    {"ecc.corrected", NUMBER},
    {"ecc.uncorrected", NUMBER},
    {"remap.corrected", NUMBER},
    {"remap.uncorrected", NUMBER},
    {"remap.pending", NUMBER},
    {"remap.failure", NUMBER},
    {"nvlink.links", NUMBER},
    {"nvlink.crc_flit", NUMBER},
    {"nvlink.crc_data", NUMBER},
    {"nvlink.replay", NUMBER},
    {"nvlink.recovery", NUMBER},
    {"field.[0-9]*", NUMBER}, /* field.ID or field.ID.SCOPE, of nvmlDeviceGetFieldValues */
    {"pcie.replay", NUMBER},
    {"mig.mode", NUMBER},
    {"xids", NUMBERS}, /* all Xids so far; each is told once to each event set that registers before it appears */
    {NULL, NUMBER},
};

static const struct word SLICE_WORDS[] = {
    {"uuid", TEXT}, {"name", TEXT}, {"memory.total", NUMBER}, {"memory.used", NUMBER}, {NULL, NUMBER},
};

struct entry {
    char key[32];
    char value[128];
};

struct section {
    int exists;
    int count;
    struct entry entries[MOST_KEYS];
};

struct state {
    struct section machine;
    struct section parts[MOST_GPUS][MOST_SLICES + 1]; /* the slices, then the WHOLE gpu */
    int gpus;
};

struct handle {
    int gpu;
    int part;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct state current;
static int readable;
static int initialised;
static struct stat seen;
static struct handle handles[MOST_GPUS][MOST_SLICES + 1];

typedef struct handle *nvmlDevice_t;

struct event_set {
    int used;
    int registered[MOST_GPUS];
    int told[MOST_GPUS];
};

static struct event_set sets[MOST_SETS];

/* ---- Reading the file. ---- */

static int complain(const char *file, int line, const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "stand-in NVML: %s:%d: ", file, line);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return 0;
}

static char *trim(char *text)
{
    char *end;

    text += strspn(text, " \t\r\n");
    end = text + strlen(text);
    while (end > text && strchr(" \t\r\n", end[-1]))
        *--end = '\0';
    return text;
}

static int code_of(const char *name, nvmlReturn_t *code)
{
    for (size_t i = 0; i < sizeof RETURNS / sizeof *RETURNS; i++)
        if (!strcmp(RETURNS[i].name, name)) {
            *code = RETURNS[i].code;
            return 1;
        }
    return 0;
}

static int number_of(const char *text, char **end, unsigned long long *number)
{
    errno = 0;
    *number = strtoull(text, end, 0);
    return *end != text && errno == 0 && !strchr(text, '-');
}

static int is_valid(enum kind kind, const char *value)
{
    unsigned long long number;
    nvmlReturn_t code;
    char *end = (char *)value;

    if (*value == '!')
        return code_of(value + 1, &code);
    if (kind == TEXT)
        return *value != '\0';
    if (kind == CODE)
        return code_of(value, &code);
    if (kind == NUMBER)
        return number_of(value, &end, &number) && *end == '\0';
    while (*end != '\0') {
        if (!number_of(end, &end, &number))
            return 0;
        end += strspn(end, " ");
    }
    return 1;
}

static const struct word *known(const struct word *words, const char *key)
{
    for (; words->key; words++)
        if (!fnmatch(words->key, key, 0))
            return words;
    return NULL;
}

static const struct entry *find(const struct section *section, const char *key)
{
    for (int i = 0; i < section->count; i++)
        if (!strcmp(section->entries[i].key, key))
            return &section->entries[i];
    return NULL;
}

static int add(struct section *section, const struct word *words, char *text, const char *file, int line)
{
    char *equals = strchr(text, '='), *key, *value;
    const struct word *word;
    struct entry *entry = &section->entries[section->count];

    if (!equals)
        return complain(file, line, "expected key = value, observed '%s'", text);
    *equals = '\0';
    key = trim(text);
    value = trim(equals + 1);
    word = known(words, key);
    if (!word)
        return complain(file, line, "unknown key '%s'", key);
    if (find(section, key))
        return complain(file, line, "the key '%s' stands twice", key);
    if (!is_valid(word->kind, value))
        return complain(file, line, "'%s' cannot be '%s'", key, value);
    if (section->count == MOST_KEYS || strlen(key) >= sizeof entry->key || strlen(value) >= sizeof entry->value)
        return complain(file, line, "too long: '%s'", key);
    strcpy(entry->key, key);
    strcpy(entry->value, value);
    section->count++;
    return 1;
}

static struct section *open_section(struct state *state, const char *head, const struct word **words)
{
    int gpu = -1, slice = -1, whole_end = 0, slice_end = 0;
    struct section *section;

    sscanf(head, "[gpu %d]%n", &gpu, &whole_end);
    sscanf(head, "[gpu %d mig %d]%n", &gpu, &slice, &slice_end);
    if (gpu < 0 || gpu >= MOST_GPUS || gpu > state->gpus)
        return NULL;
    if (whole_end && head[whole_end] == '\0') {
        section = &state->parts[gpu][WHOLE];
        state->gpus = gpu + 1;
        *words = GPU_WORDS;
    } else if (slice_end && head[slice_end] == '\0' && gpu < state->gpus && slice >= 0 && slice < MOST_SLICES) {
        section = &state->parts[gpu][slice];
        *words = SLICE_WORDS;
    } else {
        return NULL;
    }
    if (section->exists)
        return NULL;
    section->exists = 1;
    return section;
}

static int parse(FILE *stream, const char *file, struct state *state)
{
    struct section *section = &state->machine;
    const struct word *words = MACHINE_WORDS;
    char buffer[512], *text;

    for (int line = 1; fgets(buffer, sizeof buffer, stream); line++) {
        text = trim(buffer);
        if (*text == '\0' || *text == '#')
            continue;
        if (*text == '[') {
            section = open_section(state, text, &words);
            if (!section)
                return complain(file, line, "expected a new [gpu N] or [gpu N mig M], in order, observed '%s'", text);
        } else if (!add(section, words, text, file, line)) {
            return 0;
        }
    }
    return 1;
}

static int is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int refresh(void)
{
    const char *file = getenv("SEATRIAL_NVML_FILE");
    static struct state fresh;
    struct stat now;
    FILE *stream;

    if (!file)
        return complain("(no file)", 0, "SEATRIAL_NVML_FILE is not set");
    stream = fopen(file, "r");
    if (!stream || fstat(fileno(stream), &now)) {
        complain(file, 0, "%s", strerror(errno));
        memset(&seen, 0, sizeof seen);
        readable = 0;
    } else if (!is_same(&now, &seen)) {
        memset(&fresh, 0, sizeof fresh);
        readable = parse(stream, file, &fresh);
        current = fresh;
        seen = now;
    }
    if (stream)
        fclose(stream);
    return readable;
}

/* ---- Answers. ---- */

static nvmlReturn_t begin(void)
{
    pthread_mutex_lock(&lock);
    if (!refresh())
        return UNKNOWN;
    return initialised ? SUCCESS : UNINITIALIZED;
}

static nvmlReturn_t end(nvmlReturn_t code)
{
    pthread_mutex_unlock(&lock);
    return code;
}

static nvmlReturn_t number_in(const struct section *section, const char *key, unsigned long long *number)
{
    const struct entry *entry = find(section, key);
    nvmlReturn_t code = NOT_SUPPORTED;
    char *rest;

    if (!entry)
        return NOT_SUPPORTED;
    if (*entry->value == '!') {
        code_of(entry->value + 1, &code);
        return code;
    }
    number_of(entry->value, &rest, number);
    return SUCCESS;
}

static nvmlReturn_t text_in(const struct section *section, const char *key, char *buffer, unsigned int length)
{
    const struct entry *entry = find(section, key);
    nvmlReturn_t code = NOT_SUPPORTED;

    if (!entry)
        return NOT_SUPPORTED;
    if (*entry->value == '!') {
        code_of(entry->value + 1, &code);
        return code;
    }
    if (strlen(entry->value) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, entry->value);
    return SUCCESS;
}

static nvmlReturn_t section_of(nvmlDevice_t device, const struct section **section)
{
    if (device < &handles[0][0] || device > &handles[MOST_GPUS - 1][MOST_SLICES])
        return INVALID_ARGUMENT;
    *section = &current.parts[device->gpu][device->part];
    return (*section)->exists ? SUCCESS : GPU_IS_LOST;
}

static void take_time(void)
{
    unsigned long long microseconds = 0;

    if (number_in(&current.machine, "delay", &microseconds) == SUCCESS)
        usleep((useconds_t)microseconds);
}

static nvmlReturn_t number(nvmlDevice_t device, const char *key, unsigned long long *answer)
{
    const struct section *section;
    nvmlReturn_t code = begin();

    if (code == SUCCESS)
        code = section_of(device, &section);
    if (code == SUCCESS) {
        take_time();
        code = number_in(section, key, answer);
    }
    return end(code);
}

static nvmlReturn_t small_number(nvmlDevice_t device, const char *key, unsigned int *answer)
{
    unsigned long long wide = 0;
    nvmlReturn_t code = number(device, key, &wide);

    if (code == SUCCESS)
        *answer = (unsigned int)wide;
    return code;
}

static nvmlReturn_t text(nvmlDevice_t device, const char *key, char *buffer, unsigned int length)
{
    const struct section *section;
    nvmlReturn_t code = begin();

    if (code == SUCCESS)
        code = section_of(device, &section);
    if (code == SUCCESS)
        code = text_in(section, key, buffer, length);
    return end(code);
}

static nvmlReturn_t machine_text(const char *key, char *buffer, unsigned int length)
{
    nvmlReturn_t code = begin();

    return end(code == SUCCESS ? text_in(&current.machine, key, buffer, length) : code);
}

/* ---- The library itself. ---- */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    nvmlReturn_t code = begin();
    const struct entry *refusal = find(&current.machine, "init");

    (void)flags;
    if (code == UNKNOWN)
        return end(code);
    code = SUCCESS;
    if (refusal)
        code_of(refusal->value, &code);
    if (code == SUCCESS)
        initialised++;
    for (int gpu = 0; gpu < MOST_GPUS; gpu++)
        for (int part = 0; part <= MOST_SLICES; part++)
            handles[gpu][part] = (struct handle){gpu, part};
    return end(code);
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t code = SUCCESS;

    pthread_mutex_lock(&lock);
    if (initialised)
        initialised--;
    else
        code = UNINITIALIZED;
    return end(code);
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    for (size_t i = 0; i < sizeof RETURNS / sizeof *RETURNS; i++)
        if (RETURNS[i].code == code)
            return RETURNS[i].name;
    return "an error without a name";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return machine_text("driver", version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    return machine_text("nvml", version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    unsigned long long number = 0;
    nvmlReturn_t code = begin();

    if (code == SUCCESS)
        code = number_in(&current.machine, "cuda", &number);
    if (code == SUCCESS)
        *version = (int)number;
    return end(code);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

/* ---- Which devices there are. ---- */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    nvmlReturn_t code = begin();

    if (code == SUCCESS)
        *count = (unsigned int)current.gpus;
    return end(code);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    nvmlReturn_t code = begin();
    const struct entry *refusal;

    if (code == SUCCESS && index >= (unsigned int)current.gpus)
        code = INVALID_ARGUMENT;
    if (code == SUCCESS) {
        refusal = find(&current.parts[index][WHOLE], "open");
        if (refusal)
            code_of(refusal->value, &code);
    }
    if (code == SUCCESS)
        *device = &handles[index][WHOLE];
    return end(code);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t by_text(const char *key, const char *wanted, nvmlDevice_t *device)
{
    nvmlReturn_t code = begin();
    const struct entry *entry;

    if (code != SUCCESS)
        return end(code);
    for (int gpu = 0; gpu < current.gpus; gpu++)
        for (int part = 0; part <= MOST_SLICES; part++) {
            entry = find(&current.parts[gpu][part], key);
            if (entry && !strcmp(entry->value, wanted)) {
                *device = &handles[gpu][part];
                return end(SUCCESS);
            }
        }
    return end(NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return by_text("uuid", uuid, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pci, nvmlDevice_t *device)
{
    return by_text("pci", pci, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pci, nvmlDevice_t *device)
{
    return by_text("pci", pci, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    const struct section *section;
    nvmlReturn_t code = begin();

    if (code == SUCCESS)
        code = section_of(device, &section);
    if (code == SUCCESS)
        *index = (unsigned int)device->gpu;
    return end(code);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    return text(device, "uuid", uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    return text(device, "name", name, length);
}

typedef struct {
    char busIdLegacy[16];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pciDeviceId;
    unsigned int pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t found = {0};
    nvmlReturn_t code = text(device, "pci", found.busId, sizeof found.busId);

    if (code != SUCCESS)
        return code;
    if (sscanf(found.busId, "%x:%x:%x", &found.domain, &found.bus, &found.device) != 3)
        return UNKNOWN;
    snprintf(found.busIdLegacy, sizeof found.busIdLegacy, "%04X:%02X:%02X.0", found.domain & 0xffff, found.bus & 0xff,
             found.device & 0xff);
    *pci = found;
    return SUCCESS;
}

/* ---- What a device does now. ---- */

typedef struct {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_v2_t;

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t code = number(device, "memory.total", &memory->total);

    if (code == SUCCESS)
        code = number(device, "memory.used", &memory->used);
    if (code == SUCCESS)
        memory->free = memory->total - memory->used;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain = {0};
    nvmlReturn_t code = nvmlDeviceGetMemoryInfo(device, &plain);

    if (code != SUCCESS)
        return code;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return SUCCESS;
}

typedef struct {
    unsigned int gpu;
    unsigned int memory;
} nvmlUtilization_t;

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    nvmlReturn_t code = small_number(device, "utilisation.gpu", &rates->gpu);

    return code == SUCCESS ? small_number(device, "utilisation.memory", &rates->memory) : code;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    return small_number(device, "power", milliwatts);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *degrees)
{
    return sensor == 0 ? small_number(device, "temperature", degrees) : INVALID_ARGUMENT;
}

typedef struct {
    unsigned int version;
    int sensorType;
    int temperature;
} nvmlTemperature_t;

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *reading)
{
    unsigned int degrees = 0;
    nvmlReturn_t code = nvmlDeviceGetTemperature(device, reading->sensorType, &degrees);

    if (code == SUCCESS)
        reading->temperature = (int)degrees;
    return code;
}

typedef struct {
    unsigned int version;
    int marginTemperature;
} nvmlMarginTemperature_t;

EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *reading)
{
    unsigned int degrees = 0;
    nvmlReturn_t code = small_number(device, "headroom", &degrees);

    if (code == SUCCESS)
        reading->marginTemperature = (int)degrees;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *megahertz)
{
    if (type == 1)
        return small_number(device, "clock.sm", megahertz);
    return type == 2 ? small_number(device, "clock.memory", megahertz) : NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return number(device, "reasons", reasons);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return number(device, "reasons", reasons);
}

/* ---- What a device has counted. ---- */

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *count)
{
    if (counter != 0)
        return NOT_SUPPORTED;
    return number(device, type == 0 ? "ecc.corrected" : "ecc.uncorrected", count);
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                              unsigned int *pending, unsigned int *failure)
{
    nvmlReturn_t code = small_number(device, "remap.corrected", corrected);

    if (code == SUCCESS)
        code = small_number(device, "remap.uncorrected", uncorrected);
    if (code == SUCCESS)
        code = small_number(device, "remap.pending", pending);
    return code == SUCCESS ? small_number(device, "remap.failure", failure) : code;
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *count)
{
    return small_number(device, "pcie.replay", count);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    unsigned int links = 0;
    nvmlReturn_t code = small_number(device, "nvlink.links", &links);

    if (code == SUCCESS && link >= links)
        code = INVALID_ARGUMENT;
    if (code == SUCCESS)
        *active = 1;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, int counter,
                                                    unsigned long long *count)
{
    static const char *const KEYS[] = {"nvlink.replay", "nvlink.recovery", "nvlink.crc_flit", "nvlink.crc_data"};
    unsigned int active;
    nvmlReturn_t code = nvmlDeviceGetNvLinkState(device, link, &active);

    if (code == SUCCESS && (counter < 0 || counter > 3))
        code = INVALID_ARGUMENT;
    if (code == SUCCESS)
        code = number(device, KEYS[counter], count);
    if (code == SUCCESS && link > 0)
        *count = 0; /* the file gives one number for all links: the first one bears it */
    return code;
}

typedef struct {
    uint32_t fieldId;
    uint32_t scopeId;
    int64_t timestamp;
    int64_t latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double dVal;
        unsigned long long ullVal;
    } value;
} nvmlFieldValue_t;

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    enum { UNSIGNED_LONG_LONG = 3 };
    char key[32];

    for (int i = 0; i < count; i++) {
        if (values[i].scopeId)
            snprintf(key, sizeof key, "field.%u.%u", values[i].fieldId, values[i].scopeId);
        else
            snprintf(key, sizeof key, "field.%u", values[i].fieldId);
        values[i].valueType = UNSIGNED_LONG_LONG;
        values[i].nvmlReturn = number(device, key, &values[i].value.ullVal);
        if (values[i].nvmlReturn == UNKNOWN || values[i].nvmlReturn == UNINITIALIZED)
            return values[i].nvmlReturn;
    }
    return SUCCESS;
}

/* ---- Slices. ---- */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending)
{
    nvmlReturn_t code = small_number(device, "mig.mode", now);

    if (code == SUCCESS)
        *pending = *now;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    unsigned int mode;
    nvmlReturn_t code = small_number(device, "mig.mode", &mode);

    if (code == SUCCESS)
        *count = MOST_SLICES;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *slice)
{
    const struct section *section;
    nvmlReturn_t code = begin();

    if (code == SUCCESS)
        code = section_of(device, &section);
    if (code == SUCCESS && (device->part != WHOLE || index >= MOST_SLICES))
        code = INVALID_ARGUMENT;
    if (code == SUCCESS && !current.parts[device->gpu][index].exists)
        code = NOT_FOUND;
    if (code == SUCCESS)
        *slice = &handles[device->gpu][index];
    return end(code);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_slice)
{
    const struct section *section;
    nvmlReturn_t code = begin();

    if (code == SUCCESS)
        code = section_of(device, &section);
    if (code == SUCCESS)
        *is_slice = device->part != WHOLE;
    return end(code);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t slice, nvmlDevice_t *device)
{
    const struct section *section;
    nvmlReturn_t code = begin();

    if (code == SUCCESS)
        code = section_of(slice, &section);
    if (code == SUCCESS)
        *device = &handles[slice->gpu][WHOLE];
    return end(code);
}

/* ---- Events. ---- */

enum { EVENT_XID = 0x8 };

typedef struct event_set *nvmlEventSet_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType;
    unsigned long long eventData;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlEventData_t;

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    nvmlReturn_t code = begin();

    if (code != SUCCESS)
        return end(code);
    for (int i = 0; i < MOST_SETS; i++)
        if (!sets[i].used) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].used = 1;
            *set = &sets[i];
            return end(SUCCESS);
        }
    return end(INSUFFICIENT_RESOURCES);
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    pthread_mutex_lock(&lock);
    set->used = 0;
    return end(SUCCESS);
}

/* The Xid at a place in the list, counted from 0; 0 where the list is not that long. */
static unsigned long long xid_at(const char *list, int place)
{
    unsigned long long xid;
    char *rest = (char *)list;

    while (*rest != '\0' && number_of(rest, &rest, &xid)) {
        if (place-- == 0)
            return xid;
        rest += strspn(rest, " ");
    }
    return 0;
}

static int count_xids(const char *list)
{
    int count = 0;

    while (xid_at(list, count))
        count++;
    return count;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    const struct section *section;
    nvmlReturn_t code = begin();

    if (code == SUCCESS)
        code = section_of(device, &section);
    if (code == SUCCESS)
        *types = find(section, "xids") ? EVENT_XID : 0;
    return end(code);
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    const struct section *section;
    const struct entry *entry;
    nvmlReturn_t code = begin();

    if (code == SUCCESS)
        code = section_of(device, &section);
    if (code == SUCCESS && types != EVENT_XID)
        code = NOT_SUPPORTED;
    if (code != SUCCESS)
        return end(code);
    entry = find(section, "xids");
    if (!entry)
        return end(NOT_SUPPORTED);
    if (*entry->value == '!') {
        code_of(entry->value + 1, &code);
        return end(code);
    }
    set->registered[device->gpu] = 1;
    set->told[device->gpu] = count_xids(entry->value);
    return end(SUCCESS);
}

static nvmlReturn_t next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    nvmlReturn_t code = begin();
    const struct entry *entry;

    if (code != SUCCESS)
        return end(code);
    for (int gpu = 0; gpu < current.gpus; gpu++) {
        entry = set->registered[gpu] ? find(&current.parts[gpu][WHOLE], "xids") : NULL;
        if (entry && *entry->value == '!') {
            code_of(entry->value + 1, &code);
            return end(code);
        }
        if (entry && count_xids(entry->value) > set->told[gpu]) {
            *data = (nvmlEventData_t){&handles[gpu][WHOLE], EVENT_XID, xid_at(entry->value, set->told[gpu]++), ~0u, ~0u};
            return end(SUCCESS);
        }
    }
    return end(TIMEOUT);
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds)
{
    enum { STEP = 10 };
    nvmlReturn_t code = next_event(set, data);

    for (unsigned int waited = 0; code == TIMEOUT && waited < milliseconds; waited += STEP) {
        usleep(STEP * 1000);
        code = next_event(set, data);
    }
    return code;
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds)
{
    nvmlEventData_t wide;
    nvmlReturn_t code = nvmlEventSetWait_v2(set, &wide, milliseconds);

    if (code == SUCCESS) { /* the older structure ends before the instance ids */
        data->device = wide.device;
        data->eventType = wide.eventType;
        data->eventData = wide.eventData;
    }
    return code;
}
