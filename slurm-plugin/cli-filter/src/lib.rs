//! Slurm cli_filter plugin of gpufrac.
