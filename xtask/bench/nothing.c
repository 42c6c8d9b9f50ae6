/* A cli_filter plugin, or with -DSPANK_STACK a SPANK plugin, that does nothing: what Slurm's commands pay for having any. */
#include <slurm/slurm.h>
#ifdef SPANK_STACK
#include <slurm/spank.h>
SPANK_PLUGIN(nothing, 1)

int slurm_spank_init(spank_t spank, int argc, char *argv[]) { return ESPANK_SUCCESS; }
#else
#include <stdbool.h>
const char plugin_name[] = "nothing";
const char plugin_type[] = "cli_filter/gpufrac";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

int cli_filter_p_setup_defaults(void *options, bool early) { return SLURM_SUCCESS; }
int cli_filter_p_pre_submit(void *options, int offset) { return SLURM_SUCCESS; }
void cli_filter_p_post_submit(int offset, uint32_t job, uint32_t step) {}
#endif
