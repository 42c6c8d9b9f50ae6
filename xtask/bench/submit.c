/* Submits COUNT held jobs through libslurm from one process: what is left is the controller's time.
 * usage: submit COUNT TRES_PER_NODE; gcc submit.c -lslurm */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

int main(int argc, char **argv)
{
	char *environment[] = { "PATH=/usr/bin:/bin" };
	int count = argc == 3 ? atoi(argv[1]) : 0;

	slurm_init(NULL);
	while (count-- > 0) {
		job_desc_msg_t job;
		submit_response_msg_t *response = NULL;

		slurm_init_job_desc_msg(&job);
		job.user_id = getuid();
		job.group_id = getgid();
		job.min_nodes = 1;
		job.priority = 0;
		job.work_dir = "/tmp";
		job.script = "#!/bin/sh\n";
		job.environment = environment;
		job.env_size = 1;
		job.tres_per_node = argv[2];
		if (slurm_submit_batch_job(&job, &response) != SLURM_SUCCESS) {
			fprintf(stderr, "%s\n", slurm_strerror(errno));
			return 1;
		}
		slurm_free_submit_response_response_msg(response);
	}
	return 0;
}
