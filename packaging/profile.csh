# The variables of a job's slice in a login shell of csh or tcsh that pam_slurm_adopt put into the job.
if ( ! $?GPUFRAC_MECHANISM && -r /proc/self/cgroup ) then
    set gpufrac_groups = "`tr '\n' ' ' </proc/self/cgroup`"
    if ( "$gpufrac_groups" =~ */step_extern* ) then
        eval "`sh -c 'gpufrac env --shell csh 2>/dev/null'`"
    endif
    unset gpufrac_groups
endif
