//! What Python packages that count GPUs make of a slice.

use std::path::Path;
use std::process::Command;

use gpufrac_lab::{Lab, LabError};

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
    let lab = Lab::builder().start()?;
    let packages = ["nvitop==1.7.2", "nvidia-ml-py==13.615.71"];
    let output = of_quarter(&lab, "nvitop", &packages, LOOK)?;
    let expected = "instances True\ncuda True\nfirst 79\ninstance 19\n";
    assert_eq!(output, expected);
    lab.expect_nothing_left()
}

const COUNT: &str = r#"
import os
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._private.accelerators import NvidiaGPUAcceleratorManager
listed = NvidiaGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
print("list", listed == os.environ["CUDA_VISIBLE_DEVICES"].split(","))
offered = lambda **wanted: ResourceAndLabelSpec(num_cpus=1, **wanted).resolve(False, "localhost").num_gpus
print("offered", offered())
try:
    offered(num_gpus=2)
except ValueError as refused:
    print("refused", "Attempting to start raylet with 2 GPU" in str(refused))
"#;

/// Promise (users): Ray offers a job with one instance one GPU, takes the UUID as it is, and refuses more.
#[test]
fn ray_offers_the_slice_and_no_more() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let output = of_quarter(&lab, "ray", &["ray==2.60.0"], COUNT)?;
    assert_eq!(output, "list True\noffered 1\nrefused True\n");
    lab.expect_nothing_left()
}

/// What a job with a quarter of a GPU prints that runs this Python text with these packages of PyPI.
fn of_quarter(lab: &Lab, name: &str, packages: &[&str], text: &str) -> Result<String, LabError> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let programs = test_seed::needed(debian::python(&place, packages));
    let user = &lab.users()[0];
    let program = lab.write_work("program.py", text)?;
    let libraries = lab.folder().gpus(&lab.nodes()[0]).join("lib");
    // The users of the lab cannot read the tests' own folder.
    let copied = lab.folder().work().join("packages");
    let folder = programs
        .parent()
        .expect("bin is in a folder")
        .join("lib/python3*/site-packages");
    let (from, to) = (folder.display(), copied.display());
    // Links are quicker, on one file system.
    let copy = format!("cp -rl {from} {to} || {{ rm -rf {to}; cp -r {from} {to}; }}");
    let done = Command::new("sh").args(["-c", &copy]).status();
    assert!(done.expect("sh").success(), "{copy}");
    let wrap = format!(
        "export LD_LIBRARY_PATH={} PYTHONPATH={to}; python3 -B {}",
        libraries.display(),
        program.display()
    );
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap", &wrap])?;
    let ended = lab.wait_for_end(job)?;
    let output = lab.output(job)?;
    assert_eq!(ended.state(), "COMPLETED", "{output}");
    Ok(output)
}
