//! gpufrac reads GRES as Slurm does: a short run of `cargo xtask differ`. It needs the library of a Slurm, but no lab.

use gpufrac_lab::Slurm;

/// The number of requests, for a second or two.
const REQUESTS: u64 = 50_000;

#[test]
fn random_texts_are_read_as_this_slurm_reads_them_or_refused()
-> Result<(), Box<dyn std::error::Error>> {
    let slurm = Slurm::of_environment()?;
    let figures = gres_differ::compare(&slurm, REQUESTS, test_seed::seed(), |_| ())?;
    println!("{figures}");
    assert_eq!(figures.different, 0, "{figures}");
    // The comparison would show nothing if hardly any request were accepted.
    assert!(figures.same * 25 > figures.requests, "{figures}");
    assert!(figures.rewritten * 40 > figures.requests, "{figures}");
    Ok(())
}
