//! Layouts of shares: whole percents of a device, by MPS, time slices or HAMi-core.
//!
//! A share has no position, so Slurm's count is the only limit and there is nothing to prove. MPS inside MIG has
//! positions, but only one for each device: that of the instance that all jobs of a half share.

use super::candidates;
use super::error::LayoutError;
use super::parts::{Layout, LayoutKind, MenuEntry, Side};
use crate::fraction::{Fraction, MemoryMib, Units};
use crate::geometry::Geometry;

const HALF: Units = Units(50);
/// In place of a profile's name.
const WHOLE_GPU: &str = "whole GPU";

impl Layout {
    /// The layout of a GPU with `memory`, shared in percents. `word` is the name of the mechanism in messages,
    /// `least` the smallest share. An empty `menu` stands for every percent. The whole GPU can always be lent.
    /// Errors: the menu has a share below `least`, or two with the same price.
    pub fn shares(
        word: &str,
        memory: MemoryMib,
        menu: &[Fraction],
        least: Units,
    ) -> Result<Layout, LayoutError> {
        let mut sizes = menu.to_vec();
        if !sizes.is_empty() && !sizes.contains(&Fraction::ONE) {
            sizes.push(Fraction::ONE);
        }
        let entries = percents(&sizes, least, Units::WHOLE)?;
        let entry = |(fraction, units): (Fraction, Units)| MenuEntry {
            fraction,
            units,
            memory: memory.part(units, Units::WHOLE),
            profile_name: word.to_owned(),
        };
        Ok(Layout::of_entries(entries.into_iter().map(entry).collect()))
    }

    /// The layout of a GPU that is not in MIG mode and is only lent whole. Errors: the menu has any other size.
    pub fn whole_gpu(
        model: &str,
        memory: MemoryMib,
        menu: &[Fraction],
    ) -> Result<Layout, LayoutError> {
        if menu.iter().any(|fraction| *fraction != Fraction::ONE) {
            return Err(LayoutError::FixedMenu {
                kind: LayoutKind::Whole,
                model: model.to_owned(),
                only: Fraction::ONE,
            });
        }
        let menu = vec![MenuEntry {
            fraction: Fraction::ONE,
            units: Units::WHOLE,
            memory,
            profile_name: WHOLE_GPU.to_owned(),
        }];
        Ok(Layout {
            kind: LayoutKind::Whole,
            ..Layout::of_entries(menu)
        })
    }

    /// The same, with the GPU itself in place of the instance that is as large as the GPU: MIG is off then.
    /// Errors: when the model needs a reset for a change of MIG mode.
    pub fn with_bare_gpu(mut self, geometry: &Geometry) -> Result<Layout, LayoutError> {
        if geometry.needs_reset_for_mig() {
            return Err(LayoutError::NeedsReset {
                model: geometry.model.clone(),
            });
        }
        for entry in &mut self.menu {
            if entry.units == Units::WHOLE {
                WHOLE_GPU.clone_into(&mut entry.profile_name);
            }
        }
        Ok(self)
    }

    fn of_entries(menu: Vec<MenuEntry>) -> Layout {
        Layout {
            kind: LayoutKind::Shares,
            sides: vec![Side::Whole],
            capacity: Units::WHOLE,
            menu,
            profiles: Vec::new(),
            compute_slices: 0,
            shapes: Vec::new(),
            proofs: Vec::new(),
        }
    }

    /// The layout of the halves of a MIG GPU. Each half has one instance, shared in percents of the GPU, at most 50.
    /// [`Layout::place`] gives the position of this instance for every size.
    /// Errors: the GPU has no halves; or the menu is wrong as in [`Layout::shares`].
    pub fn shared_halves(
        geometry: &Geometry,
        menu: &[Fraction],
        least: Units,
        equal: bool,
    ) -> Result<Layout, LayoutError> {
        candidates::check_geometry(geometry)?;
        let half = candidates::within_a_half(menu)?;
        let mut layout = Layout::solve(geometry, LayoutKind::Halves, &[half], equal)?;
        let Some(instance) = layout.menu.pop() else {
            return Ok(layout);
        };
        let entry = |(fraction, units): (Fraction, Units)| MenuEntry {
            fraction,
            units,
            memory: instance.memory.part(units, HALF),
            profile_name: format!("{}+mps", instance.profile_name),
        };
        layout.menu = percents(menu, least, HALF)?
            .into_iter()
            .map(entry)
            .collect();
        for shape in &mut layout.shapes {
            let place = shape.preferences.pop().unwrap_or_default();
            shape.preferences = vec![place; layout.menu.len()];
        }
        Ok(layout)
    }
}

fn percents(
    menu: &[Fraction],
    least: Units,
    most: Units,
) -> Result<Vec<(Fraction, Units)>, LayoutError> {
    if menu.is_empty() {
        let all = (least.0.max(1)..=most.0).filter_map(|percent| {
            let fraction = Fraction::new(percent, 100).ok()?;
            Some((fraction, Units(percent)))
        });
        return Ok(all.collect());
    }
    let priced = candidates::priced(menu)?;
    match priced.iter().find(|(_, units)| *units < least) {
        Some((fraction, _)) => Err(LayoutError::TooSmall {
            fraction: *fraction,
            least,
        }),
        None => Ok(priced),
    }
}
