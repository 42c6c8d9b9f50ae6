//! A client of `gpufrac-compute`, as `gpufrac prove` has one in its own program.

#![forbid(unsafe_code)]

fn main() -> std::io::Result<()> {
    gpufrac_compute::serve()
}
