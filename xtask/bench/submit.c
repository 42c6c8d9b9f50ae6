/* Submits COUNT jobs through libslurm from one process: what is left is the controller's time. They are held, and
 * have a time limit of MINUTES if one is given. An empty TRES_PER_NODE is none.
 * usage: submit COUNT TRES_PER_NODE [MINUTES]; gcc submit.c -lslurm */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

int main(int argc, char **argv)
{
	char *environment[] = { "PATH=/usr/bin:/bin" };
	int count = argc >= 3 ? atoi(argv[1]) : 0;

	slurm_init(NULL);
	while (count-- > 0) {
		job_desc_msg_t job;
		submit_response_msg_t *response = NULL;

		slurm_init_job_desc_msg(&job);
		job.user_id = getuid();
		job.group_id = getgid();
		job.min_nodes = 1;
		job.priority = 0;
		if (argc > 3)
			job.time_limit = atoi(argv[3]);
		job.work_dir = "/tmp";
		job.script = "#!/bin/sh\n";
		job.environment = environment;
		job.env_size = 1;
		if (argv[2][0])
			job.tres_per_node = argv[2];
		if (slurm_submit_batch_job(&job, &response) != SLURM_SUCCESS) {
			fprintf(stderr, "%s\n", slurm_strerror(errno));
			return 1;
		}
		slurm_free_submit_response_response_msg(response);
	}
	return 0;
}
