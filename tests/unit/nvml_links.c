/*
 * What the stand-in NVML has no words for: ECC mode, retired pages and the PCIe link, carried by numbered fields of its
 * file (field.900001 and on), which no NVML has. Compiled together with lab/nvml/nvml.c.
 */

#include "../../lab/nvml/nvml.c"

enum { ECC_MODE = 900001, PAGES_PENDING, PCIE_WIDTH, PCIE_WIDTH_MOST, PCIE_GENERATION, PCIE_GENERATION_MOST };

static nvmlReturn_t numbered(nvmlDevice_t device, unsigned int field, unsigned int *answer)
{
    char key[32];

    snprintf(key, sizeof key, "field.%u", field);
    return small_number(device, key, answer);
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending)
{
    nvmlReturn_t code = numbered(device, ECC_MODE, now);

    if (code == SUCCESS)
        *pending = *now;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending)
{
    return numbered(device, PAGES_PENDING, pending);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *lanes)
{
    return numbered(device, PCIE_WIDTH, lanes);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *lanes)
{
    return numbered(device, PCIE_WIDTH_MOST, lanes);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
    return numbered(device, PCIE_GENERATION, generation);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
    return numbered(device, PCIE_GENERATION_MOST, generation);
}
