/*
 * Reads texts of GRES as slurmctld does, with the functions of its library: reader SERIES LIBRARY SLURM_CONF
 *
 * Standard input: requests of eight texts, tres_per_node, _job, _socket and _task of a job that is there already, then
 * those of the request itself. Each is '+', the text and a NUL, or a NUL alone where there is none.
 * Standard output: "ready", then a line for each request, written before the next one is read:
 *   E RC                                        Slurm refuses the request
 *   B RC                                        it refuses the job that would be there already
 *   T [NAME TYPE_ID TYPE NODE JOB SOCKET TASK TOTAL;]...   what it counts; TYPE is + and hexadecimal digits, or -
 *
 * The few functions and structures of Slurm's own that this needs are in no installed header; they are declared here as
 * src/common/gres.h of 22.05 and src/interfaces/gres.h of 23.11 to 26.05 have them.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define NONE16 ((uint16_t) 0xfffe)	/* NO_VAL16 */
#define NONE32 0xfffffffeU		/* NO_VAL */
#define IS_SLURMCTLD (1U << 3)		/* run_in_daemon.h of 26.05 */
#define PATIENCE 60			/* seconds for one request */

/*
 * The first fields of gres_job_state_t. Then come the counts, u64 per job, node, socket and task. 26.05.5 has a field more
 * among them than 26.05.3, so where they are is found out.
 */
struct job_gres {
	uint32_t type_id;
	char *type_name;
};

#define FIRST_COUNT 24			/* bytes to that per job of 22.05 to 26.05.3 */
#define LAST_COUNT 64
#define TOTAL_22 104			/* bytes to total_gres of 22.05 */

/* The first fields of gres_state_t. */
struct gres {
	uint32_t config_flags;
	uint32_t plugin_id;
	void *data;
	char *name;
};

/* gres_job_state_validate_t, which took the place of sixteen arguments. */
struct validate {
	char *cpus_per_tres, *mem_per_tres, *tres_freq;
	char *per_job, *per_node, *per_socket, *per_task;
	uint16_t *cpus_per_task;
	uint32_t *max_nodes, *min_cpus, *min_nodes;
	uint16_t *ntasks_per_node, *ntasks_per_socket, *ntasks_per_tres;
	uint32_t *num_tasks;
	uint16_t *sockets_per_node;
	void **gres_list;
};

typedef int validate_22_t(char *cpus_per_tres, char *tres_freq, char *per_job, char *per_node, char *per_socket,
			  char *per_task, char *mem_per_tres, uint32_t *num_tasks, uint32_t *min_nodes,
			  uint32_t *max_nodes, uint16_t *ntasks_per_node, uint16_t *ntasks_per_socket,
			  uint16_t *sockets_per_node, uint16_t *cpus_per_task, uint16_t *ntasks_per_tres,
			  void **gres_list);
typedef int validate_24_t(struct validate *);

enum { NODE, JOB, SOCKET, TASK, FIELDS };

/* Bytes to each count, and to the one that is looked for. */
static size_t places[FIELDS], place;
static void *library;
static int by_arguments;	/* before 24.05 */
static int is_old;		/* before 23.11: texts begin with gres:, and an update has all of them */
static void *validate_function;
static void (*list_destroy)(void *);
static int (*list_for_each)(void *, int (*)(void *, void *), void *);

static void *symbol(const char *name)
{
	void *found = dlsym(library, name);
	if (!found) {
		fprintf(stderr, "%s\n", dlerror());
		exit(3);
	}
	return found;
}

/* One node, one socket, and one task where only tasks are counted: what can be taken is taken. */
static int validate(char *const texts[FIELDS], void **list)
{
	uint32_t num_tasks = texts[TASK] && !texts[JOB] ? 1 : NONE32;
	uint32_t min_nodes = 1, max_nodes = 1, min_cpus = 1;
	uint16_t per_node = NONE16, per_socket = NONE16, sockets = texts[SOCKET] ? 1 : NONE16, cpus = 1, per_tres = NONE16;

	if (by_arguments) {
		validate_22_t *call = (validate_22_t *) validate_function;
		return call(NULL, NULL, texts[JOB], texts[NODE], texts[SOCKET], texts[TASK], NULL, &num_tasks, &min_nodes,
			    &max_nodes, &per_node, &per_socket, &sockets, &cpus, &per_tres, list);
	}
	struct validate request = {
		.per_job = texts[JOB], .per_node = texts[NODE], .per_socket = texts[SOCKET], .per_task = texts[TASK],
		.cpus_per_task = &cpus, .max_nodes = &max_nodes, .min_cpus = &min_cpus, .min_nodes = &min_nodes,
		.ntasks_per_node = &per_node, .ntasks_per_socket = &per_socket, .ntasks_per_tres = &per_tres,
		.num_tasks = &num_tasks, .sockets_per_node = &sockets, .gres_list = list,
	};
	validate_24_t *call = (validate_24_t *) validate_function;
	return call(&request);
}

static uint64_t number(const void *job, size_t at)
{
	uint64_t value;
	memcpy(&value, (const char *) job + at, sizeof(value));
	return value;
}

static int print(void *item, void *unused)
{
	const struct gres *gres = item;
	const struct job_gres *job = gres->data;
	(void) unused;
	printf(" %s %" PRIu32 " ", gres->name, job->type_id);
	printf(job->type_name ? "+" : "-");
	for (const char *c = job->type_name; c && *c; c++)
		printf("%02x", (unsigned char) *c);
	for (int field = 0; field < FIELDS; field++)
		printf(" %" PRIu64, number(job, places[field]));
	printf(" %" PRIu64 ";", is_old ? number(job, TOTAL_22) : 1);
	return 0;
}

static int find_count(void *item, void *wanted)
{
	const struct gres *gres = item;
	for (size_t at = FIRST_COUNT; !place && at <= LAST_COUNT; at += sizeof(uint64_t))
		if (number(gres->data, at) == *(uint64_t *) wanted)
			place = at;
	return 0;
}

/* Finds each count by a number that stands nowhere else before it. */
static void find_counts(void)
{
	for (int field = 0; field < FIELDS; field++) {
		uint64_t wanted = 74565;
		void *list = NULL;
		char *texts[FIELDS] = { NULL };

		texts[field] = is_old ? "gres:gpufrac:74565" : "gres/gpufrac:74565";
		if (validate(texts, &list) || !list)
			exit(3);
		place = 0;
		if (field == TASK)	/* from which that per job is derived */
			place = places[SOCKET] + sizeof(uint64_t);
		list_for_each(list, find_count, &wanted);
		list_destroy(list);
		if (!place)
			exit(3);
		places[field] = place;
	}
}

static int any(char *const texts[FIELDS])
{
	for (int field = 0; field < FIELDS; field++)
		if (texts[field])
			return 1;
	return 0;
}

static void answer(char *const before[FIELDS], char *const texts[FIELDS])
{
	void *list = NULL;
	char *merged[FIELDS];
	int rc = 0;

	/* An update that names no text leaves the job as it is. */
	if (!any(texts))
		texts = before;
	/* Up to 22.05 an update goes on top of what the job has; later the texts that it does not name are read again. */
	else if (any(before) && is_old && (rc = validate(before, &list))) {
		printf("B %d\n", rc);
		return;
	}
	for (int field = 0; field < FIELDS; field++)
		merged[field] = texts[field] || is_old ? texts[field] : before[field];
	if ((rc = validate(merged, &list))) {
		printf("E %d\n", rc);
	} else {
		printf("T");
		if (list)
			list_for_each(list, print, NULL);
		printf("\n");
	}
	if (list)
		list_destroy(list);
}

static char *input, *end;

static char *next_text(void)
{
	char *text = input;
	if (input >= end)
		exit(4);
	input = memchr(input, '\0', end - input);
	if (!input)
		exit(4);
	input++;
	return *text ? text + 1 : NULL;
}

static void read_input(void)
{
	size_t length = 0, room = 1 << 16;
	input = malloc(room);
	for (ssize_t got; input && (got = read(0, input + length, room - length)) > 0;) {
		length += got;
		if (length == room)
			input = realloc(input, room *= 2);
	}
	if (!input)
		exit(4);
	end = input + length;
}

/* The library shall behave as in slurmctld. */
static void become_slurmctld(void)
{
	uint32_t *daemon = dlsym(library, "slurm_daemon");
	char **name = dlsym(library, "slurm_prog_name");
	if (daemon)
		*daemon = IS_SLURMCTLD;
	if (name)
		*name = "slurmctld";
}

int main(int argc, char **argv)
{
	struct rlimit no_core = { 0, 0 };
	char *texts[2 * FIELDS];

	if (argc != 4)
		return 3;
	setrlimit(RLIMIT_CORE, &no_core);
	if (!(library = dlopen(argv[2], RTLD_LAZY | RTLD_GLOBAL))) {
		fprintf(stderr, "%s\n", dlerror());
		return 3;
	}
	by_arguments = strcmp(argv[1], "24.05") < 0;
	is_old = strcmp(argv[1], "23.11") < 0;
	validate_function = symbol("gres_job_state_validate");
	list_destroy = symbol("slurm_list_destroy");
	list_for_each = symbol("slurm_list_for_each");
	become_slurmctld();
	((int (*)(const char *)) symbol("slurm_conf_init"))(argv[3]);
	if (((int (*)(int)) symbol("select_g_init"))(1) || ((int (*)(void)) symbol("gres_init"))())
		return 3;
	find_counts();
	read_input();
	printf("ready\n");
	fflush(stdout);
	while (input < end) {
		alarm(PATIENCE);
		for (int field = 0; field < 2 * FIELDS; field++)
			texts[field] = next_text();
		answer(texts, texts + FIELDS);
		fflush(stdout);
	}
	return 0;
}
