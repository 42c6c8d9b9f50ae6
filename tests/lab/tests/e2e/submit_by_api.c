/* Submits a batch job through libslurm, as a portal or a REST service does: cli_filter never sees it.
 * usage: submit_by_api TRES_PER_NODE [SPANK_JOB_ENV_ENTRY]
 * Prints the job's number; the job prints its environment. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

int main(int argc, char **argv)
{
	job_desc_msg_t job;
	submit_response_msg_t *response = NULL;
	char *environment[] = { "PATH=/usr/bin:/bin" };
	char directory[4096];

	if (argc < 2 || !getcwd(directory, sizeof(directory)))
		return 2;
	slurm_init(NULL);
	slurm_init_job_desc_msg(&job);
	job.name = "api";
	job.user_id = getuid();
	job.group_id = getgid();
	job.min_nodes = 1;
	job.work_dir = directory;
	job.std_out = "slurm-%j.out";
	job.std_err = "slurm-%j.out";
	job.script = "#!/bin/sh\n"
		     "env | grep -E '^(CUDA_VISIBLE_DEVICES|GPUFRAC_)'\n"
		     "while [ ! -e go ]; do sleep 0.05; done\n";
	job.environment = environment;
	job.env_size = 1;
	if (argv[1][0])
		job.tres_per_node = argv[1];
	if (argc > 2) {
		job.spank_job_env = &argv[2];
		job.spank_job_env_size = 1;
	}
	if (slurm_submit_batch_job(&job, &response) != SLURM_SUCCESS) {
		fprintf(stderr, "%s\n", slurm_strerror(errno));
		return 1;
	}
	if (response->job_submit_user_msg)
		fprintf(stderr, "%s\n", response->job_submit_user_msg);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
	printf("%u\n", response->step_id.job_id);
#else
	printf("%u\n", response->job_id);
#endif
	return 0;
}
