//! A libnvidia-ml.so.1 that simulates GPUs with MIG.
