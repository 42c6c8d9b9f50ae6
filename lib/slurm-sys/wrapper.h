#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>

/* bindgen cannot evaluate macros with casts or arguments: the compiler does. */
static const uint32_t GPUFRAC_JOB_COMPLETING = JOB_COMPLETING;
static const uint32_t GPUFRAC_JOB_STATE_BASE = JOB_STATE_BASE;
static const uint32_t GPUFRAC_JOB_RUNNING = JOB_RUNNING;
static const uint32_t GPUFRAC_JOB_REQUEUE_HOLD = JOB_REQUEUE_HOLD;
static const uint32_t GPUFRAC_NODE_DRAIN = NODE_STATE_DRAIN;
static const uint32_t GPUFRAC_NODE_UNDRAIN = NODE_STATE_UNDRAIN;
static const uint32_t GPUFRAC_NODE_REBOOT = NODE_STATE_REBOOT_REQUESTED;
static const uint32_t GPUFRAC_INFINITE = INFINITE;
static const uint32_t GPUFRAC_PART_FLAG_DEFAULT = PART_FLAG_DEFAULT;
static const uint32_t GPUFRAC_SHOW_ALL = SHOW_ALL;
static const uint32_t GPUFRAC_SHOW_DETAIL = SHOW_DETAIL;
static const uint32_t GPUFRAC_SHOW_LOCAL = SHOW_LOCAL;
static const uint32_t GPUFRAC_BATCH_SCRIPT = SLURM_BATCH_SCRIPT;
static const uint32_t GPUFRAC_EXTERN_CONT = SLURM_EXTERN_CONT;
static const uint32_t GPUFRAC_INTERACTIVE_STEP = SLURM_INTERACTIVE_STEP;
static const uint16_t GPUFRAC_SHARED_NONE = JOB_SHARED_NONE;
#ifdef CONF_FLAG_ASRU
static const uint32_t GPUFRAC_TAKES_CORE_SPEC = CONF_FLAG_ASRU;
#else
static const uint32_t GPUFRAC_TAKES_CORE_SPEC = CTL_CONF_ASRU; /* its older name */
#endif
static const uint16_t GPUFRAC_NO_VAL16 = NO_VAL16;
static const uint16_t GPUFRAC_INFINITE16 = INFINITE16;
static const uint32_t GPUFRAC_NO_VAL = NO_VAL;
static const uint64_t GPUFRAC_NO_VAL64 = NO_VAL64;
static const uint64_t GPUFRAC_MEM_PER_CPU = MEM_PER_CPU;
static const uint16_t GPUFRAC_KILL_JOB_BATCH = KILL_JOB_BATCH;
static const uint16_t GPUFRAC_KILL_STEPS_ONLY = KILL_STEPS_ONLY;
static const uint16_t GPUFRAC_PRIVATE_JOBS = PRIVATE_DATA_JOBS;
static const uint16_t GPUFRAC_PRIVATE_NODES = PRIVATE_DATA_NODES;
static const uint16_t GPUFRAC_PRIVATE_USAGE = PRIVATE_DATA_USAGE;
