"""NVIDIA's own Python bindings on the simulated NVML: every answer is checked here."""

import pynvml as n


def refused(code, call, *arguments):
    try:
        call(*arguments)
    except n.NVMLError as error:
        assert error.value == code, (call.__name__, error.value, code)
        return
    raise AssertionError(f"{call.__name__} was not refused")


n.nvmlInit()
assert n.nvmlDeviceGetCount() == 3
assert n.nvmlSystemGetDriverVersion() == "570.172.08"
h100, a30, t4 = (n.nvmlDeviceGetHandleByIndex(i) for i in range(3))
assert n.nvmlDeviceGetName(h100) == "NVIDIA H100 80GB HBM3"
assert n.nvmlDeviceGetName(t4) == "Tesla T4"
assert tuple(n.nvmlDeviceGetCudaComputeCapability(a30)) == (8, 0)
assert n.nvmlDeviceGetArchitecture(h100) == n.NVML_DEVICE_ARCH_HOPPER
memory = n.nvmlDeviceGetMemoryInfo(h100, version=n.nvmlMemory_v2)
assert memory.total == 81559 << 20 and memory.used == 0
pci = n.nvmlDeviceGetPciInfo(h100)
assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByPciBusId(pci.busId)) == n.nvmlDeviceGetUUID(h100)
assert n.nvmlDeviceGetMigMode(h100) == [1, 1]
refused(n.NVML_ERROR_NOT_SUPPORTED, n.nvmlDeviceGetMigMode, t4)
refused(n.NVML_ERROR_INVALID_ARGUMENT, n.nvmlDeviceGetHandleByIndex, 3)
refused(n.NVML_ERROR_NOT_SUPPORTED, n.nvmlDeviceGetUtilizationRates, h100)
assert n.nvmlDeviceGetUtilizationRates(t4).gpu == 0

# The profiles by version 1 and version 2 of their struct.
expected = {19: (1, 7, 16), 20: (1, 1, 16), 15: (1, 4, 26), 14: (2, 3, 32), 9: (3, 2, 60), 5: (4, 1, 64), 0: (7, 1, 132)}
found = {}
for kind in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
    try:
        one = n.nvmlDeviceGetGpuInstanceProfileInfo(h100, kind)
    except n.NVMLError_NotSupported:
        continue
    two = n.nvmlDeviceGetGpuInstanceProfileInfo(h100, kind, version=2)
    assert (one.id, one.memorySizeMB) == (two.id, two.memorySizeMB)
    found[two.id] = (two.sliceCount, two.instanceCount, two.multiprocessorCount)
    assert n.nvmlDeviceGetGpuInstanceRemainingCapacity(h100, two.id) == two.instanceCount
assert found == expected, found

# From creation to destruction.
gi = n.nvmlDeviceCreateGpuInstance(h100, 9)
info = n.nvmlGpuInstanceGetInfo(gi)
assert (info.id, info.profileId, info.placement.start, info.placement.size) == (2, 9, 4, 4)
refused(n.NVML_ERROR_INSUFFICIENT_RESOURCES, n.nvmlDeviceCreateGpuInstance, h100, 0)
refused(n.NVML_ERROR_INVALID_ARGUMENT, n.nvmlDeviceCreateGpuInstance, h100, 77)
refused(n.NVML_ERROR_NOT_FOUND, n.nvmlDeviceGetMigDeviceHandleByIndex, h100, 0)
ci = n.nvmlGpuInstanceCreateComputeInstance(gi, 2)
of_ci = n.nvmlComputeInstanceGetInfo(ci)
assert (of_ci.id, of_ci.profileId) == (0, 2)
assert n.nvmlDeviceGetIndex(of_ci.device) == 0
mig = n.nvmlDeviceGetMigDeviceHandleByIndex(h100, 0)
uuid = n.nvmlDeviceGetUUID(mig)
assert uuid.startswith("MIG-")
assert n.nvmlDeviceGetName(mig) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
assert (n.nvmlDeviceGetGpuInstanceId(mig), n.nvmlDeviceGetComputeInstanceId(mig)) == (2, 0)
attributes = n.nvmlDeviceGetAttributes(mig)
assert (attributes.multiprocessorCount, attributes.memorySizeMB, attributes.gpuInstanceSliceCount) == (60, 40448, 3)
assert n.nvmlDeviceGetMemoryInfo(mig).total == 40448 << 20
assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(uuid)) == uuid
assert n.nvmlDeviceGetComputeRunningProcesses(mig) == []
parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
assert n.nvmlDeviceGetUUID(parent) == n.nvmlDeviceGetUUID(h100)
refused(n.NVML_ERROR_IN_USE, n.nvmlGpuInstanceDestroy, gi)
n.nvmlComputeInstanceDestroy(ci)
n.nvmlGpuInstanceDestroy(gi)
refused(n.NVML_ERROR_INVALID_ARGUMENT, n.nvmlGpuInstanceGetInfo, gi)
refused(n.NVML_ERROR_NOT_FOUND, n.nvmlDeviceGetHandleByUUID, uuid)

# MIG mode: at once on Hopper, after a reset on Ampere.
n.nvmlDeviceSetMigMode(h100, 0)
assert n.nvmlDeviceGetMigMode(h100) == [0, 0]
refused(n.NVML_ERROR_NOT_SUPPORTED, n.nvmlDeviceCreateGpuInstance, h100, 9)
n.nvmlDeviceSetMigMode(a30, 0)
assert n.nvmlDeviceGetMigMode(a30) == [1, 0]
n.nvmlShutdown()
refused(n.NVML_ERROR_UNINITIALIZED, n.nvmlDeviceGetCount)
