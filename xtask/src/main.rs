//! Build, test, demo and installation tasks.

fn main() {}
