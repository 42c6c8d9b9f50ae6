//! The ways of lending the GPUs of a cluster that are compared.

use std::fmt;

use gpufrac_core::fraction::{Fraction, MemoryMib, Units};
use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::{Layout, LayoutError, LayoutKind};

use crate::place::{Fleet, Lending};

/// The smallest share of a GPU with a control daemon of MPS for all jobs (gpufrac.toml(5)).
const LEAST_SHARE: Units = Units(3);

/// How GPUs that are not lent whole alone are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// Not at all.
    Whole,
    /// Layout `halves`, with its default menu.
    Halves,
    /// Layout `uniform` with this size and the whole GPU.
    Uniform(Fraction),
    /// Whole percents by MPS, and the whole GPU.
    Mps,
}

/// A way of lending: some GPUs of each node whole, the rest cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    pub cut: Cut,
    /// Of eight GPUs of a node, those that are lent whole alone; rounded down on smaller nodes.
    pub whole_of_8: u8,
}

/// A word of `--layouts` or `layout=` is wrong.
/// Cure: Write it as the message says.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no layout; write whole, halves, mps, uniform:1/2, uniform:1/4 or uniform:1/7, with `+K` for K whole GPUs of 8: halves+2"
)]
pub struct UnknownCandidate(pub String);

/// The GPUs of a cluster.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name as in gpufrac.toml.
    pub name: String,
    /// The MIG tables; None for a model without MIG.
    pub geometry: Option<Geometry>,
    /// Memory of a GPU.
    pub memory: MemoryMib,
}

impl Model {
    /// A model that gpufrac knows.
    pub fn named(name: &str) -> Option<Model> {
        if let Some(geometry) = Geometry::builtin(name) {
            let memory = geometry.memory()?;
            return Some(Model {
                name: name.to_owned(),
                geometry: Some(geometry),
                memory,
            });
        }
        let (_, memory) = Geometry::without_mig(name)?;
        Some(Model {
            name: name.to_owned(),
            geometry: None,
            memory,
        })
    }
}

impl Candidate {
    /// As today: each GPU for one job.
    pub const TODAY: Candidate = Candidate {
        cut: Cut::Whole,
        whole_of_8: 0,
    };

    /// Reads `halves+2` or `uniform:1/4`. Errors: any other text.
    pub fn parse(text: &str) -> Result<Candidate, UnknownCandidate> {
        let unknown = || UnknownCandidate(text.to_owned());
        let (cut, whole) = match text.split_once('+') {
            Some((cut, whole)) => (cut, whole.parse().map_err(|_| unknown())?),
            None => (text, 0),
        };
        let cut = match cut.split_once(':') {
            Some(("uniform", size)) => Cut::Uniform(Fraction::parse(size).map_err(|_| unknown())?),
            None if cut == "whole" => Cut::Whole,
            None if cut == "halves" => Cut::Halves,
            None if cut == "mps" => Cut::Mps,
            _ => return Err(unknown()),
        };
        if whole <= 8 {
            Ok(Candidate {
                cut,
                whole_of_8: whole,
            })
        } else {
            Err(unknown())
        }
    }

    /// All that a model can have.
    pub fn all(model: &Model) -> Vec<Candidate> {
        let of = |cut, whole_of_8| Candidate { cut, whole_of_8 };
        let mut all = vec![Candidate::TODAY, of(Cut::Mps, 0)];
        for denominator in [2, 4, 7] {
            if let Ok(size) = Fraction::new(1, denominator) {
                all.push(of(Cut::Uniform(size), 0));
            }
        }
        all.extend((0..8).map(|whole| of(Cut::Halves, whole)));
        all.retain(|candidate| candidate.lendings(model).is_ok());
        all
    }

    /// The ways of lending: first that of GPUs that are lent whole alone, then the cut.
    /// Errors: when the model cannot be cut so.
    pub fn lendings(&self, model: &Model) -> Result<Vec<Lending>, LayoutError> {
        let unsliced = Geometry::unsliced(&model.name);
        let whole = Lending {
            layout: Layout::whole_gpu(&model.name, model.memory, &[])?,
            geometry: unsliced.clone(),
        };
        let geometry = model.geometry.clone().unwrap_or(unsliced);
        let layout = match self.cut {
            Cut::Whole => return Ok(vec![whole]),
            Cut::Halves => Layout::solve(&geometry, LayoutKind::Halves, &[], false)?,
            Cut::Uniform(size) => Layout::solve(&geometry, LayoutKind::Uniform, &[size], false)?,
            Cut::Mps => {
                let layout = Layout::shares("mps", model.memory, &[], LEAST_SHARE)?;
                let geometry = Geometry::unsliced(&model.name);
                return Ok(vec![whole, Lending { layout, geometry }]);
            }
        };
        Ok(vec![whole, Lending { layout, geometry }])
    }

    /// The GPUs of a node that are lent whole alone.
    pub fn whole_gpus(&self, gpus: u32) -> u32 {
        match self.cut {
            Cut::Whole => gpus,
            _ => gpus * u32::from(self.whole_of_8) / 8,
        }
    }

    /// An empty cluster of nodes with these numbers of GPUs. Errors: when the model cannot be cut so.
    pub fn fleet(&self, model: &Model, nodes: &[u32]) -> Result<Fleet, LayoutError> {
        let kinds = |gpus: &u32| {
            let whole = self.whole_gpus(*gpus);
            (0..*gpus).map(|gpu| u8::from(gpu >= whole)).collect()
        };
        let nodes: Vec<Vec<u8>> = nodes.iter().map(kinds).collect();
        Ok(Fleet::new(self.lendings(model)?, &nodes))
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cut {
            Cut::Whole => f.write_str("whole")?,
            Cut::Halves => f.write_str("halves")?,
            Cut::Uniform(size) => write!(f, "uniform:{}", size.ratio())?,
            Cut::Mps => f.write_str("mps")?,
        }
        match (self.cut, self.whole_of_8) {
            (Cut::Whole, _) | (_, 0) => Ok(()),
            (_, whole) => write!(f, "+{whole}"),
        }
    }
}
