//! What Python packages that read NVML show of a slice.

use std::path::Path;
use std::process::Command;

use gpufrac_lab::{Lab, LabError};

const PACKAGES: [&str; 2] = ["nvitop==1.7.2", "nvidia-ml-py==13.615.71"];

const LOOK: &str = r#"
import os, pynvml
from nvitop import CudaDevice, Device
devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
instances = [instance.uuid() for device in Device.all() for instance in device.mig_devices()]
print("instances", sorted(instances) == sorted(devices))
print("cuda", [device.uuid() for device in CudaDevice.all()] == devices)
pynvml.nvmlInit()
total = lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 30
print("first", total(pynvml.nvmlDeviceGetHandleByIndex(0)))
for uuid in devices:
    print("instance", total(pynvml.nvmlDeviceGetHandleByUUID(uuid)))
"#;

/// Promise (users): nvitop shows the instances of a job as CUDA does, and pynvml finds an instance by its UUID; its
/// device 0 is the whole GPU.
#[test]
fn nvitop_and_pynvml_find_the_slice() -> Result<(), LabError> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvitop");
    let programs = test_seed::needed(debian::python(&place, &PACKAGES));
    let lab = Lab::builder().start()?;
    let user = &lab.users()[0];
    let look = lab.write_work("look.py", LOOK)?;
    let libraries = lab.folder().gpus(&lab.nodes()[0]).join("lib");
    // The users of the lab cannot read the tests' own folder.
    let packages = lab.folder().work().join("packages");
    let folder = programs
        .parent()
        .expect("bin is in a folder")
        .join("lib/python3*/site-packages");
    let copy = format!("cp -r {} {}", folder.display(), packages.display());
    let copied = Command::new("sh").args(["-c", &copy]).status();
    assert!(copied.expect("sh").success(), "{copy}");
    let wrap = format!(
        "export LD_LIBRARY_PATH={} PYTHONPATH={}; python3 -B {}",
        libraries.display(),
        packages.display(),
        look.display()
    );
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap", &wrap])?;
    let ended = lab.wait_for_end(job)?;
    let output = lab.output(job)?;
    assert_eq!(ended.state(), "COMPLETED", "{output}");
    let expected = "instances True\ncuda True\nfirst 79\ninstance 19\n";
    assert_eq!(output, expected);
    lab.expect_nothing_left()
}
