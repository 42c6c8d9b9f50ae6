/* The NVML calls that a 2g slice needs and nothing else: what no prolog can be faster than.
 * usage: bare_nvml LIBRARY carve|release
 * gcc bare_nvml.c -ldl; the few declarations are those of nvml.h. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *handle;
typedef struct { unsigned start, size; } placement;
typedef struct { unsigned words[10]; unsigned long long memory_mib; } gpu_profile;
typedef struct { unsigned words[16]; } compute_profile;

static void *library;

#define CALL(name, types, ...)                                                   \
	do {                                                                     \
		int (*function) types = dlsym(library, #name);                   \
		int code = function ? function(__VA_ARGS__) : 13;                \
		if (code) {                                                      \
			fprintf(stderr, #name ": NVML error %d\n", code);        \
			return 1;                                                \
		}                                                                \
	} while (0)

int main(int argc, char **argv)
{
	handle device, instance, compute;
	unsigned count = 1;

	if (argc != 3 || !(library = dlopen(argv[1], RTLD_NOW))) {
		fprintf(stderr, "%s\n", argc == 3 ? dlerror() : "usage: bare_nvml LIBRARY carve|release");
		return 2;
	}
	CALL(nvmlInit_v2, (void), );
	CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned, handle *), 0, &device);
	gpu_profile profile;
	CALL(nvmlDeviceGetGpuInstanceProfileInfo, (handle, unsigned, gpu_profile *), device, 1, &profile);
	if (!strcmp(argv[2], "carve")) {
		placement place = { 2, 2 };
		CALL(nvmlDeviceCreateGpuInstanceWithPlacement, (handle, unsigned, placement *, handle *),
		     device, profile.words[0], &place, &instance);
		compute_profile whole;
		CALL(nvmlGpuInstanceGetComputeInstanceProfileInfo,
		     (handle, unsigned, unsigned, compute_profile *), instance, 1, 0, &whole);
		CALL(nvmlGpuInstanceCreateComputeInstance, (handle, unsigned, handle *), instance,
		     whole.words[0], &compute);
	} else {
		CALL(nvmlDeviceGetGpuInstances, (handle, unsigned, handle *, unsigned *), device,
		     profile.words[0], &instance, &count);
		CALL(nvmlGpuInstanceGetComputeInstanceById, (handle, unsigned, handle *), instance, 0,
		     &compute);
		CALL(nvmlComputeInstanceDestroy, (handle), compute);
		CALL(nvmlGpuInstanceDestroy, (handle), instance);
	}
	CALL(nvmlShutdown, (void), );
	return 0;
}
