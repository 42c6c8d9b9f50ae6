/* A SPANK plugin that looks at the environment of a job wherever a plugin that starts containers may.
 *
 * Built with -DPLUGIN=NAME. Its argument in plugstack.conf is a folder that everybody can write to. Each hook on a
 * node adds a line to the folder's file JOBID:
 *   NAME HOOK STEP VARIABLE=VALUE... */
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define REGISTER(name) SPANK_PLUGIN(name, 1)

REGISTER(PLUGIN)

/* The beginnings of the variables that containers read. */
static const char *const wanted[] = { "CUDA_", "NVIDIA_VISIBLE_DEVICES=", "GPUFRAC_", NULL };

static void add(char *line, size_t size, const char *format, ...)
{
	size_t length = strlen(line);
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line + length, size - length, format, arguments);
	va_end(arguments);
}

static void add_step(char *line, size_t size, uint32_t step)
{
	if (step == SLURM_BATCH_SCRIPT)
		add(line, size, " batch");
	else if (step == SLURM_EXTERN_CONT)
		add(line, size, " extern");
	else if (step == SLURM_INTERACTIVE_STEP)
		add(line, size, " interactive");
	else
		add(line, size, " %u", step);
}

static int look(spank_t spank, char **argv, const char *hook)
{
	char line[16384] = TEXT(PLUGIN), path[4096];
	char **environment = NULL;
	uint32_t job = 0, step = 0;
	int file;

	if (spank_remote(spank) != 1 || spank_get_item(spank, S_JOB_ID, &job) || spank_get_item(spank, S_JOB_STEPID, &step))
		return 0;
	add(line, sizeof(line), " %s", hook);
	add_step(line, sizeof(line), step);
	spank_get_item(spank, S_JOB_ENV, &environment);
	for (; environment && *environment; environment++)
		for (const char *const *start = wanted; *start; start++)
			if (!strncmp(*environment, *start, strlen(*start)))
				add(line, sizeof(line), " %s", *environment);
	add(line, sizeof(line), "\n");

	snprintf(path, sizeof(path), "%s/%u", argv[0], job);
	file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (file < 0)
		return -1;
	/* Against the umask; refused if another user made the file. */
	(void) !fchmod(file, 0666);
	(void) !write(file, line, strlen(line));
	close(file);
	return 0;
}

#define HOOK(name)                                                                                                     \
	int slurm_spank_##name(spank_t spank, int argc, char **argv)                                                   \
	{                                                                                                              \
		return look(spank, argv, #name);                                                                       \
	}

HOOK(init)
HOOK(init_post_opt)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_init)
HOOK(task_post_fork)
HOOK(task_exit)
