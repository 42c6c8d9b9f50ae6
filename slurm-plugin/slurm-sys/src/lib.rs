//! Bindings of slurm.h and spank.h, and a thin safe layer over them.
