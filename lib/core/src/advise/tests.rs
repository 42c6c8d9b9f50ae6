//! Every advice is a valid configuration, and docs/admin/choose.md has the same table.

use super::*;

const PAGE: &str = include_str!("../../../../docs/admin/choose.md");

const WORKLOADS: [Workload; 6] = [
    Workload::Notebooks,
    Workload::Training,
    Workload::Inference,
    Workload::Batch,
    Workload::Teaching,
    Workload::Mixed,
];

fn plan(workload: Workload, gpu: &str) -> Plan<'_> {
    Plan {
        workload,
        gpu,
        memory: None,
        driver: None,
        untrusted: false,
        vgpu: false,
    }
}

/// Promise (users): `gpufrac advise` prints a configuration that works, and docs/admin/choose.md says the same.
/// With `the_page_says_the_same`, `mixed_sizes_get_a_layout_that_lends_both`, `advise_prints_a_file_that_check_takes`.
#[test]
fn every_advice_is_a_configuration() {
    let drivers = [None, Some(535), Some(580)];
    for workload in WORKLOADS {
        for gpu in known() {
            for driver in drivers {
                for untrusted in [false, true] {
                    let asked = Plan {
                        driver,
                        untrusted,
                        ..plan(workload, gpu)
                    };
                    let advice =
                        advise(&asked).unwrap_or_else(|error| panic!("{asked:?}: {error}"));
                    assert_eq!(advice.config.pools[0].mechanism, advice.mechanism);
                    assert!(!advice.reasons.is_empty());
                    if untrusted {
                        let pool = &advice.config.pools[0];
                        let whole = pool
                            .layout
                            .menu
                            .iter()
                            .all(|size| size.fraction.ratio() == "1");
                        assert!(whole || pool.mechanism == Mechanism::Mig, "{asked:?}");
                    }
                    let shared = advice.file.contains("\"shared\"\n")
                        || advice.mechanism == Mechanism::MigMps;
                    assert!(!shared || driver >= Some(SHARED_MPS_DRIVER), "{asked:?}");
                }
            }
        }
    }
}

#[test]
fn the_smallest_pieces_of_a_gpu_are_counted() {
    for workload in WORKLOADS {
        for gpu in known() {
            let advice = advise(&plan(workload, gpu)).unwrap();
            let Some((count, fraction)) = advice.smallest_pieces() else {
                let sizes = &advice.config.pools[0].layout.menu;
                assert_eq!(sizes[0].fraction, Fraction::ONE, "{workload:?} {gpu}");
                continue;
            };
            let sum = f64::from(count * fraction.numerator()) / f64::from(fraction.denominator());
            assert!(
                (0.7..=1.0).contains(&sum),
                "{workload:?} {gpu}: {count} of {fraction}"
            );
        }
    }
}

/// Whole GPUs and pieces come from the same GPUs, whatever the model.
#[test]
fn mixed_sizes_get_a_layout_that_lends_both() {
    for gpu in known() {
        let advice = advise(&plan(Workload::Mixed, gpu)).unwrap();
        let pool = &advice.config.pools[0];
        assert!(pool.lends_whole(), "{gpu}");
        assert!(pool.layout.menu.len() > 1, "{gpu}");
        let is_uniform = advice.file.contains("layout = \"uniform\"\n");
        assert_eq!(is_uniform, pool.mechanism == Mechanism::Mig, "{gpu}");
    }
}

#[test]
fn a_vgpu_and_an_unknown_model_need_their_memory() {
    for workload in WORKLOADS {
        let unknown = plan(workload, "GTX-1080");
        let error = advise(&unknown).unwrap_err().to_string();
        assert!(
            error.contains("--memory") && error.contains("H100-80"),
            "{error}"
        );
        let mut vgpu = plan(workload, "A40-12Q");
        vgpu.vgpu = true;
        assert!(matches!(advise(&vgpu), Err(AdviseError::VgpuMemory)));
        vgpu.memory = Some(MemoryMib(12_288));
        let advice = advise(&vgpu).unwrap();
        assert_eq!(advice.mechanism, Mechanism::Timeslice);
        assert_eq!(advice.config.pools[0].gpu_memory, MemoryMib(12_288));
        // A virtual machine sees no MIG, even if the GPU model has it.
        vgpu.gpu = "H100-80";
        assert_eq!(advise(&vgpu).unwrap().mechanism, Mechanism::Timeslice);
    }
}

#[test]
fn a_name_that_a_file_cannot_hold_is_refused() {
    for name in ["a\"b", "x\ny", ""] {
        let mut asked = plan(Workload::Batch, name);
        asked.memory = Some(MemoryMib(8192));
        match advise(&asked) {
            Ok(advice) => assert_eq!(advice.config.pools.len(), 1, "{name:?}"),
            Err(error) => assert!(
                matches!(error, AdviseError::Refused(_)),
                "{name:?}: {error}"
            ),
        }
    }
}

/// Rows: workload, GPU, driver, users, then mechanism and keys.
#[test]
fn the_page_says_the_same() {
    let rows = PAGE
        .lines()
        .skip_while(|line| !line.starts_with("| workload |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut count = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [workload, gpu, driver, users, mechanism, keys] = cells[..] else {
            panic!("{row}");
        };
        let workload = match workload {
            "notebooks" => Workload::Notebooks,
            "training" => Workload::Training,
            "inference" => Workload::Inference,
            "batch" => Workload::Batch,
            "teaching" => Workload::Teaching,
            "mixed" => Workload::Mixed,
            other => panic!("{other}"),
        };
        let (model, vgpu, memory) = match gpu {
            "with MIG" => ("H100-80", false, None),
            "without MIG" => ("L40S-48", false, None),
            "vGPU" => ("A40-12Q", true, Some(MemoryMib(12_288))),
            other => panic!("{other}"),
        };
        let advice = advise(&Plan {
            memory,
            driver: Some(if driver == "before 555" { 550 } else { 555 }),
            untrusted: users == "untrusted",
            vgpu,
            ..plan(workload, model)
        });
        let advice = advice.unwrap();
        assert_eq!(
            mechanism.trim_matches('`'),
            advice.mechanism.name(),
            "{row}"
        );
        let written: Vec<&str> = advice.file.lines().collect();
        for key in keys.split(';').map(|key| key.trim().trim_matches('`')) {
            assert!(
                key.is_empty() || written.contains(&key),
                "{row}: {written:?}"
            );
        }
        count += 1;
    }
    assert!(count >= 15, "{count} rows");
}
