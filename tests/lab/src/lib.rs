//! A real Slurm cluster in a temporary folder.
