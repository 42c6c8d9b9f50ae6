//! Command line of gpufrac.

fn main() {}
