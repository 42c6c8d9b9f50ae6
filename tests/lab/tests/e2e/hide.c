/* A SPANK plugin that moves a task into a container as pyxis does, where folders of the host are hidden.
 *
 * Built with -DPLUGIN=NAME. If the job has the variable HIDE_NAME, the plugin mounts an empty file system over the folder
 * that the variable names, in a user namespace of the task. */
#define _GNU_SOURCE

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define REGISTER(name) SPANK_PLUGIN(name, 1)

REGISTER(PLUGIN)

static int put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);
	int done = file >= 0 && write(file, text, strlen(text)) == (ssize_t) strlen(text);

	close(file);
	return done;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
	char folder[4096], users[64], groups[64];

	if (spank_remote(spank) != 1 || spank_getenv(spank, "HIDE_" TEXT(PLUGIN), folder, sizeof(folder)))
		return 0;
	snprintf(users, sizeof(users), "%u %u 1", getuid(), getuid());
	snprintf(groups, sizeof(groups), "%u %u 1", getgid(), getgid());
	/* A process that was root owns its files in /proc only after this. */
	if (prctl(PR_SET_DUMPABLE, 1) || unshare(CLONE_NEWUSER | CLONE_NEWNS) || !put("/proc/self/setgroups", "deny") ||
	    !put("/proc/self/uid_map", users) || !put("/proc/self/gid_map", groups) ||
	    mount("none", folder, "tmpfs", 0, NULL)) {
		slurm_error("hiding %s failed: %m", folder);
		return -1;
	}
	return 0;
}
