//! Slurm job_submit plugin of gpufrac.
