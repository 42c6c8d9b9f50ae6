//! Layouts of shares: whole percents of a device, by MPS, time slices or a library.
//!
//! A share has no place, so what Slurm counts is all there is, and nothing is left to prove. MPS
//! inside MIG has places again, but one a device: the instance that all jobs of a half share.

use super::candidates;
use super::error::LayoutError;
use super::parts::{Layout, LayoutKind, MenuEntry, Side};
use crate::fraction::{Fraction, MemoryMib, Units};
use crate::geometry::Geometry;

const HALF: Units = Units(50);

impl Layout {
    /// A GPU with `memory`, shared in percents. `word` names the way in messages, `least` is the smallest share
    /// that can be given. An empty `menu` asks for every percent; the whole GPU can always be lent.
    ///
    /// # Errors
    /// When the menu has a share below `least`, or two that cost the same.
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

    /// A GPU that is not in MIG mode and is lent as a whole, or not at all.
    ///
    /// # Errors
    /// When the menu has anything else.
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
            profile_name: "whole GPU".to_owned(),
        }];
        Ok(Layout {
            kind: LayoutKind::Whole,
            ..Layout::of_entries(menu)
        })
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

    /// The halves of a MIG GPU, the one instance of each shared in percents of the GPU, at most 50.
    /// [`Layout::place`] gives the place of that instance for every size.
    ///
    /// # Errors
    /// When the GPU has no halves, or for a menu as in [`Layout::shares`].
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
