//! The GPUs of a new pool: those of this node, or those that the options say.

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::geometry::Geometry;
use gpufrac_node::node::Node;
use gpufrac_nvml::Session;

use crate::args::InitArgs;
use crate::error::CliError;

/// The GPU of a pool: from the options, or from NVML.
pub struct PoolGpu {
    pub index: u32,
    pub model: String,
}

/// The GPUs of this node.
pub struct Seen {
    pub gpus: Vec<PoolGpu>,
    /// Whether the node has others, of models that gpufrac does not know.
    pub has_others: bool,
    /// Whether options say them.
    pub told: bool,
    pub driver: Option<u32>,
}

/// The GPUs of this node from NVML, or those given by options. A model that is given is that of GPUs that gpufrac does
/// not know, or of all if NVML does not answer or their number is given.
pub fn of_node(args: &InitArgs, node: &Node) -> Result<Seen, CliError> {
    let session = node.nvml();
    let driver = session.as_ref().ok().and_then(driver);
    let session = match (&args.gpu, session) {
        (Some(model), session) if args.gpus.is_some() || session.is_err() => {
            let gpu = |index| PoolGpu {
                index,
                model: model.clone(),
            };
            return Ok(Seen {
                gpus: (0..args.gpus.unwrap_or(1)).map(gpu).collect(),
                has_others: false,
                told: true,
                driver,
            });
        }
        (_, session) => session.map_err(|source| CliError::NoGpu { source })?,
    };
    let found = session
        .gpus()
        .map_err(|source| CliError::NoGpu { source })?;
    let mut shown = Vec::new();
    for (index, gpu) in (0..).zip(&found) {
        let memory = gpu.memory().map_err(|source| CliError::NoGpu { source })?;
        let product = gpu.name();
        // A driver tells the profiles of a GPU in MIG mode alone.
        let by_profiles = || gpu.geometry().ok()?.model_of_profiles();
        let model = Geometry::model_of_product(&product, memory).or_else(by_profiles);
        shown.push(Shown {
            index,
            product,
            memory,
            model,
        });
    }
    let (gpus, others) = known(&shown, args.gpu.as_deref());
    for gpu in &gpus {
        let product = shown.get(gpu.index as usize).map_or("", |it| &it.product);
        println!("GPU {}: {product}, model {}", gpu.index, gpu.model);
    }
    match (gpus.is_empty(), others.first()) {
        (true, None) => return Err(CliError::NoGpus),
        (true, Some(other)) => {
            return Err(CliError::UnknownGpu {
                index: other.index,
                product: other.product.clone(),
                memory: other.memory.0,
            });
        }
        (false, _) => {}
    }
    for Shown { index, product, .. } in &others {
        println!(
            "GPU {index}: {product}, a model that gpufrac does not know: the GPU stays as it is; --gpu MODEL puts it in a pool"
        );
    }
    Ok(Seen {
        gpus,
        has_others: !others.is_empty(),
        told: false,
        driver,
    })
}

/// A GPU as NVML shows it.
struct Shown {
    index: u32,
    product: String,
    memory: MemoryMib,
    /// The model, if gpufrac knows it.
    model: Option<&'static str>,
}

/// The GPUs with their models, and those whose model is not known. `told`: the model of the latter, unless others have
/// it.
fn known<'s>(shown: &'s [Shown], told: Option<&str>) -> (Vec<PoolGpu>, Vec<&'s Shown>) {
    let told = told.filter(|told| !shown.iter().any(|gpu| gpu.model == Some(told)));
    let (mut gpus, mut others) = (Vec::new(), Vec::new());
    for gpu in shown {
        match gpu.model.or(told) {
            Some(model) => gpus.push(PoolGpu {
                index: gpu.index,
                model: model.to_owned(),
            }),
            None => others.push(gpu),
        }
    }
    (gpus, others)
}

fn driver(session: &Session) -> Option<u32> {
    let version = session.driver_version().ok()?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_an_unknown_model_are_in_no_pool_unless_their_model_is_told() {
        let gpu = |index, product: &str| Shown {
            index,
            product: product.to_owned(),
            memory: MemoryMib(81_559),
            model: Geometry::model_of_product(product, MemoryMib(81_559)),
        };
        let shown = [
            gpu(0, "NVIDIA H100 80GB HBM3"),
            gpu(1, "NVIDIA X900"),
            gpu(2, "NVIDIA H100 80GB HBM3"),
        ];
        for (told, pools, others) in [
            (None, vec![(0, "H100-80"), (2, "H100-80")], vec![1]),
            (
                Some("H100-80"),
                vec![(0, "H100-80"), (2, "H100-80")],
                vec![1],
            ),
            (
                Some("X900"),
                vec![(0, "H100-80"), (1, "X900"), (2, "H100-80")],
                vec![],
            ),
        ] {
            let (gpus, left) = known(&shown, told);
            let gpus: Vec<(u32, &str)> = gpus.iter().map(|gpu| (gpu.index, &*gpu.model)).collect();
            let left: Vec<u32> = left.iter().map(|gpu| gpu.index).collect();
            assert_eq!((gpus, left), (pools, others), "{told:?}");
        }
    }
}
