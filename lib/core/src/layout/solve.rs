//! From a menu to a proven layout.

use super::error::LayoutError;
use super::parts::{Layout, LayoutKind, Limits, Shape};
use super::{candidates, proof};
use crate::fraction::Fraction;
use crate::geometry::Geometry;

impl Layout {
    /// Computes the layout of a GPU model and proves it: on every device, in every state that arrivals by preference
    /// and departures in any order can lead to, each menu entry that Slurm's count admits has a place, and no device
    /// can affect another one of the GPU.
    ///
    /// An empty `menu` stands for the default: 1/2, 1/4, 1/8 for halves (1/2, 1/4 on GPUs of four slices), otherwise
    /// the one size of the layout. `equal` uses only profiles of which all pieces of a size can have the same compute
    /// slices (3g instead of 4g for a half).
    /// Errors: the menu is not possible on this GPU, or not safe; the error shows a state that breaks the rule.
    pub fn solve(
        geometry: &Geometry,
        kind: LayoutKind,
        menu: &[Fraction],
        equal: bool,
    ) -> Result<Layout, LayoutError> {
        candidates::check_geometry(geometry)?;
        let plan = candidates::plan(geometry, kind, menu)?;
        Layout::prove(geometry, plan, equal).map_err(|error| match (kind, error) {
            // The menu has a single size, so the message cannot propose to leave one out.
            (LayoutKind::Uniform, LayoutError::Unsafe { .. }) => LayoutError::NotUniform,
            (_, error) => error,
        })
    }

    /// The second part of [`Layout::solve`], for a plan of any shape.
    pub(super) fn prove(
        geometry: &Geometry,
        plan: candidates::Plan,
        equal: bool,
    ) -> Result<Layout, LayoutError> {
        let shapes = plan
            .spans
            .iter()
            .map(|span| candidates::shape(geometry, span, &plan, equal))
            .collect::<Result<Vec<Shape>, LayoutError>>()?;
        let menu = candidates::menu_entries(geometry, &plan, &shapes);
        let profiles = geometry.profiles.iter().map(|profile| Limits {
            id: profile.id,
            compute_slices: profile.compute_slices.into(),
            max_instances: profile.max_instances,
        });
        let mut layout = Layout {
            kind: plan.kind,
            sides: shapes.iter().map(|shape| shape.side).collect(),
            capacity: plan.capacity,
            menu,
            profiles: profiles.collect(),
            compute_slices: geometry.compute_slices.into(),
            shapes,
            proofs: Vec::new(),
        };
        layout.proofs = proof::prove(&layout, geometry)?;
        Ok(layout)
    }
}
