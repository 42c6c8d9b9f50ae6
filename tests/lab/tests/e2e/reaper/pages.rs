//! The pages of `[web]`: the daemon runs the installed `gpufrac web --export` on a real Slurm.

use std::fs;
use std::time::Duration;

use gpufrac_lab::{Lab, LabError};

use super::configure;

const PATIENCE: Duration = Duration::from_secs(60);

/// Promise (admins): gpufrac-reaperd renews the pages on the host of `[web]`, also on one without GPUs.
/// With `the_host_of_the_pages_renews_them_and_follows_a_new_folder`, `other_hosts_write_no_pages`.
#[test]
fn the_daemon_exports_pages_that_show_a_running_job() -> Result<(), LabError> {
    let lab = Lab::builder()
        .shared()
        .reaper(crate::MEASURES_ONLY)
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap=sleep 1000"])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let status = lab.folder().shared().join(format!("status/{node}.json"));
    let of_job = format!("\"job\":{job},");
    lab.wait("the slice in the file of the node", PATIENCE, || {
        let text = fs::read_to_string(&status).unwrap_or_default();
        Ok(text.contains(&of_job).then_some(()))
    })?;

    // The pages are written as soon as the daemon knows of them.
    let folder = lab.folder().root().join("pages");
    let web = format!(
        "{}[web]\nhost = \"{node}\"\nfolder = \"{}\"\n",
        crate::MEASURES_ONLY,
        folder.display()
    );
    configure(&lab, &web)?;
    // The map is written last.
    lab.wait("the map", PATIENCE, || {
        Ok(folder.join("index.html").exists().then_some(()))
    })?;
    let read = |name: &str| {
        let path = folder.join(name).display().to_string();
        lab.command("cat").user(user).args([path]).stdout()
    };
    let page = read(&format!("job/{job}.html"))?;
    for text in [&user.name, node, "0.25"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let index = read("index.html")?;
    assert!(
        index.contains(node) && index.contains("1 node, "),
        "{index}"
    );
    assert!(!index.contains("Slurm gave no answer"), "{index}");
    let log = lab.reaper_log(node)?;
    assert!(!log.contains("writing the pages"), "{log}");
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.wait_for_end(job)?;
    lab.expect_nothing_left()
}
